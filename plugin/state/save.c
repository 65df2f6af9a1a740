/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/save.c - writes a checkpoint (what it holds: state/saved.h).
 *
 * Parameters go into safetensors files of about a gibibyte each; within a file wide types come first, so that every
 * tensor is aligned. Sizes and headers are known before the first byte is written; checksums are taken on the way and
 * go into the index, which is written last.
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
#include "state/spread.h"
#include "state/state.h"

static const uint64_t FILE_NBYTES = (uint64_t)1 << 30;
enum { HEADER_SHARE = 4096 }; /* what a parameter counts beside its bytes, so that a header stays below its limit */

typedef struct writer {
    zfi_run_t *run;
    zfi_reader_t reader;
    zfi_saved_t saved;
    uint32_t *ids; /* [saved.n_params] the run's */
    zfi_store_t *store;
    unsigned char *block;     /* [ZFI_STATE_BLOCK] */
    unsigned char *whole;     /* a matrix, where it is gathered (spread.h); else NULL */
    zfi_together_t *together; /* the other ranks */
    int is_told;              /* what failed was said at a meeting: all of them know */
} writer_t;

/* Whether what the ranks do not share out is written by this one. */
static int writes_rest(const writer_t *writer) { return writer->together->rank == 0 || writer->together->is_apart; }

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* Tests ask for small files through the environment, so that little makes several. */
uint64_t zfi_state_file_nbytes(void) {
    const char *asked = getenv("ZF_STATE_FILE_NBYTES");
    uint64_t nbytes = asked ? strtoull(asked, NULL, 10) : 0;
    return nbytes ? nbytes : FILE_NBYTES;
}

/* By elements: they are the same on ranks that have other experts beside a parameter. */
static zf_status_t deal_files(zfi_saved_t *saved, uint32_t number, uint64_t most) {
    uint64_t nbytes = 0;
    saved->files = calloc(saved->n_params + 1, sizeof *saved->files);
    if (!saved->files)
        return ZF_ERR_MEMORY;
    saved->n_files = 1;
    for (uint32_t i = 0; i < saved->n_params; i++) {
        if (nbytes >= most) {
            saved->files[saved->n_files++].first_param = i;
            nbytes = 0;
        }
        nbytes += 3 * sizeof(float) * saved->params[i].n_elems + HEADER_SHARE;
        saved->params[i].file = saved->n_files - 1;
        saved->files[saved->n_files - 1].end_param = i + 1;
    }
    for (uint32_t f = 0; f < saved->n_files; f++)
        zfi_store_file_name(number, f + 1, saved->files[f].name);
    return ZF_OK;
}

/* Calls fn for every tensor of a file in the order in which they lie there. */
typedef zf_status_t (*tensor_fn)(writer_t *writer, uint32_t p, zfi_saved_array_t array, void *arg, zf_error_t *err);

static zf_status_t for_each_tensor(writer_t *writer, uint32_t number, tensor_fn fn, void *arg, zf_error_t *err) {
    const zfi_saved_file_t *file = &writer->saved.files[number];
    zf_status_t st = ZF_OK;
    for (size_t size = 8; size; size /= 2)
        for (uint32_t p = file->first_param; p < file->end_param; p++)
            for (int a = 0; a < ZFI_SAVED_ARRAYS && !st; a++)
                if (writer->saved.params[p].tensors[a].nbytes && zfi_saved_elem_nbytes((zfi_saved_array_t)a) == size)
                    st = fn(writer, p, (zfi_saved_array_t)a, arg, err);
    return st;
}

/* Behind the header, whose length is known when all are placed. */
static zf_status_t place_tensor(writer_t *writer, uint32_t p, zfi_saved_array_t array, void *arg, zf_error_t *err) {
    uint64_t *end = arg;
    (void)err;
    writer->saved.params[p].tensors[array].offset = *end;
    *end += writer->saved.params[p].tensors[array].nbytes;
    return ZF_OK;
}

/* Fills the places of a file's tensors. To be freed; NULL without memory. */
static unsigned char *make_header(writer_t *writer, uint32_t number) {
    zfi_saved_file_t *file = &writer->saved.files[number];
    uint64_t end = 0, nbytes = 0;
    for_each_tensor(writer, number, place_tensor, &end, NULL);
    unsigned char *out = zfi_header_print(&writer->saved, number, &nbytes);
    if (!out)
        return NULL;
    file->header_nbytes = nbytes;
    file->header_crc = zfi_crc32(0, out, nbytes);
    file->nbytes = nbytes + end;
    for (uint32_t p = file->first_param; p < file->end_param; p++)
        for (int a = 0; a < ZFI_SAVED_ARRAYS; a++)
            writer->saved.params[p].tensors[a].offset += nbytes;
    return out;
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* The values of a block in an array of parameter p. */
typedef struct piece {
    uint32_t p, number; /* number: the run's, of the block */
    zfi_saved_array_t array;
    uint64_t at, n; /* in the tensor */
} piece_t;

/* Values [first, first + n) of it: behind those that this rank has written of the tensor, or, with several ranks, to
 * where they belong. */
static zf_status_t put_values(writer_t *writer, const piece_t *piece, uint64_t first, const void *values, uint64_t n,
                              zf_error_t *err) {
    zfi_saved_tensor_t *tensor = &writer->saved.params[piece->p].tensors[piece->array];
    uint64_t elem = zfi_saved_elem_nbytes(piece->array), at = (piece->at + first) * elem;
    if (writer->store->is_shared) {
        zfi_spread_add(&tensor->crc, values, n * elem, tensor->nbytes - at - n * elem);
        return zfi_store_write_at(writer->store, tensor->offset + at, values, n * elem, err);
    }
    tensor->crc = zfi_crc32(tensor->crc, values, n * elem);
    return zfi_store_write(writer->store, values, n * elem, err);
}

/* Values [first, first + n), which this rank has. */
static zf_status_t get_values(writer_t *writer, const piece_t *piece, uint64_t first, uint64_t n, void *out,
                              zf_error_t *err) {
    const zfi_saved_param_t *param = &writer->saved.params[piece->p];
    zf_status_t st = zfi_reader_get(&writer->reader, piece->array, piece->number, first, n, out, err);
    if (st)
        return st;
    uint64_t bad = zfi_saved_find_bad(piece->array, &writer->saved.rules[param->group], UINT32_MAX, out, n);
    if (bad == n)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_NONFINITE, "state",
                     "%s of \"%s\" has a value at element %" PRIu64
                     " that no training can go on from (Inf, NaN or negative): nothing was saved; load an older "
                     "checkpoint or sound weights",
                     zfi_saved_name(piece->array), param->name, piece->at + first + bad);
}

/* Writes this rank's share of a block. */
static zf_status_t write_block(writer_t *writer, const piece_t *piece, zf_error_t *err) {
    uint64_t most = ZFI_STATE_BLOCK / zfi_saved_elem_nbytes(piece->array), first, end;
    zf_status_t st = ZF_OK;
    zfi_spread_share(&writer->run->ranks, piece->array, piece->n, piece->number, writer->together, &first, &end);
    for (; first < end && !st; first += most) {
        uint64_t n = end - first < most ? end - first : most;
        st = get_values(writer, piece, first, n, writer->block, err);
        if (!st)
            st = put_values(writer, piece, first, writer->block, n, err);
    }
    return st;
}

typedef struct gathered {
    unsigned char *values;
    uint32_t number;
} gathered_t;

static void walk_gathered(zfi_gathering_t *gathering, uint32_t rank) {
    const gathered_t *all = gathering->arg;
    zfi_slice_t slice = zfi_gathering_slice(gathering, &gathering->ranks->plan->matrices[all->number], rank);
    zfi_gathering_pass(gathering, all->values + slice.first * sizeof(float), slice.n * sizeof(float));
}

/* A block of which ranks of other checkpoints have slices: all of it, written by rank 0. All meet before. */
static zf_status_t write_gathered(writer_t *writer, const piece_t *piece, zf_error_t *err) {
    gathered_t all = {writer->whole, piece->number};
    zfi_gathering_t gathering = {.ranks = &writer->run->ranks, .walk = walk_gathered, .arg = &all};
    const zfi_slice_t *own = &writer->run->plan.matrices[piece->number].own;
    zf_status_t st = ZF_OK;
    if (own->n)
        st = get_values(writer, piece, own->first, own->n, all.values + own->first * sizeof(float), err);
    st = zfi_together_meet(writer->together, st, err);
    writer->is_told = st != ZF_OK;
    if (!st && zfi_gathering_at_rest(&gathering))
        st = zfi_poisoned(writer->run->engine, err);
    if (st || writer->together->rank != 0)
        return st;
    return put_values(writer, piece, 0, all.values, piece->n, err);
}

static zf_status_t write_tensor(writer_t *writer, uint32_t p, zfi_saved_array_t array, void *arg, zf_error_t *err) {
    const zfi_param_t *param = &writer->run->params[writer->ids[p]];
    int is_gathered =
        zfi_saved_is_by_element(array) && zfi_spread_is_gathered(&writer->run->ranks, writer->together, param->id);
    zf_status_t st = ZF_OK;
    (void)arg;
    for (uint32_t i = 0; i < param->n_matrices && !st; i++) {
        piece_t piece = {.p = p, .number = param->first_matrix + i, .array = array};
        zfi_saved_range(&writer->saved, &writer->saved.params[p], array, i, &piece.at, &piece.n);
        st = is_gathered ? write_gathered(writer, &piece, err) : write_block(writer, &piece, err);
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

/* ---- the index --------------------------------------------------------------------------------------------------- */

static zf_status_t write_index(writer_t *writer, zf_error_t *err) {
    char *text = zfi_index_print(&writer->saved, &writer->run->engine->config);
    zfi_saved_t again = {0};
    zf_status_t st = text ? zfi_index_parse(text, strlen(text), &again, err)
                          : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the index of the checkpoint");
    zfi_saved_free(&again);
    if (!st)
        st = zfi_store_begin(writer->store, ZF_STATE_INDEX, strlen(text), err);
    if (!st)
        st = zfi_store_write(writer->store, text, strlen(text), err);
    free(text);
    return st ? st : zfi_store_end(writer->store, err);
}

/* Index and headers as they lie in a directory before it takes the former checkpoint's place. A host's store need not
 * be readable yet. */
static zf_status_t check_written(const writer_t *writer, zf_error_t *err) {
    zfi_saved_t again;
    if (!writer->store->ops->reads_back)
        return ZF_OK;
    zf_status_t st = zfi_index_read(writer->store, &again, err);
    if (st)
        return st;
    if (again.index_crc != writer->saved.index_crc)
        st = zfi_error(err, ZF_ERR_INTERNAL, "state",
                       "the index of the checkpoint, read back, is not what was written: nothing was replaced; save "
                       "again");
    for (uint32_t f = 0; f < again.n_files && !st; f++)
        st = zfi_header_check(writer->store, &again, f, err);
    zfi_saved_free(&again);
    return st;
}

static zf_status_t write_files(writer_t *writer, uint64_t file_nbytes, zf_error_t *err) {
    zf_status_t st = deal_files(&writer->saved, writer->store->number, file_nbytes);
    if (st)
        return zfi_error(err, st, "state", "no memory to plan the files of a checkpoint");
    for (uint32_t f = 0; f < writer->saved.n_files && !st; f++)
        st = write_file(writer, f, err);
    return st;
}

/* Makes a checkpoint of the files. */
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
    zf_status_t st = zfi_spread_join(&writer->run->ranks, writer->ids, writer->together, &writer->saved, err);
    zfi_state_report(&writer->saved, writer->store, report);
    if (!st && writes_rest(writer))
        st = finish(writer, report, err);
    return zfi_together_meet(writer->together, st, err);
}

static zf_status_t write_all(writer_t *writer, const zfi_save_args_t *args, zf_state_report_t *report,
                             zf_error_t *err) {
    zf_status_t st = write_files(writer, args->file_nbytes, err);
    if (!zfi_together_meets(writer->together))
        return st ? st : finish(writer, report, err);
    if (!writer->is_told)
        st = zfi_together_meet(writer->together, st, err);
    return st ? st : finish_together(writer, report, err);
}

/* ---- begin ------------------------------------------------------------------------------------------------------- */

static zf_status_t open_writer(writer_t *writer, const zfi_save_args_t *args, zf_error_t *err) {
    zfi_run_t *run = writer->run;
    int gathers = zfi_spread_gathers(&run->ranks, args->together);
    zf_status_t st = zfi_saved_of(&run->state, args->together->part, args->note, &writer->saved, err);
    if (st)
        return st;
    writer->block = malloc(ZFI_STATE_BLOCK);
    writer->ids = malloc((writer->saved.n_params + 1) * sizeof *writer->ids);
    if (gathers)
        writer->whole = malloc(run->dev.exchange_elems * sizeof(float));
    if (!writer->block || !writer->ids || (gathers && !writer->whole))
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the buffers of a save");
    for (uint32_t p = 0; p < writer->saved.n_params; p++)
        writer->ids[p] = writer->saved.params[p].id;
    return zfi_reader_open(run, 1, "state", &writer->reader, err);
}

/* Joins counts and importance, of which each rank knows a part. */
static zf_status_t join_ranks(const zfi_state_t *state, zf_error_t *err) {
    zf_status_t st = zfi_gathering_counts(state->ranks, state->host->n);
    if (st)
        return zfi_error(err, st, "state", "the ranks' counts of updates could not be joined");
    if ((st = zfi_importance_join_at_rest(state->ranks)))
        return zfi_error(err, st, "state", "the ranks' importance of channels could not be joined");
    return ZF_OK;
}

zf_status_t zfi_state_write(zfi_run_t *run, const zfi_save_args_t *args, zfi_store_t *store, zf_state_report_t *report,
                            zf_error_t *err) {
    writer_t writer = {.run = run, .store = store, .together = args->together};
    zf_status_t st = zfi_together_meet(args->together, open_writer(&writer, args, err), err);
    if (!st)
        st = join_ranks(&run->state, err);
    if (!st)
        st = write_all(&writer, args, report, err);
    zfi_saved_free(&writer.saved);
    zfi_reader_close(&writer.reader);
    free(writer.block);
    free(writer.whole);
    free(writer.ids);
    return st;
}
