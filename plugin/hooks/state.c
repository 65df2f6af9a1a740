/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/state.c - the hooks of zf.state/1 (contract in zf/ext/state.h). */
#include "state/state.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "base/struct.h"
#include "base/timeline.h"
#include "base/utf8.h"
#include "hooks/changed.h"
#include "hooks/drain.h"
#include "hooks/hooks.h"
#include "hooks/parts.h"
#include "hooks/reduce.h"
#include "hooks/stream.h"
#include "ranks/ranks.h"
#include "schedule/interval.h"
#include "schedule/window.h"

enum { MOST_NOTE = 65536 };

/* Reads the arguments; allowed: flags of this call. */
static zf_status_t read_args(const zf_state_args_t *given, uint32_t allowed, zf_state_args_t *out, zf_error_t *err) {
    zf_status_t st = ZFI_READ_CHAINED(out, given, zf_state_args_t, err);
    if (!st && (out->flags & ~allowed))
        st = zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "state", "flags 0x%x; this call knows 0x%x", out->flags, allowed);
    return st;
}

static zf_status_t check_note(const char *note, zf_error_t *err) {
    if (!note)
        return ZF_OK;
    if (strnlen(note, MOST_NOTE + 1) > MOST_NOTE)
        return zfi_error(err, ZF_ERR_ARGUMENT, "state", "the note has more than %d bytes", MOST_NOTE);
    if (!zfi_utf8_is_text(note, strlen(note)))
        return zfi_error(err, ZF_ERR_ARGUMENT, "state", "the note is not UTF-8");
    return ZF_OK;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* The words of rank 0 to the others before it has written anything; what they were given must be the same. */
typedef struct opening {
    uint64_t file_nbytes;
    uint32_t number, note_crc, name_crc, reserved0;
} opening_t;

static zf_status_t check_opening(const opening_t *all, uint32_t n_ranks, zf_error_t *err) {
    for (uint32_t r = 1; r < n_ranks; r++)
        if (all[r].note_crc != all[0].note_crc || all[r].name_crc != all[0].name_crc)
            return zfi_error_by(
                err, ZF_ERR_RANKS, r, "state",
                "rank %" PRIu32
                " and rank 0 differ in %s of save: every rank must make the same calls with the same arguments",
                r, all[r].note_crc != all[0].note_crc ? "the note" : "the name at the end of the path");
    return ZF_OK;
}

/* All that meet save in one way. */
static zf_status_t compare_ways(zfi_together_t *together, const zf_state_args_t *args, zf_error_t *err) {
    const uint32_t own = args->flags << 1 | (args->store != NULL);
    uint32_t *all;
    zf_status_t st = zfi_together_tell(together, ZFI_AMONG_MET, ZF_OK, &own, sizeof own, (void **)&all, err);
    for (uint32_t r = 1; r < together->meeting.n_ranks && !st; r++)
        if (all[r] != all[0])
            st = zfi_error_by(err, ZF_ERR_RANKS, r, "state",
                              "rank %" PRIu32 " and rank 0 differ in the flags of save, or in who has a store: every "
                              "rank must make the same calls with the same arguments",
                              r);
    zfi_together_drop(together, all);
    return st;
}

/* The checksum of the last name of a path. Ranks may reach its directory by other paths; that it is the same one shows
 * when they join it. */
static uint32_t name_crc(const char *path) {
    size_t end = path ? strlen(path) : 0, first;
    while (end > 0 && path[end - 1] == '/')
        end--;
    for (first = end; first > 0 && path[first - 1] != '/'; first--) {
    }
    return zfi_crc32(0, path + first, end - first);
}

/* Rank 0 makes the directory that all of them write in. */
static zf_status_t open_together(zfi_together_t *together, const zf_state_args_t *args, zfi_store_t *store,
                                 uint64_t *file_nbytes, zf_error_t *err) {
    opening_t own = {.file_nbytes = *file_nbytes,
                     .name_crc = name_crc(args->path),
                     .note_crc = args->note ? zfi_crc32(0, args->note, strlen(args->note)) : 0};
    opening_t *all;
    zf_status_t st = together->rank == 0 ? zfi_store_open_save(args, store, err) : ZF_OK;
    own.number = store->number;
    st = zfi_together_tell(together, ZFI_AMONG_OWN, st, &own, sizeof own, (void **)&all, err);
    if (!st)
        st = check_opening(all, together->n_ranks, err);
    if (!st && together->rank != 0)
        st = zfi_store_join_save(args, all[0].number, store, err);
    if (!st)
        *file_nbytes = all[0].file_nbytes;
    zfi_together_drop(together, all);
    return zfi_together_meet(together, st, err);
}

static void share(zfi_together_t *together, zfi_store_t *store) {
    store->is_shared = !together->is_alone;
    store->tick = zfi_together_tick;
    store->tick_arg = together;
}

/* Ends every window as a load of the checkpoint finds it, so that both go on alike. Released, it is put off to resume.
 */
static zf_status_t close_windows(zf_instance_t *inst, zf_error_t *err) {
    zfi_run_t *run = inst->run;
    int is_any_open = zfi_window_is_any_open(&run->windows);
    zfi_interval_resume(&run->plan, &run->clock, &run->sel);
    if (inst->state != ZFI_STATE_RELEASED)
        return is_any_open ? zfi_close_windows(inst, err) : ZF_OK;
    inst->closes_at_resume |= is_any_open;
    return ZF_OK;
}

static void say_sync(zf_instance_t *inst, const char *path) {
    if (inst->has_said_sync++)
        return;
    zfi_log(&inst->engine, ZF_LOG_WARN, "state",
            "the mount of %s does not sync directories (fsync is refused there): files are synced, but a machine that "
            "stops right after a save may come up without its newest checkpoint",
            path);
}

/* The instance rests. Failures of one rank are every rank's. */
static zf_status_t write_state(zf_instance_t *inst, const zf_state_args_t *args, zfi_together_t *together,
                               zf_state_report_t *report, zf_error_t *err) {
    zfi_store_t store = ZFI_STORE_CLOSED;
    zfi_save_args_t how = {.note = args->note, .file_nbytes = zfi_state_file_nbytes(), .together = together};
    zf_status_t st = ZF_OK;
    if (zfi_together_meets(together) && !args->store)
        st = open_together(together, args, &store, &how.file_nbytes, err);
    else
        st = zfi_together_meet(together, zfi_store_open_save(args, &store, err), err);
    if (!st && zfi_together_meets(together))
        share(together, &store);
    if (!st && !(args->flags & ZF_STATE_KEEP_OPEN)) /* what is refused has changed nothing */
        st = close_windows(inst, err);
    if (!st)
        st = zfi_state_write(inst->run, &how, &store, report, err);
    if (store.lacks_dir_sync)
        say_sync(inst, args->path);
    if (together->rank != 0)
        zfi_store_close(&store);
    else if (st)
        zfi_store_cancel(&store);
    return st;
}

static zf_status_t check_own(const zf_state_args_t *args, zf_error_t *err) {
    if (!(args->flags & ZF_STATE_OWN) || args->store)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_ARGUMENT, "state",
                     "ZF_STATE_OWN is for stores; in a directory each rank writes or reads its part anyway");
}

/* The arguments, before anything is done. */
static zf_status_t read_save_args(const zf_state_args_t *given, const zf_state_report_t *out_report,
                                  zf_state_args_t *out, zf_error_t *err) {
    zf_status_t st = read_args(given, ZF_STATE_KEEP_OPEN | ZF_STATE_NO_SYNC | ZF_STATE_OWN, out, err);
    if (!st)
        st = zfi_struct_check_out(out_report, "zf_state_report_t", err);
    if (!st)
        st = check_note(out->note, err);
    return st ? st : check_own(out, err);
}

static zf_status_t save(zf_instance_t *inst, const zf_state_args_t *given, zf_state_report_t *out_report,
                        zf_error_t *err) {
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_state_args_t args;
    zfi_together_t together;
    uint64_t start = zfi_now_ns();
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING | ZFI_IN_RELEASED, "state", err);
    if (st)
        return st;
    zfi_parts_open(inst->run, &together);
    st = read_save_args(given, out_report, &args, err);
    if (!st && !(args.flags & ZF_STATE_KEEP_OPEN))
        st = zfi_fetch_check_released(inst, "state", err);
    st = zfi_reduce_meet_always(inst, st, "save", err);
    st = zfi_parts_meet(inst, st ? NULL : args.path, &together, st, err);
    if (!st && args.store && zfi_together_meets(&together)) {
        together.is_apart = (args.flags & ZF_STATE_OWN) != 0;
        together.is_alone = !together.is_apart;
    }
    if (together.is_alone) {
        together.rank = 0;
        together.n_ranks = 1;
    }
    if (!st)
        st = zfi_drain(inst, err);
    report.drain_ns = zfi_now_ns() - start;
    if (!st)
        st = zfi_overwritten_look(inst, "state", err); /* a load would lose what it finds */
    st = zfi_together_meet(&together, st, err);
    if (!st && zfi_together_meets(&together))
        st = compare_ways(&together, &args, err);
    if (!st)
        st = write_state(inst, &args, &together, &report, err);
    if (!st)
        zfi_struct_write(out_report, &report, sizeof report);
    return zfi_hook_end(inst, st, err);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef zf_status_t (*reading_fn)(zfi_store_t *store, void *arg, zf_error_t *err);

/* Reads again where the file system has no locks, and a save removed what was being read: what it put there. A thread
 * that is cancelled in here would leave files open, and locked. */
static zf_status_t read_checkpoint(const zf_state_args_t *args, reading_fn fn, void *arg, zf_error_t *err) {
    zfi_store_t store;
    int cancel_state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    zf_status_t st = zfi_store_open_load(args, &store, err);
    if (!st) {
        do
            st = fn(&store, arg, err);
        while ((st == ZF_ERR_STORAGE || st == ZF_ERR_CHECKPOINT) && zfi_store_begin_again(&store));
        zfi_store_close(&store);
    }
    pthread_setcancelstate(cancel_state, NULL);
    return st;
}

typedef struct load_args {
    zf_instance_t *inst;
    uint32_t flags;
    zfi_together_t together;
    zf_state_report_t report;
} load_args_t;

static zf_status_t read_into(zfi_store_t *store, void *arg, zf_error_t *err) {
    load_args_t *to = arg;
    return zfi_state_read_into(&to->inst->run, store, to->flags, &to->together, &to->report, err);
}

/* Every rank opens the checkpoint by itself, once: what one of them did again the others would not. */
static zf_status_t read_together(const zf_state_args_t *args, load_args_t *to, zf_error_t *err) {
    zfi_store_t store = ZFI_STORE_CLOSED;
    zf_status_t st = zfi_together_meet(&to->together, zfi_store_open_load(args, &store, err), err);
    store.tick = zfi_together_tick;
    store.tick_arg = &to->together;
    if (!st)
        st = read_into(&store, to, err);
    zfi_store_close(&store);
    return st;
}

/* Until the instance is drained. */
static zf_status_t prepare_load(zf_instance_t *inst, const zf_state_args_t *given, zf_state_report_t *out_report,
                                zf_state_args_t *out, zf_error_t *err) {
    zf_status_t st = read_args(given, ZF_STATE_PARTIAL | ZF_STATE_CONTINUE | ZF_STATE_OWN, out, err);
    if (!st)
        st = check_own(out, err);
    if (!st)
        st = zfi_struct_check_out(out_report, "zf_state_report_t", err);
    if (!st)
        st = zfi_reduce_check_rest(inst, "state", err);
    if (!st)
        st = zfi_fetch_check_released(inst, "state", err);
    zfi_reduce_forget_events(inst->run); /* whatever was done before, a load replaces */
    st = zfi_reduce_meet_always(inst, st, "load", err);
    if (!st)
        st = zfi_drain(inst, err);
    if (!st && (out->flags & ZF_STATE_PARTIAL)) /* what the checkpoint lacks keeps its masters */
        st = zfi_overwritten_look(inst, "state", err);
    return st;
}

static zf_status_t load(zf_instance_t *inst, const zf_state_args_t *given, zf_state_report_t *out_report,
                        zf_error_t *err) {
    load_args_t to = {.inst = inst, .report = {.struct_size = sizeof to.report}};
    zf_state_args_t args = {0};
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "state", err);
    if (st)
        return st;
    zfi_parts_open(inst->run, &to.together);
    st = prepare_load(inst, given, out_report, &args, err);
    st = zfi_parts_meet(inst, st ? NULL : args.path, &to.together, st, err);
    st = zfi_parts_compare(inst, &args, &to.together, st, err);
    to.flags = args.flags;
    to.together.is_apart = (args.flags & ZF_STATE_OWN) != 0;
    st = zfi_together_meet(&to.together, st, err);
    if (!st && zfi_together_meets(&to.together))
        st = read_together(&args, &to, err);
    else if (!st)
        st = read_checkpoint(&args, read_into, &to, err);
    if (!st) {
        zfi_stream_settle(inst);
        zfi_reduce_forget_events(inst->run);
        inst->state = ZFI_STATE_QUIESCED;
        zfi_struct_write(out_report, &to.report, sizeof to.report);
    }
    return zfi_hook_end(inst, st, err);
}

/* ---- without an instance ----------------------------------------------------------------------------------------- */

static zf_status_t read_note(zfi_store_t *store, void *arg, zf_error_t *err) { return zfi_index_read(store, arg, err); }

static zf_status_t note(const zf_state_args_t *given, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_state_args_t args;
    zfi_saved_t saved;
    zf_status_t st = !buf || !nbytes ? zfi_error(err, ZF_ERR_ARGUMENT, "state", "buf is NULL or empty")
                                     : read_args(given, 0, &args, err);
    if (!st)
        st = read_checkpoint(&args, read_note, &saved, err);
    if (st)
        return st;
    if (nbytes > saved.note_nbytes)
        nbytes = saved.note_nbytes + 1u;
    memcpy(buf, saved.note, nbytes - 1);
    buf[nbytes - 1] = '\0';
    zfi_saved_free(&saved);
    return ZF_OK;
}

static zf_status_t check_all(zfi_store_t *store, void *arg, zf_error_t *err) {
    zfi_saved_t saved;
    zf_status_t st = zfi_state_check(store, &saved, err);
    if (st)
        return st;
    zfi_state_report(&saved, store, arg);
    zfi_saved_free(&saved);
    return ZF_OK;
}

static zf_status_t verify(const zf_state_args_t *given, zf_state_report_t *out_report, zf_error_t *err) {
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_state_args_t args;
    zf_status_t st = zfi_struct_check_out(out_report, "zf_state_report_t", err);
    if (!st)
        st = read_args(given, 0, &args, err);
    if (!st)
        st = read_checkpoint(&args, check_all, &report, err);
    if (!st)
        zfi_struct_write(out_report, &report, sizeof report);
    return st;
}

static zf_status_t weights_of(zfi_store_t *store, const zfi_saved_t *saved, const char *name, float *out,
                              uint64_t n_elems, zf_error_t *err) {
    const zfi_saved_param_t *param = saved->params;
    while (param < saved->params + saved->n_params && strcmp(param->name, name) != 0)
        param++;
    if (param == saved->params + saved->n_params)
        return zfi_error(err, ZF_ERR_PARAM, "state", "the checkpoint has no parameter \"%.200s\"", name);
    if (param->n_elems != n_elems)
        return zfi_error(err, ZF_ERR_SHAPE, "state", "\"%s\" has %" PRIu64 " elements, n_elems = %" PRIu64, param->name,
                         param->n_elems, n_elems);
    return zfi_state_read_all(store, saved, param, ZFI_SAVED_W, out, err);
}

typedef struct weights_args {
    const char *param;
    float *out;
    uint64_t n_elems;
} weights_args_t;

static zf_status_t read_weights(zfi_store_t *store, void *arg, zf_error_t *err) {
    const weights_args_t *of = arg;
    zfi_saved_t saved;
    zf_status_t st = zfi_index_read(store, &saved, err);
    if (st)
        return st;
    st = weights_of(store, &saved, of->param, of->out, of->n_elems, err);
    zfi_saved_free(&saved);
    return st;
}

static zf_status_t weights(const zf_state_args_t *given, const char *param, float *out, uint64_t n_elems,
                           zf_error_t *err) {
    weights_args_t of = {param, out, n_elems};
    zf_state_args_t args;
    zf_status_t st = !param || !out ? zfi_error(err, ZF_ERR_ARGUMENT, "state", "%s is NULL", param ? "out" : "param")
                                    : read_args(given, 0, &args, err);
    return st ? st : read_checkpoint(&args, read_weights, &of, err);
}

const zf_state_ext_t zfi_state_ext = {.struct_size = sizeof zfi_state_ext,
                                      .save = save,
                                      .load = load,
                                      .note = note,
                                      .verify = verify,
                                      .weights = weights};
