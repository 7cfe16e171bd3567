// Forks a chain: each link forks the next one in a session of its own, and ends MICROSECONDS later. All hold what
// they were started with open. Ends by itself after ten seconds, or 100000 links.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    double life_s = argc > 1 ? 1e-6 * atof(argv[1]) : 0, end_s = now_s() + 10;
    signal(SIGTERM, SIG_IGN);
    for (int links = 0; links < 100000 && now_s() < end_s; links++) {
        if (fork()) {
            _exit(0);
        }
        setsid();
        double until_s = now_s() + life_s;
        while (now_s() < until_s) {
        }
    }
    return 0;
}
