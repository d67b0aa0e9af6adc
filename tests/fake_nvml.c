/* A driver for tests where there is no GPU: answers what the environment says, NVML_WHAT_INDEX. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long ull;
enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

static ull number(const char *what, int index, ull otherwise) {
    char name[64];
    snprintf(name, sizeof name, index < 0 ? "NVML_%s" : "NVML_%s_%d", what, index);
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* A handle is its index + 1, since 0 is no handle. */
static int of(void *handle) { return (int)(long)handle - 1; }

int nvmlInitWithFlags(unsigned flags) {
    sleep((unsigned)number("SLEEP_S", -1, 0));
    return (int)number("INIT", -1, 0);
}
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "some error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)number("COUNT", -1, 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(long)(index + 1);
    return (int)number("LOST", (int)index, 0);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int index = -1;
    if (sscanf(uuid, "GPU-%d", &index) != 1 && sscanf(uuid, "MIG-%d", &index) != 1) return NOT_FOUND;
    sleep((unsigned)number("SAMPLE_SLEEP_S", index, 0));
    *handle = (void *)(long)(index + 1);
    return (int)number("LOST_BY_UUID", index, number("LOST", index, 0)); /* or only once a run samples it */
}
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) { snprintf(text, size, of(gpu) < 100 ? "GPU-%d" : "MIG-%d", of(gpu)); return 0; }
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) { snprintf(text, size, "NVIDIA Pretence"); return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.95"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = (int)number("CUDA", -1, 13000);
    return *version ? 0 : 12;
}
struct memory { ull total, free, used; };
static void memory(void *gpu, ull *total, ull *free, ull *used) {
    ull mib = 1 << 20;
    *total = number("TOTAL_MIB", of(gpu), 81559) * mib;
    *free = number("FREE_MIB", of(gpu), 81000) * mib;
    *used = number("USED_MIB", of(gpu), (*total - *free) / mib) * mib;
}
int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *m) { memory(gpu, &m->total, &m->free, &m->used); return 0; }
struct memory2 { unsigned version; ull total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory2 *m) { memory(gpu, &m->total, &m->free, &m->used); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) {
    *major = (int)number("CAPABILITY", of(gpu), 90) / 10;
    *minor = (int)number("CAPABILITY", of(gpu), 90) % 10;
    return 0;
}
int nvmlDeviceGetComputeMode(void *gpu, int *mode) { *mode = (int)number("MODE", of(gpu), 0); return 0; }
int nvmlDeviceGetMigMode(void *gpu, unsigned *now, unsigned *later) {
    *now = *later = (unsigned)number("MIG", of(gpu), 0);
    return 0;
}
/* Instance P of GPU G has the index 100 * (G + 1) + P; PARTS_G is how many it has, without number 1. */
int nvmlDeviceGetMaxMigDeviceCount(void *gpu, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, unsigned part, void **handle) {
    if (part == 1 || part > number("PARTS", of(gpu), 0)) return NOT_FOUND;
    *handle = (void *)(long)(100 * (of(gpu) + 1) + (int)part + 1);
    return part == 0 && !number("PARTS", of(gpu), 0) ? NOT_FOUND : 0;
}
int nvmlDeviceGetGpuInstanceId(void *gpu, unsigned *id) { *id = (unsigned)(of(gpu) % 100 + 1); return 0; }
int nvmlDeviceGetComputeInstanceId(void *gpu, unsigned *id) { *id = 0; return 0; }
int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int since, ull *count) { *count = number("ECC", of(gpu), 0); return 0; }
int nvmlDeviceGetRemappedRows(void *gpu, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
    *a = *b = 0;
    *failed = (unsigned)number("REMAP_FAILED", of(gpu), 0);
    *pending = (unsigned)number("PENDING", of(gpu), 0);
    return 0;
}
struct process { unsigned pid; ull bytes; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *found) {
    ull pid = number("PID", of(gpu), 0);
    if (!pid) { *count = 0; return 0; }
    if (!found) { *count = 1; return INSUFFICIENT_SIZE; }
    memset(found, 0, sizeof *found);
    found->pid = (unsigned)pid;
    found->bytes = number("PID_MIB", of(gpu), 40000) << 20;
    *count = 1;
    return 0;
}
struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *gpu, struct rates *found) {
    found->gpu = (unsigned)number("BUSY", of(gpu), 98);
    found->memory = 0;
    return number("NO_RATES", of(gpu), 0) ? NOT_SUPPORTED : 0;
}
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *mw) { *mw = (unsigned)number("POWER_MW", of(gpu), 690400); return (int)number("NO_POWER", of(gpu), 0); }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *mw) { *mw = 700000; return 0; }
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius) { *celsius = (unsigned)number("TEMPERATURE", of(gpu), 40); return 0; }
int nvmlDeviceGetTemperatureThreshold(void *gpu, int which, unsigned *celsius) { *celsius = 87; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, ull *bits) { *bits = number("SLOWED", of(gpu), 1); return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *gpu, unsigned *lanes) { *lanes = (unsigned)number("LANES", of(gpu), 16); return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *gpu, unsigned *lanes) { *lanes = 16; return 0; }
/* NVLINKS is how many links each GPU has, NVLINKS_UP how many of them are up; PEER where they end. */
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };
static void address(struct pci *found, ull bus) {
    memset(found, 0, sizeof *found);
    snprintf(found->address, sizeof found->address, "00000000:%02llX:00.0", bus);
}
int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *found) { address(found, (ull)of(gpu)); return 0; }
int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, unsigned *up) {
    ull links = number("NVLINKS", of(gpu), 0);
    *up = link < number("NVLINKS_UP", of(gpu), links);
    return link < links ? 0 : INVALID_ARGUMENT;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, struct pci *found) {
    address(found, number("PEER", of(gpu), (ull)(1 - of(gpu))));
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *level) { *level = (int)number("LEVEL", -1, 50); return 0; }
int nvmlDeviceGetP2PStatus(void *one, void *other, int what, int *status) { *status = (int)number("P2P", -1, 0); return 0; }
