#include "elf_symbol.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#define HIDDEN_VERSION 0x8000u /* not the version that a plain reference binds to */

struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    const uint32_t *hashes;
    const uint16_t *versions;
};

struct wanted {
    const char *object;
    const char *symbol;
    void *found;
};

static uint32_t gnu_hash(const char *name)
{
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static struct tables tables_of(const struct dl_phdr_info *info)
{
    struct tables tables = {NULL, NULL, NULL, NULL};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            /* glibc has added the load address to these; another C library may not have. */
            uintptr_t at = entry->d_un.d_ptr;
            if (at < info->dlpi_addr)
                at += info->dlpi_addr;
            if (entry->d_tag == DT_SYMTAB)
                tables.symbols = (const ElfW(Sym) *)at;
            else if (entry->d_tag == DT_STRTAB)
                tables.names = (const char *)at;
            else if (entry->d_tag == DT_GNU_HASH)
                tables.hashes = (const uint32_t *)at;
            else if (entry->d_tag == DT_VERSYM)
                tables.versions = (const uint16_t *)at;
        }
    }
    return tables;
}

/* The chain of one bucket of DT_GNU_HASH ends at the entry whose lowest bit is set. */
static const ElfW(Sym) * symbol_in(const struct tables *tables, const char *name)
{
    uint32_t buckets = tables->hashes[0], first = tables->hashes[1], bloom_words = tables->hashes[2];
    const uint32_t *bucket = tables->hashes + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = gnu_hash(name);
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    if (index < first)
        return NULL;
    for (;; index++) {
        uint32_t entry = chain[index - first];
        const ElfW(Sym) *symbol = &tables->symbols[index];
        int shown = !tables->versions || !(tables->versions[index] & HIDDEN_VERSION);
        if ((entry | 1) == (hash | 1) && shown && symbol->st_shndx != SHN_UNDEF &&
            strcmp(tables->names + symbol->st_name, name) == 0)
            return symbol;
        if (entry & 1)
            return NULL;
    }
}

static int look_in(struct dl_phdr_info *info, size_t bytes, void *data)
{
    struct wanted *wanted = data;
    (void)bytes;
    if (strncmp(file_name(info->dlpi_name), wanted->object, strlen(wanted->object)) != 0)
        return 0;
    struct tables tables = tables_of(info);
    if (!tables.symbols || !tables.names || !tables.hashes)
        return 0;
    const ElfW(Sym) *symbol = symbol_in(&tables, wanted->symbol);
    if (!symbol)
        return 0;
    wanted->found = (void *)(info->dlpi_addr + symbol->st_value);
    return 1;
}

void *elf_symbol(const char *object, const char *symbol)
{
    struct wanted wanted = {object, symbol, NULL};
    dl_iterate_phdr(look_in, &wanted);
    return wanted.found;
}
