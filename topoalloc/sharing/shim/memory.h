/* Charging device memory before it is taken. */
#ifndef TOPOALLOC_MEMORY_H
#define TOPOALLOC_MEMORY_H

#include "driver_api.h"
#include "pointers.h"
#include "usage.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

/* What the driver takes for a plain allocation: beyond one MiB whole pages of two, below it pieces of such pages. */
uint64_t memory_taken(uint64_t bytes);

/* 1: charged. When it does not fit, what could have been freed unseen is looked at before it is refused. */
int memory_charge(uint64_t bytes, enum usage_kind kind);
void memory_discharge(uint64_t bytes, enum usage_kind kind);
uint64_t memory_context(void); /* the current context as a number */
CUresult memory_refused(void); /* counts the refusal */

/* After calls that take an amount which cannot be foreseen: 1: measured, and more than is allowed. */
int memory_overdrawn(void);

int pools_refresh(void); /* charges what the pools hold now; 1: some changed */
int pools_give_back(const struct pointer *pointer);
int graphs_refresh(void);
uint64_t graphs_promised(void);
void pools_forget(void);
void mappings_forget(void);
void graphs_forget(void);
void contexts_forget(void);

#endif
