/* tests/plugin/bare.h - an instance without threads: configuration, parameters, plan, memory and clocks, so that
 * modules of the engine can be called one by one on the test's own thread. */
#ifndef ZT_BARE_H
#define ZT_BARE_H

#include "instance.h"
#include "rig.h"

/* Parses config, builds params, plan and memory, starts the clocks. Ends the test on an error. */
zf_instance_t *zt_bare_create(const zt_rig_t *rig, const char *config);
void zt_bare_destroy(zf_instance_t *inst);

/* A timeline that everyone has passed. */
void zt_bare_pass(zfi_timeline_t *timeline);

#endif
