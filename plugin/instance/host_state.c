/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/host_state.c - weights and moments by elements (contract in the header). */
#include "instance/host_state.h"

#include <string.h>

static void *moments_of(const zfi_run_t *run, zfi_host_array_t array) {
    return array == ZFI_STATE_M ? run->hs.m : run->hs.v;
}

void zfi_state_get(const zfi_run_t *run, zfi_host_array_t array, uint32_t matrix, uint64_t first, uint64_t n,
                   float *out) {
    for (uint64_t done = 0, m; done < n; done += m) {
        uint64_t at = zfi_state_stretch(&run->plan, &run->plan.matrices[matrix], first + done, n - done, &m);
        if (array == ZFI_STATE_W)
            memcpy(out + done, run->hs.w + at, m * sizeof *out);
        else
            zfi_moments_get(&run->engine->config, moments_of(run, array), at, m, out + done);
    }
}

void zfi_state_put(zfi_run_t *run, zfi_host_array_t array, uint32_t matrix, uint64_t first, uint64_t n,
                   const float *values) {
    for (uint64_t done = 0, m; done < n; done += m) {
        uint64_t at = zfi_state_stretch(&run->plan, &run->plan.matrices[matrix], first + done, n - done, &m);
        if (array == ZFI_STATE_W)
            memcpy(run->hs.w + at, values + done, m * sizeof *values);
        else
            zfi_moments_put(&run->engine->config, run->engine->kernels, moments_of(run, array), at, m, values + done);
    }
}
