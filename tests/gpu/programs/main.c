/* One program, its first word says which. See each file for its words. */
#include "driver.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int, char **);
} PROGRAMS[] = {
    {"memory", memory_main}, {"share", share_main}, {"cost", cost_main},
    {"start", start_main},   {"reported", reported_main},
};

int main(int count, char **words) {
    for (size_t i = 0; count > 1 && i < sizeof PROGRAMS / sizeof *PROGRAMS; i++)
        if (!strcmp(words[1], PROGRAMS[i].name)) return PROGRAMS[i].run(count - 1, words + 1);
    fprintf(stderr, "usage: probe memory|share|cost|start|reported ...\n");
    return 2;
}
