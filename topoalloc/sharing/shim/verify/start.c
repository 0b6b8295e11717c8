/* Where the program begins. The start code of a new C library asks for one as new (GLIBC_2.34), and this program has to
 * begin in every image that the library runs in. A program that is linked dynamically finds the C library ready: its
 * loader has called what sets it up. On arm64 the first instruction is `bti c`: where branches are guarded the loader may
 * come here by nothing else. */
#include <stdlib.h>

int main(int count, char **arguments);
void begin(long *stack) __attribute__((noreturn, used, visibility("hidden")));

void begin(long *stack)
{
    exit(main((int)stack[0], (char **)(stack + 1)));
}

#if defined __x86_64__
__asm__(".globl _start\n"
        ".type _start, @function\n"
        "_start:\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rsp, %rdi\n"
        "    andq $-16, %rsp\n"
        "    call begin\n");
#elif defined __aarch64__
__asm__(".globl _start\n"
        ".type _start, %function\n"
        "_start:\n"
        "    hint #34\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    bl begin\n");
#else
#error "another processor than the library's"
#endif
