/* Preloaded in a job's programs: kills one of them at a call of the C library that the test has chosen.
 *
 * KILL_AT="CALL PATH N EPOCH WHO": before the N-th CALL whose file's name has PATH in it, in that epoch of
 * the process WHO. CALL: fsync, rename, unlinkat, pread; write, of 1000 bytes or more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char call_name[16], in_path[64];
static atomic_int left; /* 0: not in this process */

__attribute__((constructor)) static void begin(void) {
    char who[32], me[32], epoch[16];
    int n;
    const char *at = getenv("KILL_AT"), *role = getenv("PSLAUNCH_ROLE"), *rank = getenv("PSLAUNCH_RANK");
    const char *now = getenv("PSLAUNCH_EPOCH");
    if (!at || !role || !rank || !now) return;
    if (sscanf(at, "%15s %63s %d %15s %31s", call_name, in_path, &n, epoch, who) != 5) return;
    snprintf(me, sizeof me, "%s/%s", role, rank);
    if (strcmp(me, who) == 0 && strcmp(now, epoch) == 0) left = n;
}

static void come(const char *call, const char *path) {
    if (left <= 0 || strcmp(call, call_name) != 0 || !strstr(path, in_path)) return;
    if (atomic_fetch_sub(&left, 1) == 1) kill(getpid(), SIGKILL);
}

static void come_with_fd(const char *call, int fd) {
    char link[64], path[4096];
    if (left <= 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    come(call, path);
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    come_with_fd("fsync", fd);
    return real(fd);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    come("rename", to);
    return real(from, to);
}

int unlinkat(int fd, const char *path, int flags) {
    int (*real)(int, const char *, int) = (int (*)(int, const char *, int))dlsym(RTLD_NEXT, "unlinkat");
    come("unlinkat", path);
    return real(fd, path, flags);
}

ssize_t write(int fd, const void *data, size_t n) {
    ssize_t (*real)(int, const void *, size_t) =
        (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (n >= 1000) come_with_fd("write", fd);
    return real(fd, data, n);
}

ssize_t pread64(int fd, void *data, size_t n, off64_t at) {
    ssize_t (*real)(int, void *, size_t, off64_t) =
        (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    come_with_fd("pread", fd);
    return real(fd, data, n, at);
}
