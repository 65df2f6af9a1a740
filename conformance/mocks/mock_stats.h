/* SPDX-License-Identifier: Apache-2.0 */
/* mock_stats.h - the mocks' zf.stats/1. */
#ifndef ZFC_MOCK_STATS_H
#define ZFC_MOCK_STATS_H

#include "zf/ext/stats.h"

extern const zf_stats_ext_t mock_stats_table;

#endif
