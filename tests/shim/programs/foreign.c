/* foreign WAY ipc|external BYTES: memory that another process or another API made. */
#include "reach.h"

#include <sys/wait.h>

static void external(uint64_t bytes)
{
    CUexternalMemory memory = NULL;
    CUexternalMemoryDesc of = {.type = 1, .handle.fd = 0, .bytes = bytes};
    CUexternalBufferDesc buffer = {.bytes = (uint64_t)1 << 30};
    CUdeviceptr address = 0;
    say("imported", cu.ImportExternal(&memory, &of));
    if (!memory)
        return;
    MUST(cu.MapExternal(&address, memory, &buffer));
    MUST(cu.Free(address));
    MUST(cu.DestroyExternal(memory));
    say("external", 1);
}

/* The owner is a child that starts before the driver does in the parent. */
static void ipc(void)
{
    int to_parent[2], to_child[2];
    CUipcMemHandle handle;
    CUdeviceptr address = 0;
    if (pipe(to_parent) || pipe(to_child))
        exit(5);
    if (!fork()) {
        char word;
        close(to_child[1]);
        start();
        MUST(cu.Alloc(&address, (size_t)1 << 30));
        MUST(cu.IpcGet(&handle, address));
        if (write(to_parent[1], &handle, sizeof handle) != sizeof handle || read(to_child[0], &word, 1) < 0)
            _exit(6);
        _exit(0);
    }
    if (read(to_parent[0], &handle, sizeof handle) != sizeof handle)
        exit(7);
    start();
    long long before = (long long)fakeBytesTaken((uint32_t)getpid());
    MUST(cu.IpcOpen(&address, handle, 1));
    say("opened_takes", (long long)fakeBytesTaken((uint32_t)getpid()) - before);
    MUST(cu.IpcClose(address));
    say("double_close", cu.IpcClose(address));
    close(to_child[1]);
    wait(NULL);
    say("ipc", 1);
}

int run(int argc, char **argv)
{
    if (argc > 0 && !strcmp(argv[0], "ipc")) {
        ipc();
        return 0;
    }
    start();
    external(number(argc > 1 ? argv[1] : "1G"));
    return 0;
}
