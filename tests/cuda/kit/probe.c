/* SPDX-License-Identifier: Apache-2.0 */
/* probe.c - asks a driver what libzfplugin has to know of it, and nothing documents: which calls keep other threads'
 * calls waiting, and which streams stand behind one that waits.
 *
 *     probe [HOLD_MS]     ZT_PTX names driver.ptx; within ten seconds at 200 ms, the default
 *
 * Each line is printed as it is known. A stream waits for a word meanwhile, which is raised after HOLD_MS: what stood
 * for half of that or more counts as standing, and nothing waits for ever. Exit status 1: a call failed.
 *
 *     lock CALL: returned|WAITED | others: QUERY ... | STOOD: ...    the thread that calls waited for everything; other
 *                                                                    threads' calls stood behind it, or went on
 *     queue STREAM waits: WORK of others: none|STOOD: ...            work of streams behind it in a hardware queue
 *
 * The last line says how many of each stood. */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    N_POOL = 17,
    N_PRIORITIES = 6,
    MOST_STREAMS = N_POOL + N_PRIORITIES + 1,
    PAGE = 4096,
    SOME = 1 << 20,
    MANY = 64 << 20
};
enum { N_LAUNCHES = 3000 /* more than a queue takes */ };

static CUcontext context;
static CUmodule module;
static CUfunction work, fresh;
static char *image;
static struct {
    CUstream handle;
    char name[24];
} streams[MOST_STREAMS];
static int n_streams, n_stood[2];
static double hold_s = 0.2;
static _Atomic uint64_t *words; /* page-locked; the rest of that memory is for copies */
static CUdeviceptr words_at, memory;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(CUresult rc, const char *what) {
    if (rc == CUDA_SUCCESS)
        return;
    printf("probe: %s: error %d\n", what, (int)rc);
    exit(1);
}

static void pause_s(double s) { usleep((useconds_t)(s * 1e6)); }

/* ---- the device -------------------------------------------------------------------------------------------------- */

static void read_image(void) {
    const char *path = getenv("ZT_PTX");
    FILE *file = path ? fopen(path, "rb") : NULL;
    image = calloc(1, SOME);
    if (!file || !image) {
        printf("probe: ZT_PTX has to name driver.ptx\n");
        exit(1);
    }
    image[fread(image, 1, SOME - 1, file)] = 0;
    fclose(file);
}

static void add_stream(const char *name, int number, int priority) {
    snprintf(streams[n_streams].name, sizeof streams->name, "%s%d", name, number);
    need(cuStreamCreateWithPriority(&streams[n_streams].handle, CU_STREAM_NON_BLOCKING, priority), "cuStreamCreate");
    n_streams++;
}

/* One thread of a kernel, on the word at `place`. */
static CUresult launch(CUfunction function, CUstream stream, int place) {
    CUdeviceptr at = memory + (CUdeviceptr)place * PAGE;
    uint32_t n = 1;
    void *params[] = {&at, &n};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static void open_device(void) {
    CUdevice device;
    int least, greatest;
    need(cuInit(0), "cuInit");
    need(cuDeviceGet(&device, 0), "cuDeviceGet");
    need(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    need(cuModuleLoadData(&module, image), "cuModuleLoadData");
    need(cuModuleGetFunction(&work, module, "add_one"), "cuModuleGetFunction");
    need(cuModuleGetFunction(&fresh, module, "add_atomically"), "cuModuleGetFunction");
    need(cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
    for (int i = 0; i < N_POOL; i++)
        add_stream("pool", i, least);
    for (int i = 0; i < N_PRIORITIES && least - i >= greatest; i++)
        add_stream("priority", least - i, least - i);
    snprintf(streams[n_streams++].name, sizeof streams->name, "legacy");
    void *page = mmap(NULL, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(cuMemHostRegister(page, SOME, CU_MEMHOSTREGISTER_DEVICEMAP), "cuMemHostRegister");
    need(cuMemHostGetDevicePointer(&words_at, page, 0), "cuMemHostGetDevicePointer");
    words = page;
    need(cuMemAlloc(&memory, SOME), "cuMemAlloc");
    need(launch(work, streams[0].handle, 0), "a launch"); /* loads it */
    need(cuCtxSynchronize(), "cuCtxSynchronize");
}

static unsigned char *host_place(int place) { return (unsigned char *)(void *)words + (size_t)(1 + place) * PAGE; }

/* The stream waits for the word's next value, which is returned. */
static uint64_t hold(int stream) {
    uint64_t value = atomic_load(words) + 1;
    need(cuStreamWaitValue64(streams[stream].handle, words_at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue64");
    return value;
}

/* ---- calls that keep others waiting ------------------------------------------------------------------------------ */

static CUdeviceptr given; /* memory that is freed */
static void *locked;      /* memory that was page-locked */

static CUresult call_nothing(void) { return CUDA_SUCCESS; }
static CUresult call_alloc(void) { return cuMemAlloc(&(CUdeviceptr){0}, SOME); }
static CUresult call_free(void) { return cuMemFree(given); }
static CUresult call_host_alloc(void) { return cuMemHostAlloc(&(void *){NULL}, SOME, 0); }
static CUresult call_register(void) {
    locked = mmap(NULL, MANY / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return cuMemHostRegister(locked, MANY / 4, 0);
}
static CUresult call_unregister(void) { return cuMemHostUnregister(locked); }
static CUresult call_stream(void) { return cuStreamCreate(&(CUstream){NULL}, CU_STREAM_NON_BLOCKING); }
static CUresult call_event(void) { return cuEventCreate(&(CUevent){NULL}, CU_EVENT_DISABLE_TIMING); }
static CUresult call_load(void) { return cuModuleLoadData(&(CUmodule){NULL}, image); }
static CUresult call_first_launch(void) { return launch(fresh, streams[2].handle, 0); }
static CUresult call_fill_queue(void) {
    CUresult rc = CUDA_SUCCESS;
    for (int i = 0; i < N_LAUNCHES && !rc; i++)
        rc = launch(work, streams[0].handle, 0);
    return rc;
}
static CUresult call_copy(void) { return cuMemcpyDtoH(host_place(0), memory, PAGE); }
static CUresult call_context(void) { return cuCtxSynchronize(); }
static CUresult call_wait(void) { return cuStreamSynchronize(streams[0].handle); }

static const struct {
    const char *name;
    CUresult (*call)(void);
    size_t nbytes; /* of memory to free */
} callers[] = {
    {"nothing", call_nothing, 0},
    {"cuMemAlloc", call_alloc, 0},
    {"cuMemFree of 1 MiB", call_free, SOME},
    {"cuMemFree of 64 MiB", call_free, MANY},
    {"cuMemHostAlloc", call_host_alloc, 0},
    {"cuMemHostRegister", call_register, 0},
    {"cuMemHostUnregister", call_unregister, 0},
    {"cuStreamCreate", call_stream, 0},
    {"cuEventCreate", call_event, 0},
    {"cuModuleLoadData", call_load, 0},
    {"first launch of a kernel", call_first_launch, 0},
    {"launches that fill the waiting queue", call_fill_queue, 0},
    {"cuMemcpyDtoH", call_copy, 0},
    {"cuCtxSynchronize", call_context, 0},
    {"cuStreamSynchronize of the waiting one", call_wait, 0},
};
enum { N_CALLERS = sizeof callers / sizeof *callers };

/* Calls of other threads, each of which makes its own again and again, on a stream that nothing else uses. */
enum { QUERY, EVENT_QUERY, RECORD, COPY, LAUNCH, CONTEXT, N_OTHERS };
static const char *const others[N_OTHERS] = {"cuStreamQuery", "cuEventQuery",   "cuEventRecord",
                                             "cuMemcpyAsync", "cuLaunchKernel", "cuCtxPushCurrent"};
static _Atomic int is_over, n_begun;
static double longest[N_OTHERS], took;

static void call_other(int other, CUstream stream, CUevent event) {
    CUcontext popped;
    switch (other) {
    case QUERY:
        (void)cuStreamQuery(stream);
        break;
    case EVENT_QUERY:
        (void)cuEventQuery(event);
        break;
    case RECORD:
        (void)cuEventRecord(event, stream);
        break;
    case COPY:
        (void)cuMemcpyHtoDAsync(memory + (CUdeviceptr)other * PAGE, host_place(other), PAGE, stream);
        break;
    case LAUNCH:
        (void)launch(work, stream, other);
        break;
    default:
        (void)cuCtxPushCurrent(context);
        (void)cuCtxPopCurrent(&popped);
    }
}

static void *run_other(void *raw) {
    int other = (int)(intptr_t)raw;
    CUstream stream = streams[4 + other].handle;
    CUevent event;
    need(cuCtxPushCurrent(context), "cuCtxPushCurrent");
    need(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    need(cuEventRecord(event, stream), "cuEventRecord");
    atomic_fetch_add(&n_begun, 1);
    while (!atomic_load(&is_over)) {
        double began = now();
        call_other(other, stream, event);
        double s = now() - began;
        longest[other] = s > longest[other] ? s : longest[other];
        usleep(500);
    }
    (void)cuEventDestroy(event);
    return NULL;
}

static void *run_caller(void *raw) {
    need(cuCtxPushCurrent(context), "cuCtxPushCurrent");
    double began = now();
    need(callers[(intptr_t)raw].call(), callers[(intptr_t)raw].name);
    took = now() - began;
    return NULL;
}

static void print_locks(int caller) {
    int n = 0;
    printf("lock %s: %s, %.1f ms", callers[caller].name, took > hold_s / 2 ? "WAITED" : "returned", 1e3 * took);
    for (int i = 0; i < N_OTHERS; i++)
        if (longest[i] > hold_s / 2)
            printf("%s%s", n++ ? " " : " | STOOD: ", others[i]);
    n_stood[0] += n > 0;
    printf("%s\n", n ? "" : " | others went on");
}

static void ask_locks(int caller) {
    pthread_t threads[N_OTHERS], thread;
    memset(longest, 0, sizeof longest);
    atomic_store(&is_over, 0);
    atomic_store(&n_begun, 0);
    if (callers[caller].nbytes)
        need(cuMemAlloc(&given, callers[caller].nbytes), "cuMemAlloc");
    for (intptr_t i = 0; i < N_OTHERS; i++)
        if (pthread_create(&threads[i], NULL, run_other, (void *)i) != 0)
            exit(1);
    while (atomic_load(&n_begun) < N_OTHERS)
        usleep(500);
    uint64_t value = hold(0);
    if (pthread_create(&thread, NULL, run_caller, (void *)(intptr_t)caller) != 0)
        exit(1);
    pause_s(hold_s);
    atomic_store(words, value);
    pthread_join(thread, NULL);
    atomic_store(&is_over, 1);
    for (int i = 0; i < N_OTHERS; i++)
        pthread_join(threads[i], NULL);
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    print_locks(caller);
}

/* ---- streams that share a queue ---------------------------------------------------------------------------------- */

static const char *const works[] = {"kernels", "copies up", "copies down"};
enum { N_WORKS = sizeof works / sizeof *works };

static CUresult give_work(int kind, int stream) {
    CUdeviceptr there = memory + (CUdeviceptr)stream * PAGE;
    if (kind == 0)
        return launch(work, streams[stream].handle, stream);
    return kind == 1 ? cuMemcpyHtoDAsync(there, host_place(stream), PAGE, streams[stream].handle)
                     : cuMemcpyDtoHAsync(host_place(stream), there, PAGE, streams[stream].handle);
}

/* The waiting stream has the same work behind its wait. */
static void ask_queue(int waiting, int kind) {
    CUevent events[MOST_STREAMS];
    int n = 0;
    uint64_t value = hold(waiting);
    need(give_work(kind, waiting), works[kind]);
    for (int i = 0; i < n_streams; i++) {
        need(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        if (i != waiting)
            need(give_work(kind, i), works[kind]);
        need(cuEventRecord(events[i], streams[i].handle), "cuEventRecord");
    }
    pause_s(hold_s / 4);
    printf("queue %s waits: %s of others:", streams[waiting].name, works[kind]);
    for (int i = 0; i < n_streams; i++)
        if (i != waiting && cuEventQuery(events[i]) == CUDA_ERROR_NOT_READY)
            printf("%s %s", n++ ? "" : " STOOD:", streams[i].name);
    printf("%s\n", n ? "" : " none");
    n_stood[1] += n > 0;
    atomic_store(words, value);
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    for (int i = 0; i < n_streams; i++)
        (void)cuEventDestroy(events[i]);
}

int main(int argc, char **argv) {
    static const int waiting[] = {0, 1, N_POOL, N_POOL + 2};
    hold_s = argc > 1 && atof(argv[1]) > 0 ? 1e-3 * atof(argv[1]) : hold_s;
    setvbuf(stdout, NULL, _IOLBF, 0);
    read_image();
    open_device();
    for (int i = 0; i < N_CALLERS; i++)
        ask_locks(i);
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++)
        for (int kind = 0; kind < N_WORKS && waiting[i] < n_streams; kind++)
            ask_queue(waiting[i], kind);
    for (int kind = 0; kind < N_WORKS; kind++)
        ask_queue(n_streams - 1, kind); /* the legacy one */
    printf("STOOD: others' calls behind %d of %d calls, others' work behind %d waits of streams\n", n_stood[0],
           N_CALLERS, n_stood[1]);
    return 0;
}
