/* layout: the usage file's layout as C sees it. */
#include "usage_layout.h"

#include <stddef.h>
#include <stdio.h>

int main(void)
{
    printf("%zu %zu %zu %zu %u %u %llx", sizeof(struct usage_header), sizeof(struct usage_slot),
           offsetof(struct usage_header, total_bytes), offsetof(struct usage_slot, pid), USAGE_SLOTS_MAX, USAGE_FILE_BYTES,
           (unsigned long long)USAGE_MAGIC);
    return 0;
}
