/* The container's ledger of device memory and GPU time, shared by its processes. */
#ifndef TOPOALLOC_USAGE_H
#define TOPOALLOC_USAGE_H

#include "usage_layout.h"

enum usage_kind { USAGE_DEVICE, USAGE_MANAGED, USAGE_IMPLICIT };

extern struct usage_file *_Atomic usage_mapped; /* NULL: not joined */
extern struct usage_slot *_Atomic usage_own;

/* GPU time charged to the container's other processes, ended ones too. */
uint64_t usage_siblings_gpu_time_ns(void);

/* 1: joined. Without the file (or a slot) the ledger is the process's own, if `alone` allows, else 0. */
int usage_join(int alone);
void usage_forget(void); /* in a forked child: the slot is the parent's */
void usage_check(void);  /* joins again if the program closed our descriptor */

/* 1: granted, and counted before it is taken. 0: it would exceed `limit_bytes`. */
int usage_reserve(uint64_t bytes, uint64_t limit_bytes, enum usage_kind kind);
void usage_release(uint64_t bytes, enum usage_kind kind);
void usage_set_implicit(uint64_t bytes, int measured);
uint64_t usage_total(void);
void usage_reap(void);      /* gives back what dead processes held */
void usage_reap_some(void); /* of some of them, each time of others */

#endif
