/* plugin/device/cpu.h - what the files of the CPU backend share. */
#ifndef ZFI_DEVICE_CPU_H
#define ZFI_DEVICE_CPU_H

#include "device/device.h"

/* Pushes a program on inst->stream. */
zf_status_t zfi_cpu_push(zf_instance_t *inst, zfi_queue_fn fn, const void *args, size_t nbytes);

/* device.h: enter_state, enter_visible. */
zf_status_t zfi_cpu_enter_state(zf_instance_t *inst, uint64_t choice_step);
zf_status_t zfi_cpu_enter_visible(zf_instance_t *inst, uint64_t choice_step);

/* What the model reads at row r, column c of a matrix. */
float zfi_cpu_read_element(const zfi_place_t *place, uint64_t r, uint64_t c);

/* device.h: sum, round_sums, read_sums. */
zf_status_t zfi_cpu_sum(zf_instance_t *inst, uint64_t t);
zf_status_t zfi_cpu_round_sums(zf_instance_t *inst, uint32_t cohort, uint64_t number);
void zfi_cpu_read_sums(const zf_instance_t *inst, uint32_t chunk, void *out_sum1, void *out_sum2);

/* device.h: what checkpoints of moments mode read and write. */
void zfi_cpu_get_selected(zf_instance_t *inst, uint32_t matrix, int array, uint64_t first, uint64_t n, float *out);
void zfi_cpu_put_selected(zf_instance_t *inst, uint32_t matrix, float *const arrays[3], uint32_t n);
void zfi_cpu_move_sums(zf_instance_t *inst, uint32_t matrix, int array, uint64_t first, uint64_t n, const float *in,
                       float *out);

#endif
