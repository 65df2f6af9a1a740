/* SPDX-License-Identifier: Apache-2.0 */
/* zf_mpi.h - "zf.collectives/0" over MPI, for C hosts that train on several ranks.
 *
 *   zf_mpi_t *mpi;
 *   if (zf_mpi_open(NULL, &mpi, text, sizeof text) != 0) ...          // MPI_COMM_WORLD, initialised if need be
 *   ... zf_host_t.get_extension: return zf_mpi_extension(mpi, id);
 *   ... zf->destroy(instance);
 *   zf_mpi_close(mpi);
 *
 * MPI must be initialised with MPI_THREAD_MULTIPLE, since the plugin exchanges on threads of its own, one per lane,
 * while the host may use MPI too; zf_mpi_open does so where it is not initialised yet. Messages travel on duplicates of
 * the host's communicator. Four instances may live at once, created and destroyed in one order on all ranks. Once an
 * exchange has failed, or was given up by a destroy in the middle of a step, the next create is refused. */
#ifndef ZF_MPI_H
#define ZF_MPI_H

#include <stddef.h>
#include <stdint.h>

#include "zf/ext/draft/collectives.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zf_mpi zf_mpi_t;

/* comm: the address of an MPI_Comm, or NULL for MPI_COMM_WORLD. 0; or -1 with a sentence in text. Collective: every
 * rank of the communicator calls it. */
int zf_mpi_open(const void *comm, zf_mpi_t **out, char *text, size_t nbytes);

/* Process group `number` (zf_param_decl_t.reduce_group, zf_create_args_t.norm_group): of those that give the same
 * color, in the order of their keys, as MPI_Comm_split. Group 0 is everyone until it is split, too, and the groups of
 * two levels (zf/ext/draft/collectives.h) are made of it when an instance first asks for them. Collective: every
 * rank of zf_mpi_open's communicator calls it, in one order, while no instance lives. 0; -1 and a sentence in text. */
int zf_mpi_split(zf_mpi_t *mpi, uint32_t number, int color, int key, char *text, size_t nbytes);

/* After the instances that use it. Collective, but after a failed exchange: then MPI is left as it is, and the process
 * should end with _exit. Finalises MPI where zf_mpi_open has initialised it. NULL is legal. */
void zf_mpi_close(zf_mpi_t *mpi);

/* In group 0. */
uint32_t zf_mpi_rank(const zf_mpi_t *mpi);
uint32_t zf_mpi_size(const zf_mpi_t *mpi);

/* The table for zf_host_t.get_extension, where id names it; else NULL. Valid until zf_mpi_close. */
const void *zf_mpi_extension(const zf_mpi_t *mpi, const char *id);

#ifdef __cplusplus
}
#endif
#endif
