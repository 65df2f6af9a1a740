/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/machine.h - what `zf doctor` reads of a machine: the kernel's own files, and drivers that may be there.
 * Each function returns a JSON object of its own, with null where the system does not say; NULL: no memory. */
#pragma once

#include <jansson.h>
#include <stdint.h>

/* machine.c: {model, cpus, cores, quota_cpus, numa_nodes}: CPUs and cores inside the affinity mask, and the cgroup's
 * quota in CPUs. */
json_t *zf_machine_cpu(void);
/* {total_nbytes, available_nbytes, cgroup_limit_nbytes, memlock_nbytes, transparent_huge_pages, huge_pages} */
json_t *zf_machine_memory(void);
/* CPUs of the affinity mask, no more than the quota gives; at least 1. */
uint32_t zf_machine_n_threads(const json_t *cpu);

/* drivers.c: {found, version, devices: [{name, memory_nbytes, compute_capability}], why}: of CUDA's driver. doctor adds
 * {link: {up_gb_per_s, down_gb_per_s, both_gb_per_s}} or {link: {why}} to each device. */
json_t *zf_machine_cuda(void);
/* {found, library, version, mpirun}: of Open MPI, or another MPI */
json_t *zf_machine_mpi(void);
