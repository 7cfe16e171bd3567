// Owned by root with the set-user-ID bit: becomes a process of root that its starter can't end, and says so.
#define _GNU_SOURCE
#include <unistd.h>

int main(void) {
    return setresuid(0, 0, 0) || write(1, "started\n", 8) != 8 || pause();
}
