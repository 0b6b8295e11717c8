/* Takes memory of one family until it is refused, tells what was got and what it really took, gives it all back. */
#ifndef TOPOALLOC_TESTS_FILL_H
#define TOPOALLOC_TESTS_FILL_H

#include "reach.h"

#define PIECES_MAX 20000

typedef CUresult take_piece(uint64_t bytes, void **piece);
typedef CUresult give_piece(void *piece);

/* Prints obtained (bytes asked for and got), pieces, error (of the refusal), taken (by this process at its fullest),
 * left (after giving back), again (pieces got the second time). */
void fill(take_piece *take, give_piece *give, uint64_t bytes);

#endif
