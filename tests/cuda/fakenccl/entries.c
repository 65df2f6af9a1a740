/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakenccl/entries.c - NCCL's functions, and communicators. */
#define _GNU_SOURCE
#include "double.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOOK_US = 200 };

typedef struct fn_id {
    char internal[128];
} fn_id_t;

typedef struct fn_config_arg { /* ncclConfig_t of 2.14 */
    size_t size;
    unsigned magic, version;
    int blocking;
} fn_config_arg_t;

#define EXPORTED __attribute__((visibility("default")))
#define ENTRY EXPORTED int

ENTRY ncclGetVersion(int *out) {
    *out = (int)fc_config.nccl_version;
    return FN_SUCCESS;
}

EXPORTED const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "operation in progress"};
    return result >= 0 && result < (int)(sizeof texts / sizeof *texts) ? texts[result] : "unknown result code";
}

EXPORTED const char *ncclGetLastError(fn_comm_t *comm) {
    (void)comm;
    return "";
}

ENTRY ncclGetUniqueId(fn_id_t *out) {
    static uint64_t n;
    const char *folder = getenv("TMPDIR");
    memset(out, 0, sizeof *out);
    snprintf(out->internal, sizeof out->internal, "%.60s/fakenccl-%d-%llu-%llx", folder ? folder : "/tmp",
             (int)getpid(), (unsigned long long)__atomic_add_fetch(&n, 1, __ATOMIC_RELAXED),
             (unsigned long long)fc_now_ns());
    return FN_SUCCESS;
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static size_t shared_nbytes(int n_ranks) {
    return sizeof(fn_shared_t) + (size_t)n_ranks * (size_t)n_ranks * sizeof(fn_mailbox_t);
}

/* Whoever comes first makes the file; it is zero where nobody has written. */
static fn_shared_t *attach(const char *path, int n_ranks) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *memory = MAP_FAILED;
    if (file < 0)
        return NULL;
    if (ftruncate(file, (off_t)shared_nbytes(n_ranks)) == 0)
        memory = mmap(NULL, shared_nbytes(n_ranks), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

void fn_comm_drop(fn_comm_t *comm) {
    if (__atomic_sub_fetch(&comm->n_refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    munmap(comm->shared, shared_nbytes(comm->n_ranks));
    free(comm);
}

int fn_comm_is_ended(const fn_comm_t *comm) { return __atomic_load_n(&comm->is_ended, __ATOMIC_ACQUIRE); }
void fn_comm_set(fn_comm_t *comm, fn_result_t state) {
    __atomic_store_n(&comm->state, (int32_t)state, __ATOMIC_RELEASE);
}

uint64_t fn_random(const fn_comm_t *comm) { return fc_random() >> comm->rank; }

int fn_does(int rank, const char *wrong, uint64_t number) {
    const char *text = getenv("FAKENCCL_FAULT"); /* RANK:KIND:N */
    char kind[16] = "";
    unsigned long long at = 1;
    int of = -1;
    return text && sscanf(text, "%d:%15[a-z]:%llu", &of, kind, &at) >= 2 && of == rank && strcmp(kind, wrong) == 0 &&
           at == number;
}

static int is_poisoned_by_use(const fn_comm_t *comm, const char *function) {
    if (__atomic_load_n(&comm->state, __ATOMIC_ACQUIRE) != FN_IN_PROGRESS)
        return 0;
    fc_finding("%s is called while an earlier call on the communicator is in progress", function);
    return 1;
}

/* Until all ranks have counted, or this one has given up. */
static void await_all(const fn_comm_t *comm, const uint32_t *count) {
    while (!fn_comm_is_ended(comm) && __atomic_load_n(count, __ATOMIC_ACQUIRE) < (uint32_t)comm->n_ranks)
        fc_pause_us(LOOK_US);
}

/* [a thread of its own] */
static void *meet(void *raw) {
    fn_comm_t *comm = raw;
    uint32_t never = 0;
    await_all(comm, fn_does(comm->rank, "init", 1) ? &never : &comm->shared->n_attached);
    unlink(comm->path); /* those who have mapped it keep it */
    fn_comm_set(comm, FN_SUCCESS);
    fn_comm_drop(comm);
    return NULL;
}

/* [a thread of its own] */
static void *part(void *raw) {
    fn_comm_t *comm = raw;
    await_all(comm, &comm->shared->n_finalized);
    fn_comm_set(comm, FN_SUCCESS);
    fn_comm_drop(comm);
    return NULL;
}

static int begin(fn_comm_t *comm, void *(*fn)(void *comm)) {
    pthread_t thread;
    __atomic_add_fetch(&comm->n_refs, 1, __ATOMIC_RELAXED);
    fn_comm_set(comm, FN_IN_PROGRESS);
    if (pthread_create(&thread, NULL, fn, comm) != 0)
        return FN_SYSTEM_ERROR;
    pthread_detach(thread);
    return FN_IN_PROGRESS;
}

ENTRY ncclCommInitRankConfig(fn_comm_t **out, int n_ranks, fn_id_t id, int rank, const fn_config_arg_t *config) {
    *out = NULL;
    if (!fc_current()) {
        fc_finding("ncclCommInitRankConfig: the calling thread has no device");
        return FN_UNHANDLED_CUDA_ERROR;
    }
    if (n_ranks < 1 || n_ranks > FN_MAX_RANKS || rank < 0 || rank >= n_ranks || config->magic != 0xcafebeefu ||
        config->size < sizeof *config || config->blocking)
        return FN_INVALID_ARGUMENT;
    fn_comm_t *comm = calloc(1, sizeof *comm);
    if (!comm)
        return FN_SYSTEM_ERROR;
    *comm = (fn_comm_t){.rank = rank, .n_ranks = n_ranks, .context = fc_current(), .n_refs = 1};
    snprintf(comm->path, sizeof comm->path, "%.111s", id.internal);
    comm->shared = attach(comm->path, n_ranks);
    if (!comm->shared) {
        free(comm);
        return FN_SYSTEM_ERROR;
    }
    __atomic_add_fetch(&comm->shared->n_attached, 1, __ATOMIC_ACQ_REL);
    *out = comm;
    return begin(comm, meet);
}

ENTRY ncclCommGetAsyncError(fn_comm_t *comm, int *out) {
    *out = __atomic_load_n(&comm->state, __ATOMIC_ACQUIRE);
    return FN_SUCCESS;
}

ENTRY ncclCommFinalize(fn_comm_t *comm) {
    if (is_poisoned_by_use(comm, __func__))
        return FN_INVALID_USAGE;
    __atomic_add_fetch(&comm->shared->n_finalized, 1, __ATOMIC_ACQ_REL);
    return begin(comm, part);
}

static int end(fn_comm_t *comm) {
    __atomic_store_n(&comm->is_ended, 1, __ATOMIC_RELEASE);
    fn_comm_drop(comm);
    return FN_SUCCESS;
}

ENTRY ncclCommDestroy(fn_comm_t *comm) {
    if (__atomic_load_n(&comm->n_refs, __ATOMIC_ACQUIRE) > 1 && is_poisoned_by_use(comm, __func__))
        return FN_INVALID_USAGE;
    return end(comm);
}

ENTRY ncclCommAbort(fn_comm_t *comm) { return end(comm); }

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static __thread int depth;
static __thread fn_work_t *grouped;

/* The group's, or one of its own. NULL: it may not be. */
static fn_work_t *work_for(fn_comm_t *comm, CUstream stream, const char *function) {
    fn_work_t *work = grouped;
    if (!work && is_poisoned_by_use(comm, function))
        return NULL;
    if (!work)
        work = calloc(1, sizeof *work);
    if (!work || (work->comm && (work->comm != comm || work->stream != stream)))
        return NULL;
    work->comm = comm;
    work->stream = stream;
    if (depth)
        grouped = work;
    return work;
}

static void add(fn_work_t *work, char kind, int is_send, int peer, const void *at, size_t n) {
    if (work->n_items < FN_MAX_ITEMS)
        work->items[work->n_items++] = (fn_item_t){
            .is_send = is_send, .peer = peer, .kind = (uint32_t)kind, .at = (uint64_t)(uintptr_t)at, .nbytes = n};
    else
        fc_finding("a group of more than %d messages", FN_MAX_ITEMS);
}

/* In place only: that is all that libzfplugin asks for. */
ENTRY ncclAllGather(const void *send, void *recv, size_t n, int type, fn_comm_t *comm, CUstream stream) {
    if (type != FN_UINT8 || send != (unsigned char *)recv + (size_t)comm->rank * n)
        return FN_INVALID_ARGUMENT;
    fn_work_t *work = work_for(comm, stream, __func__);
    if (!work)
        return FN_INVALID_USAGE;
    for (int r = 0; r < comm->n_ranks; r++) {
        if (r == comm->rank)
            continue;
        add(work, 'g', 1, r, send, n);
        add(work, 'g', 0, r, (unsigned char *)recv + (size_t)r * n, n);
    }
    if (depth)
        return FN_SUCCESS;
    return (int)fn_work_launch(work);
}

/* Sums only, one in a group. */
ENTRY ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, fn_comm_t *comm, CUstream stream) {
    uint64_t nbytes = n * fn_type_nbytes(type);
    const unsigned char *parts = send;
    if (nbytes == 0 || op != 0)
        return FN_INVALID_ARGUMENT;
    if (recv != parts + (uint64_t)comm->rank * nbytes && (unsigned char *)recv + nbytes > parts &&
        (unsigned char *)recv < parts + (uint64_t)comm->n_ranks * nbytes)
        fc_finding("ncclReduceScatter: the result lies on what is sent, and is not this rank's part of it");
    fn_work_t *work = work_for(comm, stream, __func__);
    if (!work || work->sum.parts)
        return FN_INVALID_USAGE;
    work->sum = (fn_sum_t){calloc((size_t)comm->n_ranks, nbytes), (uint64_t)(uintptr_t)send, (uint64_t)(uintptr_t)recv,
                           nbytes, type};
    if (!work->sum.parts)
        return FN_SYSTEM_ERROR;
    for (int r = 0; r < comm->n_ranks; r++) {
        if (r == comm->rank)
            continue;
        add(work, 'r', 1, r, parts + (uint64_t)r * nbytes, nbytes);
        add(work, 'r', 0, r, work->sum.parts + (uint64_t)r * nbytes, nbytes);
        work->items[work->n_items - 1].is_summed = 1;
    }
    if (depth)
        return FN_SUCCESS;
    return (int)fn_work_launch(work);
}

ENTRY ncclGroupStart(void) {
    depth++;
    return FN_SUCCESS;
}

ENTRY ncclGroupEnd(void) {
    fn_work_t *work = grouped;
    if (depth == 0)
        return FN_INVALID_USAGE;
    if (--depth > 0 || !work)
        return FN_SUCCESS;
    grouped = NULL;
    return (int)fn_work_launch(work);
}

static int point_to_point(int is_send, const void *at, size_t n, int type, int peer, fn_comm_t *comm, CUstream stream) {
    if (type != FN_UINT8 || peer < 0 || peer >= comm->n_ranks || peer == comm->rank)
        return FN_INVALID_ARGUMENT;
    if (depth == 0) {
        fc_finding("ncclSend or ncclRecv outside of a group: two ranks that both send first stand still");
        return FN_INVALID_USAGE;
    }
    fn_work_t *work = work_for(comm, stream, is_send ? "ncclSend" : "ncclRecv");
    if (!work)
        return FN_INVALID_USAGE;
    add(work, 's', is_send, peer, at, n);
    return FN_SUCCESS;
}

ENTRY ncclSend(const void *send, size_t n, int type, int peer, fn_comm_t *comm, CUstream stream) {
    return point_to_point(1, send, n, type, peer, comm, stream);
}

ENTRY ncclRecv(void *recv, size_t n, int type, int peer, fn_comm_t *comm, CUstream stream) {
    return point_to_point(0, recv, n, type, peer, comm, stream);
}
