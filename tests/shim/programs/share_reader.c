/* share_reader: reads "<bytes>\n<that many bytes>" again and again and says of each whether the shim's parser takes it. */
#include "share.h"

#include <stdio.h>
#include <stdlib.h>

#define BYTES_MAX 70000u

int main(void)
{
    unsigned bytes;
    while (scanf("%u", &bytes) == 1 && bytes < BYTES_MAX && getchar() == '\n') {
        struct share share = {0};
        char *exact = malloc(bytes + 1u); /* its end is where the checks look */
        if (!exact || fread(exact, 1, bytes, stdin) != bytes)
            return 1;
        printf("%d\n", share_parse(exact, bytes, &share));
        fflush(stdout);
        free(exact);
    }
    return 0;
}
