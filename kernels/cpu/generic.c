/* SPDX-License-Identifier: Apache-2.0 */
/* generic.c - the table for any CPU; baseline.h says how its vectors are made. */
#include "baseline.h"

#include "replay.h"
#include "rows.h"
#include "run_ahead.h"
#include "stats.h"

#define ISA_NAME "generic"
#define ISA_TABLE zfi_kernels_generic
#include "table.inc.h"
