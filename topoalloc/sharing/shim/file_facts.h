/* stat(2) without libc's: its symbols changed their version in glibc 2.33, and older ones must do. */
#ifndef TOPOALLOC_FILE_FACTS_H
#define TOPOALLOC_FILE_FACTS_H

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int facts_of_path(const char *path, struct stat *facts)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, facts, 0);
}

static inline int facts_of_descriptor(int descriptor, struct stat *facts)
{
    return (int)syscall(SYS_fstat, descriptor, facts);
}

#endif
