/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c - opens libzf_mpi.so, divides rows among the ranks, adds the losses up (ranks.h). */
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

#include "zf/ext/collectives.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of libzf_mpi.so (zf_mpi.h). */
typedef int (*open_fn)(const void *comm, void **out, char *text, size_t nbytes);
typedef const void *(*extension_fn)(const void *mpi, const char *id);
typedef void (*close_fn)(void *mpi);

struct host_ranks {
    void *library; /* stays open: MPI does not like to be unmapped */
    void *plugin_mpi, *own_mpi;
    close_fn close;
    const zf_collectives_ext_t *plugin_table, *own_table;
    uint32_t rank, size;
    uint64_t n_sums;
    double values[]; /* [size] of the sum in hand */
};

static host_ranks_t *opened; /* by host_ranks_open; a host's log context leaves no room for it */

const void *host_ranks_extension(void *ctx, const char *id) {
    (void)ctx;
    return opened != NULL && strcmp(id, ZF_EXT_COLLECTIVES) == 0 ? opened->plugin_table : NULL;
}

/* Opens MPI once: a communicator of its own. */
static const zf_collectives_ext_t *open_mpi(void *library, const char *path, void **out, glue_error_t *err) {
    char text[256] = "zf_mpi_open or zf_mpi_extension is missing";
    open_fn open = (open_fn)dlsym(library, "zf_mpi_open");
    extension_fn extension = (extension_fn)dlsym(library, "zf_mpi_extension");

    if (open == NULL || extension == NULL || open(NULL, out, text, sizeof text) != 0) {
        (void)glue_fail(err, "%s: %s", path, text);
        return NULL;
    }
    return extension(*out, ZF_EXT_COLLECTIVES);
}

int host_ranks_open(const char *mpi_path, host_ranks_t **out, glue_error_t *err) {
    host_ranks_t found = {.library =
                              dlopen(mpi_path, RTLD_NOW | RTLD_GLOBAL)}; /* Open MPI's parts look for its symbols */
    host_ranks_t *ranks;

    if (found.library == NULL)
        return glue_fail(err, "--mpi: %s", dlerror());
    found.close = (close_fn)dlsym(found.library, "zf_mpi_close");
    found.plugin_table = open_mpi(found.library, mpi_path, &found.plugin_mpi, err);
    if (found.plugin_table == NULL)
        return -1;
    found.own_table = open_mpi(found.library, mpi_path, &found.own_mpi, err);
    if (found.own_table == NULL)
        return -1;
    if (found.close == NULL || found.own_table->group(found.own_table->ctx, 0, &found.rank, &found.size, NULL) != ZF_OK)
        return glue_fail(err, "%s: does not say which rank this is", mpi_path);
    ranks = calloc(1, sizeof *ranks + found.size * sizeof ranks->values[0]);
    if (ranks == NULL)
        return glue_fail(err, "ranks: out of memory for %u ranks", (unsigned)found.size);
    memcpy(ranks, &found, sizeof found);
    *out = opened = ranks;
    return 0;
}

void host_ranks_close(host_ranks_t *ranks) {
    if (ranks == NULL)
        return;
    opened = NULL;
    ranks->close(ranks->own_mpi);
    ranks->close(ranks->plugin_mpi); /* the first to be opened: it ends MPI */
    free(ranks);
}

size_t host_ranks_rank(const host_ranks_t *ranks) { return ranks != NULL ? ranks->rank : 0; }
size_t host_ranks_size(const host_ranks_t *ranks) { return ranks != NULL ? ranks->size : 1; }

void host_ranks_share(const host_ranks_t *ranks, size_t n, size_t *out_first, size_t *out_n) {
    size_t rank = host_ranks_rank(ranks), size = host_ranks_size(ranks);

    *out_first = n * rank / size;
    *out_n = n * (rank + 1) / size - *out_first;
}

/* Polls a request until it is over. The pause is short beside a step and leaves the processor to the other ranks. */
static int wait_for(const zf_collectives_ext_t *table, uint64_t request, glue_error_t *err) {
    const struct timespec pause = {.tv_nsec = 20000};
    struct timespec start, now;
    zf_status_t st;

    (void)clock_gettime(CLOCK_MONOTONIC, &start);
    while ((st = table->test(table->ctx, request, NULL)) == ZF_IN_PROGRESS) {
        enum { DEADLINE_S = 120 };

        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - start.tv_sec > DEADLINE_S)
            return glue_fail(err, "ranks: a rank has not sent its loss for %d s", (int)DEADLINE_S);
        (void)nanosleep(&pause, NULL);
    }
    return st == ZF_OK ? 0 : glue_fail(err, "ranks: the losses could not be exchanged (status %d)", (int)st);
}

int host_ranks_sum(host_ranks_t *ranks, double *value, glue_error_t *err) {
    zf_collective_t call = {.struct_size = sizeof call, .kind = ZF_COLLECTIVE_ALL_GATHER, .bucket = ZF_NO_ID};
    uint64_t request;
    double sum = 0.0;

    if (ranks == NULL)
        return 0;
    ranks->values[ranks->rank] = *value;
    call.number = ranks->n_sums++;
    call.recv = ranks->values;
    call.nbytes = sizeof ranks->values[0];
    if (ranks->own_table->start(ranks->own_table->ctx, &call, &request, NULL) != ZF_OK)
        return glue_fail(err, "ranks: the losses could not be exchanged");
    if (wait_for(ranks->own_table, request, err) != 0)
        return -1;
    for (uint32_t i = 0; i < ranks->size; i++)
        sum += ranks->values[i];
    *value = sum;
    return 0;
}
