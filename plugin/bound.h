/* plugin/bound.h - what an instance has once parameters are bound: plan, memory, windows, masters, workers. */
#ifndef ZFI_BOUND_H
#define ZFI_BOUND_H

#include "instance.h"

/* [control] Makes all of it for these parameters, of which inst has none yet. Takes params over, also on failure,
 * after which inst has none again. reads_visible: masters are the visible values, else nothing. n_workers is set. */
zf_status_t zfi_bound_make(zf_instance_t *inst, zfi_param_t *params, uint32_t n_params, int reads_visible,
                           const char *origin, zf_error_t *err);
void zfi_bound_free(zf_instance_t *inst);

/* Masters := visible values. */
zf_status_t zfi_bound_read_masters(zf_instance_t *inst);

#endif
