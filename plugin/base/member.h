/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/member.h - where a process is in a group of processes. */
#pragma once

#include <stdint.h>

enum { ZFI_MAX_GROUPS = 16 }; /* that a process is in, the data-parallel one included */

typedef struct zfi_member {
    uint32_t rank, n_ranks;
} zfi_member_t;
