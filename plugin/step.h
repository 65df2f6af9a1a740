/* plugin/step.h - pieces of a step that quiesce pushes too. */
#ifndef ZFI_STEP_H
#define ZFI_STEP_H

#include "instance.h"

/* [hook] A close becomes visible: pushes it on the device stream and tells the up stream, which may be waiting for
 * room. */
zf_status_t zfi_push_publish(zf_instance_t *inst, const zfi_close_t *close);

/* [hook] The state of channels chosen at inst->waiting_choice enters the compact arrays, if that was not pushed before.
 */
zf_status_t zfi_push_enter_state(zf_instance_t *inst);

/* [hook] The workers' part of a close, and its transfers. */
zf_status_t zfi_push_work(zf_instance_t *inst, const zfi_close_t *close);

/* [hook] Moments mode summed on the device: the sums of a cohort's window, ready for the close that follows. */
zf_status_t zfi_push_round_sums(zf_instance_t *inst, uint32_t cohort);

#endif
