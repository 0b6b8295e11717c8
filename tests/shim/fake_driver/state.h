/* The device itself, as all processes share it: who holds how many bytes, and whose turn it is on the time line. */
#ifndef TOPOALLOC_TESTS_STATE_H
#define TOPOALLOC_TESTS_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRANULE_BYTES ((uint64_t)2 << 20)
#define PROCESSES_MAX 512

/* Bytes. A process is known from its first taking on, and forgotten, with all it held, once it is gone. */
bool gpu_take(uint64_t bytes); /* false: the device is full */
void gpu_give(uint64_t bytes);
void gpu_take_managed(uint64_t bytes); /* known, but in no figure of the driver */
void gpu_give_managed(uint64_t bytes);
void gpu_forget_after_fork(void);

uint64_t gpu_capacity_bytes(void);
uint64_t gpu_taken_bytes(uint32_t pid); /* 0: all processes */
uint64_t gpu_managed_bytes(uint32_t pid);
uint64_t gpu_busy_ns(uint32_t pid);
uint32_t gpu_processes(uint32_t *pids, uint64_t *bytes, uint32_t most);

/* Time. Each process has a clock that stands while another process has the device and the process itself has work
 * waiting; work is placed on that clock. Streams of one process overlap, processes take turns in slices. */
uint64_t gpu_clock(void);
uint64_t gpu_submit(uint64_t not_before, uint64_t duration_ns); /* when it will end, on the process's clock */
bool gpu_reached(uint64_t moment);
void gpu_wait(uint64_t moment);
uint64_t gpu_wall_ns(uint64_t moment); /* CLOCK_MONOTONIC time of a moment reached */

uint64_t environment_number(const char *name, uint64_t otherwise);

#endif
