/* Modules and libraries: an image is a line of text, "module bytes=33554432 lazy kernel=name:duration_ns ...", so that a
 * test says what it costs and how long its kernels run. Any other image is a module without bytes and kernels.
 * Durations: "name:20000" always, "name:500/block" by the grid, "name:parameter" from the first parameter (uint64_t).
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <string.h>

#define MODULE_MAGIC UINT64_C(0x30d00001)
#define IMAGE_TEXT_MAX 4096

struct CUlib_st {
    uint64_t magic;
    CUmodule loaded; /* one context is enough for every test */
    CUcontext context;
    uint64_t context_serial;
    char text[IMAGE_TEXT_MAX];
    CUfunction functions;
};

static CUfunction parse_kernel(const char *text)
{
    CUfunction function = calloc(1, sizeof *function);
    char timing[64] = "";
    if (sscanf(text, "%63[^: ]:%63s", function->name, timing) < 1) {
        free(function);
        return NULL;
    }
    function->duration_ns = strtoull(timing, NULL, 0);
    function->timing = strstr(timing, "/block") ? PER_BLOCK : strcmp(timing, "parameter") == 0 ? FIRST_PARAMETER : FIXED;
    return function;
}

static void parse(CUmodule module, const char *text)
{
    char copy[IMAGE_TEXT_MAX], *rest = NULL;
    if (!strncmp(text, "// ", 3)) /* the first line of PTX, a comment there */
        text += 3;
    if (strncmp(text, "module", 6))
        return;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        if (!strncmp(word, "bytes=", 6))
            module->bytes = strtoull(word + 6, NULL, 0);
        else if (!strcmp(word, "lazy"))
            module->lazy = true;
        else if (!strncmp(word, "kernel=", 7)) {
            CUfunction function = parse_kernel(word + 7);
            if (!function)
                continue;
            function->module = module;
            function->next = module->functions;
            module->functions = function;
        }
    }
}

static CUresult module_take(CUmodule module)
{
    uint64_t wanted = round_up(module->bytes, GRANULE_BYTES);
    if (module->taken == wanted)
        return CUDA_SUCCESS;
    if (!gpu_take(wanted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->taken = wanted;
    return CUDA_SUCCESS;
}

static void module_free(CUmodule module)
{
    for (CUfunction function = module->functions, next; function; function = next) {
        next = function->next;
        free(function);
    }
    if (module->taken)
        gpu_give(module->taken);
    if (module->globals)
        address_gone(module->globals, GRANULE_BYTES);
    module->magic = 0;
    free(module);
}

static CUresult module_new(CUcontext context, const char *text, CUmodule *made)
{
    CUmodule module = calloc(1, sizeof *module);
    module->magic = MODULE_MAGIC;
    module->context = context;
    parse(module, text);
    CUresult result = module->lazy ? CUDA_SUCCESS : module_take(module);
    if (result) {
        module_free(module);
        return result;
    }
    module->next = context->modules;
    context->modules = module;
    *made = module;
    return CUDA_SUCCESS;
}

void modules_end(CUcontext context)
{
    for (CUmodule module = context->modules, next; module; module = next) {
        next = module->next;
        module_free(module);
    }
    context->modules = NULL;
}

static CUresult load(CUmodule *module, const void *image)
{
    GUARD_CONTEXT;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    return module_new(context, image, module);
}

static CUresult read_image(const char *path, char text[IMAGE_TEXT_MAX])
{
    FILE *file = fopen(path, "re");
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    text[fread(text, 1, IMAGE_TEXT_MAX - 1, file)] = 0;
    fclose(file);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    char text[IMAGE_TEXT_MAX];
    CUresult result = read_image(path, text);
    return result ? result : load(module, text);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return load(module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
    (void)count, (void)options, (void)values;
    return load(module, image);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return load(module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    GUARD;
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    for (CUmodule *link = &module->context->modules; *link; link = &(*link)->next)
        if (*link == module) {
            *link = module->next;
            break;
        }
    module_free(module);
    return CUDA_SUCCESS;
}

static CUresult find(CUmodule module, const char *name, CUfunction *function)
{
    for (CUfunction each = module->functions; each; each = each->next)
        if (!strcmp(each->name, name)) {
            *function = each;
            return module_take(module);
        }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    GUARD_CONTEXT;
    (void)context;
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    return find(module, name, function);
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
    (void)name;
    GUARD_CONTEXT;
    (void)context;
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = module_take(module);
    if (!module->globals)
        module->globals = address_new(GRANULE_BYTES, GRANULE_BYTES);
    if (address)
        *address = module->globals;
    if (size)
        *size = 4096;
    return result;
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
    *mode = 2; /* lazy */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    GUARD;
    *module = function->module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction function)
{
    GUARD;
    *name = function->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    GUARD;
    (void)function;
    *value = attribute == 0 ? 1024 : 0;
    return CUDA_SUCCESS;
}

/* --- libraries: not bound to a context until one of their kernels is used in it ----------------------------------- */

static CUresult library_new(CUlibrary *made, const char *text)
{
    GUARD;
    CUlibrary library = calloc(1, sizeof *library);
    struct CUmod_st shape = {.magic = MODULE_MAGIC};
    library->magic = MODULE_MAGIC;
    if (!strncmp(text, "module", 6))
        snprintf(library->text, sizeof library->text, "%s", text);
    parse(&shape, library->text);
    for (CUfunction each = shape.functions; each; each = each->next) {
        each->module = NULL;
        each->library = library;
    }
    library->functions = shape.functions;
    *made = library;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned jit_count,
                                  int *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return library_new(library, code);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values,
                                      unsigned jit_count, int *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    char text[IMAGE_TEXT_MAX];
    CUresult result = read_image(path, text);
    return result ? result : library_new(library, text);
}

static CUresult library_module(CUlibrary library, CUmodule *module)
{
    CUcontext context = context_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (library->loaded && context_known(library->context) && library->context->serial == library->context_serial) {
        *module = library->loaded;
        return CUDA_SUCCESS;
    }
    CUresult result = module_new(context, library->text, &library->loaded);
    if (result) {
        library->loaded = NULL;
        return result;
    }
    library->context = context;
    library->context_serial = context->serial;
    *module = library->loaded;
    return module_take(*module);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    CUmodule loaded = NULL;
    {
        GUARD;
        if (!library || library->magic != MODULE_MAGIC)
            return CUDA_ERROR_INVALID_HANDLE;
        if (library->loaded && context_known(library->context) && library->context->serial == library->context_serial)
            loaded = library->loaded;
        for (CUfunction function = library->functions, next; function; function = next) {
            next = function->next;
            free(function);
        }
        library->magic = 0;
        free(library);
    }
    return loaded ? cuModuleUnload(loaded) : CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    GUARD_CONTEXT;
    (void)context;
    return library_module(library, module);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    GUARD;
    for (CUfunction each = library->functions; each; each = each->next)
        if (!strcmp(each->name, name)) {
            *kernel = each;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
    GUARD;
    *count = 0;
    for (CUfunction each = library->functions; each; each = each->next)
        ++*count;
    return CUDA_SUCCESS;
}

CUresult function_ready(CUfunction function, CUfunction *loaded)
{
    CUmodule module = function->module;
    *loaded = function;
    if (!function->library)
        return module_take(module);
    CUresult result = library_module(function->library, &module);
    return result ? result : find(module, function->name, loaded);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    GUARD_CONTEXT;
    (void)context;
    return function_ready(kernel, function);
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    return cuFuncGetName(name, kernel);
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    GUARD;
    *library = kernel->library;
    return CUDA_SUCCESS;
}

uint64_t function_duration(CUfunction function, const unsigned grid[3], void **parameters)
{
    static uint64_t percent; /* the driver's lock is held */
    if (!percent)
        percent = environment_number("FAKE_GPU_SCALE_PERCENT", 100);
    uint64_t duration_ns = function->duration_ns;
    if (function->timing == PER_BLOCK)
        duration_ns *= (uint64_t)grid[0] * grid[1] * grid[2];
    if (function->timing == FIRST_PARAMETER && parameters && parameters[0])
        memcpy(&duration_ns, parameters[0], sizeof duration_ns);
    return duration_ns * percent / 100;
}
