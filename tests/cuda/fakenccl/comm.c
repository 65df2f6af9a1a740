/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakenccl/comm.c - communicators: the file that ranks share, and what becomes of one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "double.h"

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

fn_comm_t *fn_comm_new(int n_ranks, const fn_id_t *id, int rank, int is_blocking) {
    fn_comm_t *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->rank = rank;
    comm->n_ranks = n_ranks;
    comm->is_blocking = is_blocking;
    comm->n_refs = 1;
    comm->state = FN_IN_PROGRESS;
    snprintf(comm->path, sizeof comm->path, "%.111s", id->internal);
    comm->shared = attach(comm->path, n_ranks);
    if (!comm->shared) {
        free(comm);
        return NULL;
    }
    __atomic_add_fetch(&comm->shared->n_attached, 1, __ATOMIC_ACQ_REL);
    return comm;
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

fn_mailbox_t *fn_mailbox(const fn_comm_t *comm, int from, int to) {
    return &comm->shared->mailboxes[from * comm->n_ranks + to];
}
