/* Finds a function in an object that is loaded already, without asking the dynamic linker, whose own functions are
 * what we are looking for. */
#ifndef TOPOALLOC_ELF_SYMBOL_H
#define TOPOALLOC_ELF_SYMBOL_H

/* The default version of `symbol` in the first loaded object whose file name begins with `object`; NULL: not there. */
void *elf_symbol(const char *object, const char *symbol);

#endif
