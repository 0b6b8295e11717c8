/* truth: answers "pid" on standard input with "taken managed busy_ns" on standard output, past any limiter. */
#include "reach.h"

int main(void)
{
    unsigned long pid;
    while (scanf("%lu", &pid) == 1) {
        uint64_t managed = fakeBytesManaged((uint32_t)pid);
        printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", fakeBytesTaken((uint32_t)pid) - managed, managed,
               fakeBusyNs((uint32_t)pid));
        fflush(stdout);
    }
    return 0;
}
