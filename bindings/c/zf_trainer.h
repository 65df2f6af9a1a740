/* SPDX-License-Identifier: Apache-2.0 */
/* zf_trainer.h - libzfplugin for a trainer of plain float arrays, in as few lines as its own AdamW took.
 *
 * Model: the trainer owns its weights and gradients, arrays in row-major order, and goes on owning them. It names each
 * array once, binds them, and calls step() where it called its AdamW. This file fills in the structs of zf/plugin.h. A
 * trainer that needs more (own streams, accumulation in parts, other update rules) calls that table directly.
 *
 *     zf_trainer_t *opt = zf_trainer_new(NULL, "zf.ini", 0);
 *     zf_trainer_adamw(opt, 0.9, 0.999, 1e-8, 0.01);              for what is added from here on
 *     zf_trainer_add(opt, "fc.weight", w, g, 2, shape, 0);        ... one line per array
 *     if (zf_trainer_bind(opt) < 0)
 *         return fprintf(stderr, "%s\n", zf_trainer_error(opt)), 1;
 *     for (...) {
 *         forward and backward, as before
 *         if (zf_trainer_step(opt, lr) < 0) ...                   in place of the trainer's AdamW
 *     }
 *     zf_trainer_flush(opt);                                      before the weights are evaluated or written
 *     zf_trainer_free(opt);
 *
 * Overlapped (ZF_TRAINER_OVERLAP): zf_trainer_ready() hands a gradient over while backward goes on, and weights arrive
 * while the trainer does something else; zf_trainer_wait() before the next forward, or zf_trainer_wait_for() before
 * each of its layers.
 *
 * Matrices and vectors. Of the axes that follow the n_batch_axes leading ones, two or more make a matrix: [out, in], or
 * [out, everything after it]. In windows `topk_ratio` of a matrix's columns are up to date at every step, the rest once
 * per window. One axis or none makes a vector, which is up to date at every step: a bias [out], a table of L biases [L,
 * out] with n_batch_axes = 1. Without n_batch_axes [L, out] would be taken for one matrix.
 *
 * Errors. Functions return 0 or a negative status of zf/types.h or zf_loader.h. The first error stays, but for those of
 * save() and load() and those after which the same call can succeed (retryable in zf/plugin.h): every later call does
 * nothing and returns it, so a trainer may ignore what add() and ready() return and look at bind() and step(). The
 * weights are then those of the last step that went well. A step whose gradients are not all finite is no error: they
 * update nothing, zf_trainer_report() says so, and so does a warning on stderr, of the first such step, the second, the
 * fourth, the eighth ...
 *
 * Ownership. What add() names must live until zf_trainer_free(). Names, shapes and paths are copied.
 * Threads. ready(), ready_range() and wait_for() may be called by several threads at once. Any other function is called
 * while no thread is in one of this zf_trainer_t. The plugin's own threads read gradients and write weights only as
 * said at ready() and wait(). Memory. bindings/c/README.md has the formula. No call after the
 * first step() allocates, but load(). */
#ifndef ZF_TRAINER_H
#define ZF_TRAINER_H

#include "zf_loader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zf_trainer
    zf_trainer_t; /* opaque; every function takes NULL, which is what new() gives without memory */

#define ZF_TRAINER_OVERLAP 1u /* gradients and weights travel while the trainer computes: ready(), wait() */
#define ZF_TRAINER_NO_SYNC 2u /* save() does not wait for the disk: a machine that stops may lose its newest save */

/* Opens a plugin (path as in zf_loader_open; NULL: ZFPLUGIN_PATH or the installed one). config_path: an INI file, NULL
 * = every default. flags: ZF_TRAINER_..., or 0. Errors are said by zf_trainer_bind(). */
zf_trainer_t *zf_trainer_new(const char *plugin_path, const char *config_path, unsigned flags);

/* One key of the configuration, "section.key=value", over what the file says; before bind(). */
zf_status_t zf_trainer_set(zf_trainer_t *trainer, const char *key_value);

/* AdamW's constants of every array that is added from now on: beta1 and beta2 in [0, 1), eps > 0, weight_decay >= 0.
 * Before the first call: 0.9, 0.999, 1e-8, 0. Up to 64 different settings. */
zf_status_t zf_trainer_adamw(zf_trainer_t *trainer, double beta1, double beta2, double eps, double weight_decay);

/* A group of its own for every array that is added from now on, which may have a learning rate of its own (rate()).
 * Returns its number; what is added before the first call is group 0. */
int32_t zf_trainer_group(zf_trainer_t *trainer);

/* The learning rate of a group (finite, >= 0), from the next step on, in place of the one that step() is given. */
zf_status_t zf_trainer_rate(zf_trainer_t *trainer, int32_t group, double lr);

/* The element types of every array that is added from now on: zf_dtype_float32(), zf_dtype_bfloat16() or
 * zf_dtype_float16(), of weights and of gradients. Before the first call: float32. The plugin keeps fp32 masters. */
zf_status_t zf_trainer_dtypes(zf_trainer_t *trainer, zf_dtype_t weights, zf_dtype_t gradients);

/* Clips the global norm of all gradients, from the next step on; 0 = off, which is the default. */
zf_status_t zf_trainer_clip(zf_trainer_t *trainer, double max_norm);

/* Multiplies all gradients by it (finite, > 0), before they are clipped, from the next step on: 1 / the loss scale, or
 * 1 / the number of micro-batches. 0 = 1, which is the default. */
zf_status_t zf_trainer_unscale(zf_trainer_t *trainer, double unscale);

/* Names one array of weights w and one of gradients g, dense, row-major, of shape [ndim] in elements, ndim 0..8, in the
 * types that dtypes() said. name: unique, 1..255 bytes; it stands in messages and checkpoints. n_batch_axes: see
 * "Matrices" above. Returns the array's number (0, 1, ...), for ready(), or a negative status. Before bind(). */
int32_t zf_trainer_add(zf_trainer_t *trainer, const char *name, void *w, void *g, int32_t ndim, const int64_t *shape,
                       int32_t n_batch_axes);

/* Plans and allocates all memory, and copies the weights, which hold their first values by now. Once. */
zf_status_t zf_trainer_bind(zf_trainer_t *trainer);

/* The gradient of this array is complete for this step; it must stay as it is until step() returns. With OVERLAP it is
 * read meanwhile, else within this call. An array that was not announced is handed over by step(). Once per step and
 * array: with accumulation, in the last micro-batch. */
zf_status_t zf_trainer_ready(zf_trainer_t *trainer, int32_t array);

/* The same of the matrices [first, first + n) of an array with batch axes: for a trainer whose backward ends one layer
 * after the other. Ranges of one step adjoin, from either end; step() refuses an array of which some are missing. */
zf_status_t zf_trainer_ready_range(zf_trainer_t *trainer, int32_t array, int32_t first, int32_t n);

/* One update of every array with this learning rate (finite, >= 0). When it returns, gradients may be overwritten, and,
 * without OVERLAP, weights read. Gradients that are not finite update nothing; what earlier steps left due still
 * arrives. Returns ZF_SUBMITTED. */
zf_status_t zf_trainer_step(zf_trainer_t *trainer, double lr);

/* Optional, after the step before and before the first ready(): the learning rate that step() is expected to have. Then
 * weights whose gradients are ready may be updated while backward goes on. Another is as good, but saves nothing. */
zf_status_t zf_trainer_announce(zf_trainer_t *trainer, double lr);

/* In place of step(): drops what ready() announced since the last one, as if this backward had not been. For a trainer
 * that skips a step (a loss that is not finite, a batch thrown away). Gradients may be overwritten afterwards. */
zf_status_t zf_trainer_discard(zf_trainer_t *trainer);

/* With OVERLAP, before weights are read: waits until this step's are in place. Without it: nothing. A trainer that
 * asked for OVERLAP and has never waited when its third step comes is warned. */
zf_status_t zf_trainer_wait(zf_trainer_t *trainer);

/* The same of the matrices [first, first + n) of one array, the others of which go on arriving; 0, 0: of the whole
 * array. For a trainer whose forward begins one layer after the other. */
zf_status_t zf_trainer_wait_for(zf_trainer_t *trainer, int32_t array, int32_t first, int32_t n);

/* The trainer wrote weights itself, all of them or some: they count from now on. Call flush() before it writes, so that
 * no update is lost. A step before this call returns ZF_ERR_OVERWRITTEN and keeps its gradients: step() again after it,
 * or discard(). With OVERLAP a step does not wait to look: it is taken, and the call after it returns that error. A
 * weight that is NaN or Inf is refused, ZF_ERR_NONFINITE, with its array's name: write others, and call this again. */
zf_status_t zf_trainer_params_changed(zf_trainer_t *trainer);

/* Every update still under way arrives: the weights are those to evaluate, write, keep. Training may go on. */
zf_status_t zf_trainer_flush(zf_trainer_t *trainer);

/* The whole training state, to and from a directory (zf/ext/state.h): a run that loads it goes on to the same bits.
 * note: text of the trainer's own that goes with it (an epoch, a place in the data), up to 64 KiB of UTF-8, or NULL.
 * load() comes after bind() with the same arrays, and writes the weights too; it drops what ready() announced. Errors
 * of these two do not stay: what fails has changed nothing, and training may go on, save elsewhere, or begin afresh. */
zf_status_t zf_trainer_save(zf_trainer_t *trainer, const char *directory, const char *note);
zf_status_t zf_trainer_load(zf_trainer_t *trainer, const char *directory);

/* The place of a run: the steps that were taken, those of the checkpoint that was loaded included; skipped ones count,
 * discarded ones do not. The note of that checkpoint, valid until the next load() or free(); "" if there is none. */
uint64_t zf_trainer_steps(const zf_trainer_t *trainer);
const char *zf_trainer_note(const zf_trainer_t *trainer);

/* The first error, or the newest that does not stay, as one line of text for the user; "" if there was none. Valid
 * until free(). */
const char *zf_trainer_error(const zf_trainer_t *trainer);

/* The newest finished step as of the last step(): applied or not, gradient norm, counters. Never NULL. */
const zf_step_report_t *zf_trainer_report(const zf_trainer_t *trainer);

/* The report of bind(): memory in bytes, and elements. Never NULL. */
const zf_bind_report_t *zf_trainer_bind_report(const zf_trainer_t *trainer);

/* The plugin behind it, for calls that are not here; NULL before bind(). */
const zf_plugin_t *zf_trainer_plugin(const zf_trainer_t *trainer);
zf_instance_t *zf_trainer_instance(const zf_trainer_t *trainer);

/* Ends what is under way and frees everything. Weights keep what they have: flush() first, or a warning says how many
 * updates are lost. */
void zf_trainer_free(zf_trainer_t *trainer);

#ifdef __cplusplus
}
#endif
#endif
