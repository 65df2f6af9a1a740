/* plugin/offload/affinity.h - which cores the workers may use. */
#ifndef ZFI_AFFINITY_H
#define ZFI_AFFINITY_H

#include <pthread.h>
#include <stdint.h>

/* Physical cores in this process's affinity mask (one per set of hyper-threads), at most what its cgroup's CPU quota
 * pays for; at least 1. */
uint32_t zfi_affinity_n_cores(void);

/* Pins thread i to the i-th physical core from the end of the mask, where there are more cores than threads and at
 * least four: on smaller machines the scheduler knows better. Failure is harmless and ignored. */
void zfi_affinity_pin(const pthread_t *threads, uint32_t n);

#endif
