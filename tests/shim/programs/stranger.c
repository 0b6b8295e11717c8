/* stranger CASE [DRIVER|LIBRARY]: a program that was not linked with the driver, and asks the dynamic linker. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;
#define PIECE_BYTES ((size_t)64 << 20)
#define PIECES_MAX 128

int curl_easy_init(void); /* the name begins like the driver's */
int curl_easy_init(void)
{
    return 7;
}

static int is_loaded(const char *library)
{
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, library) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static void ask_without_driver(void)
{
    printf("init=%d\n", dlsym(RTLD_DEFAULT, "cuInit") != NULL);
    printf("hooked=%d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL);
    printf("next=%d\n", dlsym(RTLD_NEXT, "cuMemAlloc_v2") != NULL);
    printf("nvml=%d\n", dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo") != NULL);
    printf("versioned=%d\n", dlvsym(RTLD_DEFAULT, "cuMemAlloc_v2", "NONE_1") != NULL);
    printf("own=%d\n", dlsym(RTLD_DEFAULT, "curl_easy_init") == (void *)curl_easy_init);
    printf("loaded=%d\n", is_loaded("libcuda.so"));
}

static void fill(void *library)
{
    int (*init)(unsigned), (*retain)(void **, int), (*current)(void *), (*allocate)(CUdeviceptr *, size_t);
    void *context = NULL;
    CUdeviceptr address;
    int pieces = 0;
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&current = dlsym(library, "cuCtxSetCurrent");
    *(void **)&allocate = dlsym(library, "cuMemAlloc_v2");
    printf("start=%d\n", init(0) | retain(&context, 0) | current(context));
    while (pieces < PIECES_MAX && allocate(&address, PIECE_BYTES) == 0)
        pieces++;
    printf("obtained=%zu\n", pieces * PIECE_BYTES);
}

int main(int count, char **arguments)
{
    if (count == 2) {
        ask_without_driver();
        return 0;
    }
    if (strcmp(arguments[1], "late") == 0) /* asked before there was any driver */
        printf("before=%d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL);
    void *library = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 4;
    }
    fill(library);
    return 0;
}
