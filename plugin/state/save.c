/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/save.c - writes a checkpoint (format in state/index.h).
 *
 * Parameters go into safetensors files of about a gibibyte each, the arrays of one after another; within a file wide
 * types come first, so that every tensor is aligned. Sizes and headers are known before the first byte is written;
 * checksums are taken on the way and go into the index, which is written last.
 *
 * Several ranks write the same files, each its share (state/spread.h), and the first of them writes the index once all
 * have synced. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "ranks/gathering.h"
#include "ranks/importance.h"
#include "state/header.h"
#include "state/spread.h"
#include "state/state.h"

static const uint64_t FILE_NBYTES = (uint64_t)1 << 30;
enum { HEADER_SHARE = 4096 }; /* what a tensor counts beside its bytes, so that a header stays below its limit */

typedef struct writer {
    zfi_state_io_t io;
    zfi_saved_t saved;
    zfi_store_t *store;
    unsigned char *block;     /* [ZFI_STATE_BLOCK] */
    uint32_t *file_first;     /* [n_files + 1] parameters of a file */
    uint64_t most;            /* bytes of a file, about */
    unsigned char *whole;     /* a matrix, where it is gathered (spread.h); else NULL */
    zfi_together_t *together; /* the other ranks */
    int is_told;              /* what failed was said at a meeting: all of them know */
} writer_t;

static int is_first(const writer_t *writer) { return writer->together->rank == 0; }

/* Whether what the ranks do not share out is written by this one. */
static int writes_rest(const writer_t *writer) { return is_first(writer) || writer->together->is_apart; }

/* ---- layout ------------------------------------------------------------------------------------------------------ */

static uint64_t param_nbytes(const writer_t *writer, const zfi_saved_param_t *param) {
    uint64_t n = 0;
    if (writer->whole)
        return 3 * sizeof(float) * param->param.n_elems;
    for (uint32_t i = 0; i < param->n_tensors; i++)
        n += param->tensors[i].nbytes;
    return n;
}

/* Tests ask for small files through the environment, so that little makes several. */
uint64_t zfi_state_file_nbytes(void) {
    const char *asked = getenv("ZF_STATE_FILE_NBYTES");
    uint64_t nbytes = asked ? strtoull(asked, NULL, 10) : 0;
    return nbytes ? nbytes : FILE_NBYTES;
}

static zf_status_t deal_files(writer_t *writer) {
    zfi_saved_t *saved = &writer->saved;
    uint64_t nbytes = 0;
    writer->file_first = calloc(saved->n_params + 2, sizeof *writer->file_first);
    saved->files = calloc(saved->n_params + 1, sizeof *saved->files);
    if (!writer->file_first || !saved->files)
        return ZF_ERR_MEMORY;
    saved->n_files = 1;
    for (uint32_t i = 0; i < saved->n_params; i++) {
        if (nbytes >= writer->most) {
            writer->file_first[saved->n_files++] = i;
            nbytes = 0;
        }
        nbytes +=
            param_nbytes(writer, &saved->params[i]) + (writer->whole ? 1 : saved->params[i].n_tensors) * HEADER_SHARE;
        for (uint32_t k = 0; k < saved->params[i].n_tensors; k++)
            saved->params[i].tensors[k].file = ZF_NO_ID; /* of none yet, until its file's header is made */
    }
    writer->file_first[saved->n_files] = saved->n_params;
    for (uint32_t f = 0; f < saved->n_files; f++)
        snprintf(saved->files[f].name, sizeof saved->files[f].name, "zf_state-%05u.safetensors", f + 1);
    return ZF_OK;
}

/* Calls fn for every tensor of a file in the order in which they lie there; param = NULL: of the steps, number i. */
typedef zf_status_t (*tensor_fn)(writer_t *writer, zfi_saved_param_t *param, zfi_saved_tensor_t *tensor, uint32_t i,
                                 void *arg, zf_error_t *err);

static zf_status_t for_each_tensor(writer_t *writer, uint32_t file, tensor_fn fn, void *arg, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (size_t size = 8; size; size /= 2)
        for (zfi_tensor_walk_t at = {0}; !st && zfi_next_tensor(&writer->saved, &at);) {
            int is_inside = at.param ? at.number >= writer->file_first[file] && at.number < writer->file_first[file + 1]
                                     : file == 0;
            if (is_inside && zfi_state_dtype_nbytes(zfi_saved_dtype(at.param, at.tensor, at.number)) == size)
                st = fn(writer, at.param, at.tensor, at.number, arg, err);
        }
    return st;
}

/* Where the next tensor of a file comes to lie; behind its header, whose length is not known yet. */
typedef struct end {
    uint64_t at;
    uint32_t file;
} end_t;

static zf_status_t place_tensor(writer_t *writer, zfi_saved_param_t *param, zfi_saved_tensor_t *tensor, uint32_t i,
                                void *arg, zf_error_t *err) {
    end_t *end = arg;
    (void)writer, (void)param, (void)i, (void)err;
    tensor->file = end->file;
    tensor->offset = end->at;
    end->at += tensor->nbytes;
    return ZF_OK;
}

/* Length, JSON and padding of a file's header; fills the places of its tensors. To be freed; NULL without memory. */
static unsigned char *make_header(writer_t *writer, uint32_t number) {
    zfi_saved_file_t *file = &writer->saved.files[number];
    end_t end = {0, number};
    zfi_json_t json = {0};
    unsigned char *out = NULL;
    for_each_tensor(writer, number, place_tensor, &end, NULL);
    json_t *object = zfi_header_print(&json, &writer->saved, number);
    char *text = zfi_json_print(&json, object);
    json_decref(object);
    if (!text)
        return NULL;
    uint64_t n = (strlen(text) + 7) / 8 * 8;
    out = malloc(n + 8);
    if (out) {
        for (int i = 0; i < 8; i++)
            out[i] = (unsigned char)(n >> 8 * i);
        memset(out + 8, ' ', n);
        memcpy(out + 8, text, strlen(text));
        file->header_nbytes = n + 8;
        file->header_crc = zfi_crc32(0, out, n + 8);
        file->nbytes = n + 8 + end.at;
        for (zfi_tensor_walk_t at = {0}; zfi_next_tensor(&writer->saved, &at);)
            if (at.tensor->file == number)
                at.tensor->offset += file->header_nbytes;
    }
    free(text);
    return out;
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* Bytes of a tensor: behind those that this rank has written of it, or, with several ranks, `at` bytes into it. */
static zf_status_t put_block(writer_t *writer, zfi_saved_tensor_t *tensor, uint64_t at, const void *block,
                             uint64_t nbytes, zf_error_t *err) {
    if (writer->store->is_shared) {
        zfi_spread_add(&tensor->crc, block, nbytes, tensor->nbytes - at - nbytes);
        return zfi_store_write_at(writer->store, tensor->offset + at, block, nbytes, err);
    }
    tensor->crc = zfi_crc32(tensor->crc, block, nbytes);
    return zfi_store_write(writer->store, block, nbytes, err);
}

static zf_status_t refuse_value(const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor, uint64_t at,
                                zf_error_t *err) {
    return zfi_error(err, ZF_ERR_NONFINITE, "state",
                     "%s of \"%s\" has a value at element %" PRIu64
                     " that no training can go on from (Inf, NaN or negative): nothing was saved; load an older "
                     "checkpoint or sound weights",
                     tensor->array->name, param->param.name, at);
}

/* A matrix of a tensor, whose values begin at_nbytes into that. */
typedef struct piece {
    zfi_saved_param_t *param;
    zfi_saved_tensor_t *tensor;
    const zfi_matrix_t *saved;
    uint32_t number; /* the run's */
    uint64_t at_nbytes;
} piece_t;

/* Values [first, first + count), which this rank has. */
static zf_status_t get_values(writer_t *writer, const piece_t *piece, uint64_t first, uint64_t count, void *out,
                              zf_error_t *err) {
    const zfi_state_t *state = writer->io.state;
    const zfi_state_array_t *array = piece->tensor->array;
    int is_applied =
        (array->flags & ZFI_ARRAY_PER_STEP) && zfi_row(state->windows->rows, piece->tensor->step)->scalars.applied;
    array->get(&writer->io, &(zfi_state_at_t){piece->number, piece->tensor->step, first, count}, out);
    if (writer->io.status == ZF_ERR_POISONED)
        return zfi_poisoned(state->engine, err);
    if (writer->io.status)
        return zfi_error(err, writer->io.status, "state",
                         "the open windows would make a weight of \"%s\" Inf or NaN: nothing was saved",
                         piece->param->param.name);
    uint64_t at = zfi_state_find_bad(array, &piece->param->param, out, count, is_applied);
    if (at < count)
        return refuse_value(piece->param, piece->tensor, piece->saved->param_offset + first + at, err);
    return ZF_OK;
}

/* What this rank writes of a matrix. */
static zf_status_t write_matrix(writer_t *writer, const piece_t *piece, zf_error_t *err) {
    uint64_t elem = zfi_saved_elem_nbytes(piece->param, piece->tensor), block = ZFI_STATE_BLOCK / elem, first, end;
    zf_status_t st = ZF_OK;
    zfi_spread_share(writer->io.state->ranks, piece->tensor->array, &writer->saved.shape, piece->saved, piece->number,
                     writer->together, &first, &end);
    for (; first < end && !st; first += block) {
        uint64_t count = end - first < block ? end - first : block;
        st = get_values(writer, piece, first, count, writer->block, err);
        if (!st)
            st = put_block(writer, piece->tensor, piece->at_nbytes + first * elem, writer->block, count * elem, err);
    }
    return st;
}

typedef struct gathered {
    unsigned char *values;
    uint32_t number;
    size_t elem;
} gathered_t;

static void walk_gathered(zfi_gathering_t *gathering, uint32_t rank) {
    const gathered_t *all = gathering->arg;
    zfi_slice_t slice = zfi_gathering_slice(gathering, &gathering->ranks->plan->matrices[all->number], rank);
    zfi_gathering_pass(gathering, all->values + slice.first * all->elem, slice.n * all->elem);
}

/* A matrix of which ranks of other checkpoints have slices: all of it, written by rank 0. All meet before. */
static zf_status_t write_gathered(writer_t *writer, const piece_t *piece, zf_error_t *err) {
    gathered_t all = {writer->whole, piece->number, zfi_saved_elem_nbytes(piece->param, piece->tensor)};
    zfi_gathering_t gathering = {.ranks = writer->io.state->ranks, .walk = walk_gathered, .arg = &all};
    const zfi_slice_t *own = &writer->io.state->plan->matrices[piece->number].own;
    zf_status_t st = ZF_OK;
    if (own->n)
        st = get_values(writer, piece, own->first, own->n, all.values + own->first * all.elem, err);
    st = zfi_together_meet(writer->together, st, err);
    writer->is_told = st != ZF_OK;
    if (!st && zfi_gathering_at_rest(&gathering))
        st = zfi_poisoned(writer->io.state->engine, err);
    if (st || !is_first(writer))
        return st;
    return put_block(writer, piece->tensor, piece->at_nbytes, all.values,
                     piece->saved->rows * piece->saved->cols * all.elem, err);
}

static zf_status_t write_steps(writer_t *writer, zfi_saved_tensor_t *tensor, uint32_t i, zf_error_t *err) {
    const zfi_saved_t *saved = &writer->saved;
    uint64_t nbytes = tensor->nbytes / saved->n_steps;
    void *values = malloc(nbytes + 1);
    zf_status_t st = values ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a step's values");
    for (uint64_t s = 0; s < saved->n_steps && writes_rest(writer) && !st; s++) {
        zfi_state_steps[i].get(&writer->io, zfi_row(writer->io.state->windows->rows, saved->first_step + s), values);
        st = put_block(writer, tensor, s * nbytes, values, nbytes, err);
    }
    free(values);
    return st;
}

static zf_status_t write_tensor(writer_t *writer, zfi_saved_param_t *param, zfi_saved_tensor_t *tensor, uint32_t i,
                                void *arg, zf_error_t *err) {
    piece_t piece = {.param = param, .tensor = tensor};
    zf_status_t st = ZF_OK;
    (void)arg;
    if (!param)
        return write_steps(writer, tensor, i, err);
    int is_gathered = (tensor->array->flags & ZFI_ARRAY_PER_ELEMENT) &&
                      zfi_spread_is_gathered(writer->io.state->ranks, writer->together, param->param.id);
    for (uint32_t k = 0; k < tensor->n_matrices && !st; k++) {
        piece.saved = &param->matrices[tensor->matrices[k]];
        piece.number = writer->io.state->side->params[param->param.id].first_matrix + tensor->matrices[k];
        st = is_gathered ? write_gathered(writer, &piece, err) : write_matrix(writer, &piece, err);
        piece.at_nbytes += tensor->array->length(&writer->saved.shape, &param->matrices[tensor->matrices[k]]) *
                           zfi_saved_elem_nbytes(param, tensor);
    }
    return st;
}

static zf_status_t write_header(writer_t *writer, const void *header, uint64_t nbytes, zf_error_t *err) {
    if (!writer->store->is_shared)
        return zfi_store_write(writer->store, header, nbytes, err);
    return writes_rest(writer) ? zfi_store_write_at(writer->store, 0, header, nbytes, err) : ZF_OK;
}

static zf_status_t write_file(writer_t *writer, uint32_t number, zf_error_t *err) {
    unsigned char *header = make_header(writer, number);
    const zfi_saved_file_t *file = &writer->saved.files[number];
    zf_status_t st = header ? zfi_store_begin(writer->store, file->name, file->nbytes, err)
                            : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the header of %s", file->name);
    if (!st)
        st = write_header(writer, header, file->header_nbytes, err);
    if (!st)
        st = for_each_tensor(writer, number, write_tensor, NULL, err);
    free(header);
    return st ? st : zfi_store_end(writer->store, err);
}

/* The index as it was read again: a load would take it. */
static zf_status_t check_again(const writer_t *writer, const zfi_saved_t *again, zf_error_t *err) {
    zf_status_t st = zfi_header_check_places(again, err);
    if (!st)
        st = zfi_state_check_index(again, err);
    if (st || again->index_crc == writer->saved.index_crc)
        return st;
    return zfi_error(
        err, ZF_ERR_INTERNAL, "state",
        "the index of the checkpoint, read back, is not what was to be saved: nothing was replaced; save again");
}

/* A host's store need not be readable yet, so its index is looked at before. */
static zf_status_t check_text(const writer_t *writer, const char *text, zf_error_t *err) {
    char *copy = strdup(text);
    zfi_saved_t again;
    zf_status_t st = copy ? zfi_index_parse(copy, strlen(copy), &again, err)
                          : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to check the index of the checkpoint");
    free(copy);
    if (st)
        return st;
    st = check_again(writer, &again, err);
    zfi_saved_free(&again);
    return st;
}

static zf_status_t write_index(writer_t *writer, zf_error_t *err) {
    char *text = zfi_index_print(&writer->saved);
    zf_status_t st = text ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the index of the checkpoint");
    if (!st && !writer->store->ops->reads_back)
        st = check_text(writer, text, err);
    if (!st)
        st = zfi_store_begin(writer->store, ZF_STATE_INDEX, strlen(text), err);
    if (!st)
        st = zfi_store_write(writer->store, text, strlen(text), err);
    free(text);
    return st ? st : zfi_store_end(writer->store, err);
}

/* Index and headers as they lie in a directory before it takes the former checkpoint's place. */
static zf_status_t check_written(const writer_t *writer, zf_error_t *err) {
    zfi_saved_t again;
    if (!writer->store->ops->reads_back)
        return ZF_OK;
    zf_status_t st = zfi_index_read(writer->store, &again, err);
    if (st)
        return st;
    st = check_again(writer, &again, err);
    for (uint32_t f = 0; f < again.n_files && !st; f++)
        st = zfi_header_read(writer->store, &again, f, err);
    zfi_saved_free(&again);
    return st;
}

static zf_status_t write_files(writer_t *writer, zf_error_t *err) {
    zf_status_t st = deal_files(writer);
    if (st)
        return zfi_error(err, st, "state", "no memory to plan the files of a checkpoint");
    for (uint32_t f = 0; f < writer->saved.n_files && !st; f++)
        st = write_file(writer, f, err);
    return st;
}

/* What was written becomes a checkpoint. */
static zf_status_t finish(writer_t *writer, zf_state_report_t *report, zf_error_t *err) {
    zf_status_t st = write_index(writer, err);
    if (!st)
        zfi_state_report(&writer->saved, writer->store, report);
    if (!st)
        st = check_written(writer, err);
    return st ? st : zfi_store_commit(writer->store, err);
}

/* The first rank finishes when all have synced what they wrote, and all that have a store of their own; the others know
 * that it did before they return. */
static zf_status_t finish_together(writer_t *writer, zf_state_report_t *report, zf_error_t *err) {
    zf_status_t st = zfi_spread_join(writer->io.state->ranks, writer->io.ids, writer->together, &writer->saved, err);
    zfi_state_report(&writer->saved, writer->store, report);
    if (!st && writes_rest(writer))
        st = finish(writer, report, err);
    return zfi_together_meet(writer->together, st, err);
}

static zf_status_t write_all(writer_t *writer, int is_compact, const char *note, zf_state_report_t *report,
                             zf_error_t *err) {
    zf_status_t st = zfi_saved_of(&writer->io, is_compact, note, &writer->saved, err);
    writer->saved.part = writer->together->part;
    if (!st)
        st = write_files(writer, err);
    if (!zfi_together_meets(writer->together))
        return st ? st : finish(writer, report, err);
    if (!writer->is_told)
        st = zfi_together_meet(writer->together, st, err);
    return st ? st : finish_together(writer, report, err);
}

zf_status_t zfi_state_write(zfi_run_t *run, const zfi_save_args_t *args, zfi_store_t *store, zf_state_report_t *report,
                            zf_error_t *err) {
    writer_t writer = {.store = store, .together = args->together, .most = args->file_nbytes};
    uint32_t *ids = malloc(run->n_params * sizeof *ids), n = 0;
    uint8_t *differs = NULL;
    int gathers = zfi_spread_gathers(&run->ranks, args->together);
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; ids && i < run->n_params; i++)
        if (run->params[i].has_state)
            ids[n++] = i;
    writer.block = malloc(ZFI_STATE_BLOCK);
    if (args->is_compact)
        writer.io.rehearsal = zfi_rehearsal_new(&run->state, &run->replays);
    if (gathers)
        writer.whole = malloc(run->dev.exchange_elems * sizeof(float));
    if (!ids || !writer.block || (gathers && !writer.whole) || (args->is_compact && !writer.io.rehearsal))
        st = zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the buffers of a save");
    st = zfi_together_meet(args->together, st, err);
    if (!st && zfi_is_sharded(run->engine) && (st = zfi_gathering_counts(&run->ranks, run->hs.n)))
        zfi_error(err, st, "state", "the ranks' counts of updates could not be joined");
    if (!st && zfi_is_sharded(run->engine) && (st = zfi_importance_join_at_rest(&run->ranks)))
        zfi_error(err, st, "state", "the ranks' importance of channels could not be joined");
    if (!st && !args->is_compact && zfi_together_meets(args->together))
        st = zfi_spread_find_visible(&run->state, args->together, &differs, err);
    writer.io = (zfi_state_io_t){
        .state = &run->state, .rehearsal = writer.io.rehearsal, .differs = differs, .ids = ids, .n_ids = n};
    if (!st)
        st = write_all(&writer, args->is_compact, args->note, report, err);
    zfi_saved_free(&writer.saved);
    free(writer.file_first);
    zfi_rehearsal_free(writer.io.rehearsal);
    zfi_together_drop(args->together, differs);
    free(writer.block);
    free(writer.whole);
    free(ids);
    return st;
}
