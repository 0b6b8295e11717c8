#include "fill.h"

static void *pieces[PIECES_MAX];

static int fill_once(take_piece *take, uint64_t bytes, CUresult *error)
{
    int count = 0;
    for (*error = 0; count < PIECES_MAX && !*error; count += !*error)
        *error = take(bytes, &pieces[count]);
    return count;
}

void fill(take_piece *take, give_piece *give, uint64_t bytes)
{
    CUresult error = 0, bad = 0;
    say("before", (long long)fakeBytesTaken((uint32_t)getpid()));
    int count = fill_once(take, bytes, &error);
    say("pieces", count);
    say("obtained", (long long)(bytes * (uint64_t)count));
    say("error", error);
    say("taken", (long long)fakeBytesTaken((uint32_t)getpid()));
    for (int i = 0; i < count && !bad; i++)
        bad = give(pieces[i]);
    say("give_error", bad);
    say("left", (long long)fakeBytesTaken((uint32_t)getpid()));
    int again = fill_once(take, bytes, &error);
    say("again", again);
    for (int i = 0; i < again; i++)
        give(pieces[i]);
}
