/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h - the processes that train one model together, under mpirun.
 *
 * Every rank holds the whole model, starts from the same weights and draws the same rows; of each micro-batch it
 * computes a share (host_ranks_share). Its loss is divided by the rows of the whole step, so that the SUM over the
 * ranks is the gradient of the whole step's mean loss: that sum is the plugin's work, through "zf.collectives/1". What
 * the trainer itself exchanges is the loss, once per step, over a communicator of its own.
 *
 * MPI is opened at run time from libzf_mpi.so (bindings/mpi), so a trainer of one process needs none. */
#ifndef ZF_CONFORMANCE_HOST_RANKS_H
#define ZF_CONFORMANCE_HOST_RANKS_H

#include "glue/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct host_ranks host_ranks_t;

/* mpi_path: libzf_mpi.so. Collective: every process that mpirun started calls it; once per process. */
int host_ranks_open(const char *mpi_path, host_ranks_t **out, glue_error_t *err);

/* Collective, when the plugin's instance is destroyed. After a failure it is left out and the process ends with _exit:
 * the other ranks may be gone. NULL is legal. */
void host_ranks_close(host_ranks_t *ranks);

/* NULL is legal for ranks from here on: one process. */
size_t host_ranks_rank(const host_ranks_t *ranks);
size_t host_ranks_size(const host_ranks_t *ranks);

/* Which of n rows are this rank's: *out_n rows from *out_first on. Shares differ by one row at most. */
void host_ranks_share(const host_ranks_t *ranks, size_t n, size_t *out_first, size_t *out_n);

/* *value becomes the sum over the ranks, added in the order of ranks: the same bits on all. Collective. A rank that
 * does not come within two minutes is an error that names it. */
int host_ranks_sum(host_ranks_t *ranks, double *value, glue_error_t *err);

/* zf_host_t.get_extension of a host with ranks; ctx is not used. */
const void *host_ranks_extension(void *ctx, const char *id);

#endif
