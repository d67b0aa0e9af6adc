/* A CUDA driver for tests where there is no GPU: reserves addresses as the environment says, and for real. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100 };

static size_t number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static int reserve(size_t bytes) {
    void *found = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? OUT_OF_MEMORY : 0;
}

/* CUDA_INIT_GIB is what cuInit reserves; CUDA_INIT an error that it returns; CUDA_CRASH ends it. */
int cuInit(unsigned flags) {
    if (getenv("CUDA_CRASH")) abort();
    sleep((unsigned)number("CUDA_SLEEP_S", 0));
    int code = (int)number("CUDA_INIT", 0);
    return code ? code : reserve(number("CUDA_INIT_GIB", 1) << 30);
}
int cuDeviceGetCount(int *count) { *count = (int)number("CUDA_COUNT", 1); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &number; return reserve(1 << 30); }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = number("CUDA_TOTAL_GIB", 80) << 30; return 0; }
int cuMemAddressReserve(uint64_t *at, size_t size, size_t align, uint64_t wanted, unsigned long long flags) {
    return reserve(size);
}
int cuGetErrorName(int code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_NO_DEVICE";
    return 0;
}
