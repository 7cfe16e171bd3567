// Owned by root with the set-user-ID bit: becomes a process of root that its starter can't end.
#define _GNU_SOURCE
#include <unistd.h>

int main(void) {
    return setresuid(0, 0, 0) || pause();
}
