/* plugin/offload/transfer.h - the copies between device and host: the down and up streams. */
#ifndef ZFI_TRANSFER_H
#define ZFI_TRANSFER_H

#include "instance.h"

/* [hook] Down: the gradients of a batch into their slots; signals batches. */
zf_status_t zfi_transfer_gradients(zf_instance_t *inst, uint64_t batch);
/* [hook] Down: both sums of a window that the device has rounded, into the pieces of the close; signals sums. */
zf_status_t zfi_transfer_sums(zf_instance_t *inst, const zfi_close_t *close);
/* [hook] Down: scalars and importance record of step t; signals down. */
zf_status_t zfi_transfer_record(zf_instance_t *inst, uint64_t t);
/* [hook] Up: the values of a close, chunk by chunk, into the device's ring; signals up. */
zf_status_t zfi_transfer_publish(zf_instance_t *inst, const zfi_close_t *close);

#endif
