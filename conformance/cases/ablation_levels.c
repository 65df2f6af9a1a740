/* SPDX-License-Identifier: Apache-2.0 */
/* ablation_levels.c - the factors and their levels (ablation.h). The first level of a factor need not be the default:
 * whichever the plugin's defaults are, the level that equals them shares the default's runs. */
#include "ablation.h"

#define S(n) "zenflow.update_interval=" #n
#define LAG(n) "zenflow.publish_lag=" #n
#define MEAN "zenflow.deferred=mean"

static const za_level_t levels[] = {
    {"update_interval", "S = 1", {S(1)}},
    {"update_interval", "S = 4", {S(4)}},
    {"update_interval", "S = 8", {S(8)}},
    {"update_interval", "S = 16", {S(16)}},
    {"update_interval", "auto", {"zenflow.update_interval=auto"}},
    {"publish_lag", "0, S = 4", {LAG(0), S(4)}},
    {"publish_lag", "1, S = 4", {LAG(1), S(4)}},
    {"publish_lag", "0, S = 8", {LAG(0), S(8)}},
    {"publish_lag", "1, S = 8", {LAG(1), S(8)}},
    {"publish_lag", "0, S = 16", {LAG(0), S(16)}},
    {"predict", "off, S = 4", {"zenflow.predict=off", S(4)}},
    {"predict", "auto, S = 4", {"zenflow.predict=auto", S(4)}},
    {"predict", "off, S = 8", {"zenflow.predict=off", S(8)}},
    {"predict", "auto, S = 8", {"zenflow.predict=auto", S(8)}},
    {"predict", "off, S = 16", {"zenflow.predict=off", S(16)}},
    {"predict", "auto, S = 16", {"zenflow.predict=auto", S(16)}},
    {"deferred", "replay, S = 4", {"zenflow.deferred=replay", S(4)}},
    {"deferred", "mean, S = 4", {MEAN, S(4)}},
    {"deferred", "replay, S = 8", {"zenflow.deferred=replay", S(8)}},
    {"deferred", "mean, S = 8", {MEAN, S(8)}},
    {"stagger", "true, S = 4", {"zenflow.stagger=true", S(4)}},
    {"stagger", "false, S = 4", {"zenflow.stagger=false", S(4)}},
    {"stagger", "true, S = 8", {"zenflow.stagger=true", S(8)}},
    {"stagger", "false, S = 8", {"zenflow.stagger=false", S(8)}},
    {"full_warm_up_rounds", "1", {"zenflow.full_warm_up_rounds=1"}},
    {"full_warm_up_rounds", "10", {"zenflow.full_warm_up_rounds=10"}},
    {"full_warm_up_rounds", "50", {"zenflow.full_warm_up_rounds=50"}},
    {"full_warm_up_rounds", "200", {"zenflow.full_warm_up_rounds=200"}},
    {"moments_dtype", "float32", {"host.moments_dtype=float32"}},
    {"moments_dtype", "bfloat16", {"host.moments_dtype=bfloat16"}},
    {"moments_dtype", "bfloat16_stochastic", {"host.moments_dtype=bfloat16_stochastic"}},
    {"topk_ratio", "0", {"zenflow.topk_ratio=0"}},
    {"topk_ratio", "0.01", {"zenflow.topk_ratio=0.01"}},
    {"topk_ratio", "0.05", {"zenflow.topk_ratio=0.05"}},
    {"topk_ratio", "0.1", {"zenflow.topk_ratio=0.1"}},
    {"topk_ratio", "0.2", {"zenflow.topk_ratio=0.2"}},
};

_Static_assert(sizeof levels / sizeof *levels <= ZA_MAX_LEVELS, "ZA_MAX_LEVELS holds all levels");

size_t za_n_levels(void) { return sizeof levels / sizeof *levels; }
const za_level_t *za_level(size_t i) { return &levels[i]; }
