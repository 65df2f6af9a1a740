/* SPDX-License-Identifier: Apache-2.0 */
/* harness/clock.h - a clock of the system in ns: CLOCK_MONOTONIC, or CLOCK_PROCESS_CPUTIME_ID and others for time on a
 * CPU. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t zc_clock_ns(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline uint64_t zc_now_ns(void) { return zc_clock_ns(CLOCK_MONOTONIC); }
