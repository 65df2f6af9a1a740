/* plugin/deliver.h - gradients on their way from the host: batches, and what is still to be shipped. */
#ifndef ZFI_DELIVER_H
#define ZFI_DELIVER_H

#include "instance.h"

/* [hook] First program of the coming step, if it was not pushed yet. */
zf_status_t zfi_deliver_begin(zf_instance_t *inst);

/* [hook] Ships what was delivered in parts and never declared last, and pushes the open batch. */
zf_status_t zfi_deliver_finish(zf_instance_t *inst);

/* [hook] Pushes the open batch, if it holds anything. */
zf_status_t zfi_deliver_flush(zf_instance_t *inst);

/* [hook] Forgets what was delivered for the coming step (DISCARD), or what was stepped. */
void zfi_deliver_reset(zf_instance_t *inst);

#endif
