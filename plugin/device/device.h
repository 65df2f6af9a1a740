/* plugin/device/device.h - the device's side of a step as one table per backend.
 *
 * Every function enqueues one program on inst->stream and returns at once; what it reads must be filled before the
 * call. The CPU backend (cpu.c) pushes a command to a queue; a GPU backend launches kernels on the host's stream.
 * Programs run in order and follow SCHEDULE.md; the waits they make stand in instance.h. */
#ifndef ZFI_DEVICE_H
#define ZFI_DEVICE_H

#include "instance.h"

typedef struct zfi_device_ops {
    const char *name;
    /* First program of step t. Takes over the maps of a choice made at the end of choice_step (0: none). */
    zf_status_t (*begin)(zf_instance_t *inst, uint64_t t, uint64_t choice_step);
    /* Sums, statistics and compact copies of a batch of gradients; then signals shipped. */
    zf_status_t (*ship)(zf_instance_t *inst, uint64_t batch);
    /* applied, norm and s of step t; then signals finished. */
    zf_status_t (*finish)(zf_instance_t *inst, uint64_t t);
    /* Moments mode summed on the device: adds the gradients of step t to the sums of the open windows; then signals
     * summed. */
    zf_status_t (*sum)(zf_instance_t *inst, uint64_t t);
    /* The sums of a cohort's window as they travel; then signals rounded = number. */
    zf_status_t (*round_sums)(zf_instance_t *inst, uint32_t cohort, uint64_t number);
    /* The state of channels chosen at choice_step enters the compact arrays ... */
    zf_status_t (*enter_state)(zf_instance_t *inst, uint64_t choice_step);
    /* ... and becomes visible; then signals entered = choice_step + 1. */
    zf_status_t (*enter_visible)(zf_instance_t *inst, uint64_t choice_step);
    /* Updates the selected channels of matrices [first, end). */
    zf_status_t (*run_ahead)(zf_instance_t *inst, uint64_t t, uint32_t first, uint32_t end);
    /* Rounds the moments of the selected channels of a closing cohort as its replay rounds the host's. */
    zf_status_t (*round_moments)(zf_instance_t *inst, const zfi_close_t *close);
    /* Makes a close visible; signals merged chunk by chunk. */
    zf_status_t (*publish)(zf_instance_t *inst, const zfi_close_t *close);
    /* Last program of step t: its report; then signals stepped. */
    zf_status_t (*done)(zf_instance_t *inst, uint64_t t);
    /* Masters of a parameter := its visible values (everything else idle). */
    zf_status_t (*read_visible)(zf_instance_t *inst, uint32_t param);
    /* Compact state of a parameter := the host's (everything else idle). */
    zf_status_t (*reload_selected)(zf_instance_t *inst, uint32_t param);
    /* For checkpoints; everything else is idle, and these return when they are done. Visible values are bits in the
     * parameter's type, row-major, of elements [first, first + n) of a matrix. */
    void (*get_visible)(zf_instance_t *inst, uint32_t matrix, uint64_t first, uint64_t n, void *out);
    void (*put_visible)(zf_instance_t *inst, uint32_t matrix, const void *bits); /* the whole; NULL: what state says */
    /* Whether visible is round(w) everywhere: of the device's copy for selected channels, else of the host's. */
    int (*shows_state)(zf_instance_t *inst, uint32_t matrix);
    /* Moments mode: the same of the compact copies, array 0 = w, 1 = m, 2 = v, by the matrix's elements: writes those
     * of selected channels into out, which holds the host's; takes them from whole arrays, and n updates. */
    void (*get_selected)(zf_instance_t *inst, uint32_t matrix, int array, uint64_t first, uint64_t n, float *out);
    void (*put_selected)(zf_instance_t *inst, uint32_t matrix, float *const arrays[3], uint32_t n);
    /* ... of the sums of the open windows: array 0 = sum1, 1 = sum2; in is NULL, or what they become. */
    void (*move_sums)(zf_instance_t *inst, uint32_t matrix, int array, uint64_t first, uint64_t n, const float *in,
                      float *out);
    /* The maps of all matrices := the host's. */
    void (*put_maps)(zf_instance_t *inst);
    /* Enqueues: selected channels of a matrix are updated once more, with its gradient of step t from host memory. */
    zf_status_t (*catch_up)(zf_instance_t *inst, uint64_t t, uint32_t matrix, const void *grad);
    /* Reads the sums of a chunk's open windows as round_sums would leave them, without changing them; returns when they
     * are there (everything else idle). */
    void (*read_sums)(const zf_instance_t *inst, uint32_t chunk, void *out_sum1, void *out_sum2);
    /* Work enqueued on `to` waits for everything enqueued on `from`. */
    zf_status_t (*order)(zf_instance_t *inst, zfi_queue_t *from, zfi_queue_t *to);
} zfi_device_ops_t;

extern const zfi_device_ops_t zfi_device_cpu;

/* cpu_state.c */
void zfi_cpu_get_visible(zf_instance_t *inst, uint32_t matrix, uint64_t first, uint64_t n, void *out);
void zfi_cpu_put_visible(zf_instance_t *inst, uint32_t matrix, const void *bits);
int zfi_cpu_shows_state(zf_instance_t *inst, uint32_t matrix);
void zfi_cpu_put_maps(zf_instance_t *inst);

#endif
