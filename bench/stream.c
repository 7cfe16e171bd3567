/* A plain TCP stream over loopback: what one connection can carry here, with nothing computed.

   stream UP DOWN   in each round UP bytes go to the other process and DOWN bytes come back.
   For each number N on standard input: N rounds, and their median in seconds on standard output. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ROUNDS = 100000 };

static void check(int ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

/* 0 when the other side closed. */
static int take(int fd, char *buffer, size_t n) {
    while (n > 0) {
        ssize_t got = recv(fd, buffer, n, 0);
        check(got >= 0, "recv");
        if (got == 0) return 0;
        buffer += got;
        n -= (size_t)got;
    }
    return 1;
}

static void give(int fd, const char *buffer, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, buffer, n, MSG_NOSIGNAL);
        check(sent > 0, "send");
        buffer += sent;
        n -= (size_t)sent;
    }
}

static char *filled(size_t n) {
    char *buffer = malloc(n);
    check(buffer != NULL, "malloc");
    memset(buffer, 1, n); /* pages that were never written would all be the same one */
    return buffer;
}

static void no_delay(int fd) {
    int on = 1;
    check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "setsockopt");
}

static void serve(int listener, size_t up, size_t down) {
    int fd = accept(listener, NULL, NULL);
    check(fd >= 0, "accept");
    no_delay(fd);
    char *in = filled(up), *out = filled(down);
    while (take(fd, in, up)) give(fd, out, down);
    free(in);
    free(out);
    close(fd);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_s(int fd, char *out, size_t up, char *in, size_t down, int rounds) {
    static double times[MAX_ROUNDS];
    for (int i = 0; i < rounds; i++) {
        double begin = now_s();
        give(fd, out, up);
        check(take(fd, in, down), "the other process is gone");
        times[i] = now_s() - begin;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_size);
    return times[rounds / 2];
}

int main(int argc, char **argv) {
    check(argc == 3, "usage: stream UP DOWN");
    size_t up = strtoul(argv[1], NULL, 10), down = strtoul(argv[2], NULL, 10);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof addr;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&addr, size) == 0, "bind");
    check(listen(listener, 1) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&addr, &size) == 0, "getsockname");
    if (fork() == 0) {
        serve(listener, up, down);
        return 0;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(fd, (struct sockaddr *)&addr, size) == 0, "connect");
    no_delay(fd);
    char *out = filled(up), *in = filled(down);
    int rounds;
    while (scanf("%d", &rounds) == 1 && rounds > 0 && rounds <= MAX_ROUNDS) {
        printf("%.9f\n", median_s(fd, out, up, in, down, rounds));
        fflush(stdout);
    }
    free(out);
    free(in);
    close(fd);
    return 0;
}
