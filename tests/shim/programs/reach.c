/* The ways to the driver, and `main`. */
#include "reach.h"

#include <dlfcn.h>
#include <sys/wait.h>

struct calls cu;

#define CALL(field, symbol, threads, base, version, arguments) \
    extern CUresult symbol arguments;
CALLS
#undef CALL

static void reach_linked(void)
{
#define CALL(field, symbol, threads, base, version, arguments) cu.field = symbol;
    CALLS
#undef CALL
}

static void *must_have(void *found, const char *name)
{
    if (!found) {
        printf("missing=%s\n", name);
        exit(4);
    }
    return found;
}

static void reach_dlsym(bool threads)
{
    void *library = must_have(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
#define CALL(field, symbol, threads_symbol, base, version, arguments)                                    \
    *(void **)(void *)&cu.field = must_have(dlsym(library, threads ? #threads_symbol : #symbol), #symbol);
    CALLS
#undef CALL
}

static void reach_procaddress(uint64_t flags, bool second)
{
    void *library = must_have(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    CUresult (*first_of)(const char *, void **, int, uint64_t);
    CUresult (*second_of)(const char *, void **, int, uint64_t, int *);
    *(void **)(void *)&first_of = dlsym(library, "cuGetProcAddress");
    *(void **)(void *)&second_of = dlsym(library, "cuGetProcAddress_v2");
    int status;
#define CALL(field, symbol, threads, base, version, arguments)                                                \
    {                                                                                                         \
        void *found = NULL;                                                                                   \
        if (second)                                                                                           \
            second_of(#base, &found, version > 7000 ? version : 7000, flags, &status);                        \
        else                                                                                                  \
            first_of(#base, &found, version > 7000 ? version : 7000, flags);                                  \
        *(void **)(void *)&cu.field = must_have(found, #base);                                                \
    }
    CALLS
#undef CALL
}

static int in_child(int argc, char **argv)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        int status = run(argc, argv);
        fflush(stdout);
        _exit(status);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int go(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "linked";
    if (!strcmp(way, "dlsym") || !strcmp(way, "dlsym-threads"))
        reach_dlsym(way[5] == '-');
    else if (!strncmp(way, "procaddress", 11))
        reach_procaddress(strstr(way, "threads") ? PROC_PER_THREAD : PROC_DEFAULT, strstr(way, "v1") == NULL);
    else
        reach_linked();
    return strcmp(way, "fork") ? run(argc - 2, argv + 2) : in_child(argc - 2, argv + 2);
}

__attribute__((constructor)) static void before_main(int argc, char **argv, char **environment)
{
    (void)environment;
    if (argc < 2 || strcmp(argv[1], "constructor"))
        return;
    int status = go(argc, argv);
    fflush(stdout);
    exit(status);
}

int main(int argc, char **argv)
{
    return go(argc, argv);
}

void start(void)
{
    CUcontext context = NULL;
    CUresult result = cu.Init(0);
    if (!result)
        result = cu.PrimaryRetain(&context, 0);
    if (!result)
        result = cu.CtxSetCurrent(context);
    say("start", result);
    if (result)
        exit(0);
}

uint64_t number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 0);
    return value << (*end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0);
}

void say(const char *key, long long value)
{
    printf("%s=%lld\n", key, value);
    fflush(stdout);
}
