/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/guard.h - whether the host wrote weights unannounced ([zenflow] on_overwrite).
 *
 * Model: the device keeps a digest of each matrix's visible values (kernels/digest.h), which every kernel that writes
 * some of them moves along. A check reads them all and compares. It comes before anything that the host may have
 * written is overwritten: at the start of a step's visible writes, before what a fetch publishes, before FLUSH, save,
 * export. A parameter in which something differs is foreign from then on: no kernel writes it until its values are
 * accepted (params_changed). Digests follow what was written, so nothing is lost to a check that comes late: the
 * difference stays. With on_overwrite = ask checks come when the host asks for them only, and what they find is
 * forgotten again unless the host wants it left alone.
 *
 * Cost: one read of the visible values per step on the device, and of those that are published at a fetch; 16 bytes of
 * device memory per matrix. */
#pragma once

#include "instance/run.h"

/* [any-thread] Whether this run keeps digests: not with on_overwrite = off; and whether it compares them by itself. */
int zfi_guard_is_on(const zfi_device_state_t *dev);
int zfi_guard_checks(const zfi_device_state_t *dev);

/* [hook] The device stream, where the run checks by itself: all visible values; or those of matrices [first, end)
 * that n closes are about to write. */
void zfi_guard_check(const zfi_device_side_t *side);
void zfi_guard_check_closes(const zfi_device_side_t *side, const zfi_close_t *closes, uint32_t n, uint32_t first,
                            uint32_t end);

/* [hook] Parameters known to be foreign; the first of id >= `from`, side->n_params where there is none. */
uint64_t zfi_guard_n_foreign(zfi_engine_t *engine);
uint32_t zfi_guard_next_foreign(const uint8_t *overwritten, uint32_t n_params, uint32_t from);

/* [control] The device stream: whether parameters [first, end) show what the plugin wrote; where no step checks,
 * whatever was found before; and none of them is foreign, until the next check. The device is idle. */
void zfi_guard_look(const zfi_device_side_t *side, uint32_t first, uint32_t end);
void zfi_guard_forget(const zfi_device_side_t *side, uint32_t first, uint32_t end);

/* [control] The device stream: what parameters [first, end) show counts as written by the plugin; none is foreign. The
 * host writes none of it before the stream has come here: the caller waits for the stream. */
void zfi_guard_accept(const zfi_device_side_t *side, uint32_t first, uint32_t end);
/* [control] The same of matrices [first, end) of one parameter. Its other matrices are looked at, where the run checks
 * by itself or the parameter was foreign. */
void zfi_guard_accept_matrices(const zfi_device_side_t *side, uint32_t param, uint32_t first, uint32_t end);
/* [control] A run that begins, or was filled: the same of all, and done when it returns. */
zf_status_t zfi_guard_start(const zfi_device_side_t *side);
