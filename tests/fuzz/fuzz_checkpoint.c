/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz_checkpoint.c - a checkpoint: verify, note, weights, load, and what the loaded run does then.
 *
 * Input: one byte of choices; the index up to a NUL; the bytes of the data file (every file that the index names is
 * this one). Checksums would stop nearly every mutation, so they are made right: of the index, of headers, of tensors;
 * with REBUILD the file gets the size and the header that the index says as well. What verify accepts and load takes
 * must train, and be saved as something that verify accepts. What load refuses must leave an instance able to train. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../plugin/memory_store.h"
#include "base/crc32.h"
#include "fuzz.h"
#include "model.h"
#include "state/saved.h"

enum { MODEL = 0x07, REBUILD = 0x08, DIRECTORY = 0x10, ALWAYS_LOAD = 0x20, PARTIAL = 0x40 };
enum { MOST_FILE_NBYTES = 1 << 16 };

typedef struct blobs {
    char *index;
    size_t index_nbytes;
    unsigned char *file; /* [MOST_FILE_NBYTES] */
    size_t file_nbytes;
} blobs_t;

static char folder[64];

static void remove_folder(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/ck/" ZF_STATE_INDEX, folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/ck/zf_state-00001.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/ck", folder);
    rmdir(path);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    char path[80];
    (void)argc, (void)argv;
    snprintf(folder, sizeof folder, "%s/zf-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    FUZZ_CHECK(mkdtemp(folder) != NULL, "no folder");
    snprintf(path, sizeof path, "%s/ck", folder);
    FUZZ_CHECK(mkdir(path, 0777) == 0, "no folder");
    atexit(remove_folder);
    return 0;
}

/* ---- sums made right --------------------------------------------------------------------------------------------- */

/* The checksum of the index, in its first line. */
static void seal(blobs_t *blobs) {
    char *line = memchr(blobs->index, '\n', blobs->index_nbytes), *at = strstr(blobs->index, "\"crc32\":\""), sum[16];
    size_t n = line ? blobs->index_nbytes - (size_t)(line + 1 - blobs->index) : 0;
    if (n == 0 || !at || at > line || (size_t)(line - at) < 18)
        return;
    snprintf(sum, sizeof sum, "%08x", (unsigned)zfi_crc32(0, line + 1, line[n] == '\n' ? n - 1 : n));
    memcpy(at + 9, sum, 8);
}

/* The number behind `key` at *text, which moves behind it; 0 where there is none. */
static int number_after(const char **text, const char *key, uint64_t *out) {
    char *end;
    size_t n = strlen(key);
    if (strncmp(*text, key, n) != 0)
        return 0;
    *out = strtoull(*text + n, &end, 10);
    if (end == *text + n)
        return 0;
    *text = end;
    return 1;
}

/* Behind "[offset,nbytes," of a tensor's place; 0 where `text` is none. */
static int place_after(const char **text, uint64_t *out_offset, uint64_t *out_nbytes) {
    for (int a = 0; a < ZFI_SAVED_ARRAYS; a++) {
        char key[32];
        const char *at = *text;
        snprintf(key, sizeof key, "\"%s\":[", zfi_saved_name((zfi_saved_array_t)a));
        if (number_after(&at, key, out_offset) && number_after(&at, ",", out_nbytes) && *at == ',') {
            *text = at + 1;
            return 1;
        }
    }
    return 0;
}

/* At `text`: where the checksum of a range of the file stands; sets what it is. */
static const char *range_at(const blobs_t *blobs, const char *text, uint32_t *out_sum) {
    static const char header_sum[] = ",\"header_crc32\":";
    const char *at = text;
    uint64_t offset = 0, nbytes = 0;
    if (number_after(&at, "\"header_nbytes\":", &nbytes)) {
        if (strncmp(at, header_sum, sizeof header_sum - 1) != 0)
            return NULL;
        at += sizeof header_sum - 1;
    } else if (!place_after(&at, &offset, &nbytes)) {
        return NULL;
    }
    if (offset > blobs->file_nbytes || nbytes > blobs->file_nbytes - offset)
        return NULL;
    *out_sum = zfi_crc32(0, blobs->file + offset, nbytes);
    return at;
}

static void repair_sums(blobs_t *blobs) {
    char *out = malloc(blobs->index_nbytes * 2 + 1), *to = out;
    const char *from = blobs->index, *end = from + blobs->index_nbytes;
    FUZZ_CHECK(out != NULL, "no memory");
    while (from < end) {
        uint32_t sum;
        const char *number = *from == '"' ? range_at(blobs, from, &sum) : NULL;
        if (!number) {
            *to++ = *from++;
            continue;
        }
        memcpy(to, from, (size_t)(number - from));
        to += sprintf(to + (number - from), "%u", (unsigned)sum) + (number - from);
        for (from = number; *from >= '0' && *from <= '9'; from++)
            ;
    }
    *to = '\0';
    free(blobs->index);
    blobs->index = out;
    blobs->index_nbytes = (size_t)(to - out);
    seal(blobs);
}

/* ---- the file as the index says ---------------------------------------------------------------------------------- */

static void write_header(blobs_t *blobs, const zfi_saved_t *saved) {
    uint64_t nbytes = 0;
    unsigned char *header = zfi_header_print(saved, 0, &nbytes);
    if (header && nbytes == saved->files[0].header_nbytes && nbytes <= saved->files[0].nbytes)
        memcpy(blobs->file, header, nbytes);
    free(header);
}

static void rebuild_file(blobs_t *blobs) {
    zfi_saved_t saved;
    if (zfi_index_parse(blobs->index, blobs->index_nbytes, &saved, NULL) == ZF_OK) {
        if (saved.n_files == 1 && saved.files[0].nbytes <= MOST_FILE_NBYTES) {
            if (saved.files[0].nbytes > blobs->file_nbytes)
                memset(blobs->file + blobs->file_nbytes, 0, saved.files[0].nbytes - blobs->file_nbytes);
            blobs->file_nbytes = saved.files[0].nbytes;
            write_header(blobs, &saved);
        }
        zfi_saved_free(&saved);
    }
}

/* ---- a host's store ---------------------------------------------------------------------------------------------- */

static int32_t size_of(void *ctx, const char *name, uint64_t *out) {
    const blobs_t *blobs = ctx;
    *out = strcmp(name, ZF_STATE_INDEX) == 0 ? blobs->index_nbytes : blobs->file_nbytes;
    return 0;
}

static int32_t read_some(void *ctx, const char *name, uint64_t offset, void *out, uint64_t nbytes) {
    const blobs_t *blobs = ctx;
    int is_index = strcmp(name, ZF_STATE_INDEX) == 0;
    uint64_t all = is_index ? blobs->index_nbytes : blobs->file_nbytes;
    if (offset > all || nbytes > all - offset)
        return -5;
    if (nbytes)
        memcpy(out, (is_index ? (unsigned char *)blobs->index : blobs->file) + offset, nbytes);
    return 0;
}

static void write_file(const char *name, const void *data, size_t nbytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/ck/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    FUZZ_CHECK(fd >= 0 && write(fd, data, nbytes) == (ssize_t)nbytes && close(fd) == 0, "cannot write %s", path);
}

/* ---- what is done with it ---------------------------------------------------------------------------------------- */

/* Visible values that do not follow from the masters are taken for the host's own, which it must announce. */
static zf_status_t train(fuzz_model_t *model) {
    zf_status_t st = fuzz_model_steps(model, 4);
    if (st != ZF_ERR_OVERWRITTEN)
        return st;
    st = model->zf->params_changed(model->instance, NULL, 0, 0, 0, NULL);
    return st ? st : fuzz_model_steps(model, 4);
}

/* The instance trains and can be saved; the save is whole. */
static void go_on(fuzz_model_t *model) {
    zt_memory_store_t store;
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_args_t args = {.struct_size = sizeof args};
    const zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    zf_status_t st = train(model);
    FUZZ_CHECK(st >= 0 || st == ZF_ERR_NONFINITE, "step: %d", st);
    zt_memory_store_start(&store);
    args.store = &store.table;
    st = model->state->save(model->instance, &args, NULL, &err);
    FUZZ_CHECK(st == ZF_OK || st == ZF_ERR_NONFINITE, "save: %d %s", st, err.message);
    if (st == ZF_OK)
        FUZZ_CHECK(model->state->verify(&args, NULL, &err) == ZF_OK, "saved, but: %s", err.message);
    st = model->zf->quiesce(model->instance, &flush, &err);
    FUZZ_CHECK(st == ZF_OK || st == ZF_ERR_NONFINITE, "flush: %d %s", st, err.message);
    zt_memory_store_clear(&store);
}

static void load(const zf_state_args_t *given, unsigned choices, int is_sound) {
    fuzz_model_t model;
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_args_t args = *given;
    fuzz_model_start(&model, (choices & MODEL) % FUZZ_N_MODELS);
    if (choices & 1)
        fuzz_model_steps(&model, 3);
    args.flags = choices & PARTIAL ? ZF_STATE_PARTIAL : 0;
    zf_status_t st = model.state->load(model.instance, &args, NULL, &err);
    FUZZ_CHECK(st != ZF_ERR_INTERNAL && st != ZF_ERR_POISONED && st != ZF_ERR_TIMEOUT, "load: %d %s", st, err.message);
    FUZZ_CHECK(st == ZF_OK || strlen(err.message) > 20, "load: %d \"%s\"", st, err.message);
    FUZZ_CHECK(st != ZF_OK || is_sound, "load takes what verify refuses");
    go_on(&model);
    fuzz_model_end(&model);
}

static void use(const zf_state_args_t *args, unsigned choices) {
    const zf_state_ext_t *state = fuzz_plugin()->get_extension(ZF_EXT_STATE);
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_report_t report = {.struct_size = sizeof report};
    char text[64];
    float weights[12];
    zf_status_t st = state->verify(args, &report, &err);
    FUZZ_CHECK(st == ZF_OK || strlen(err.message) > 20, "verify: %d \"%s\"", st, err.message);
    state->note(args, text, sizeof text, &err);
    state->weights(args, "a", weights, 12, &err);
    if (st == ZF_OK || (choices & ALWAYS_LOAD))
        load(args, choices, st == ZF_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    const uint8_t *end = nbytes > 1 ? memchr(data + 1, 0, nbytes - 1) : NULL;
    blobs_t blobs;
    zf_state_store_t store = {.struct_size = sizeof store, .ctx = &blobs, .size = size_of, .read = read_some};
    zf_state_args_t args = {.struct_size = sizeof args, .store = &store};
    char path[80];
    if (!end || (size_t)(data + nbytes - end) > MOST_FILE_NBYTES)
        return 0;
    blobs.index_nbytes = (size_t)(end - data) - 1;
    blobs.index = fuzz_copy(data + 1, blobs.index_nbytes + 1); /* with its NUL */
    blobs.file_nbytes = nbytes - blobs.index_nbytes - 2;
    blobs.file = malloc(MOST_FILE_NBYTES);
    FUZZ_CHECK(blobs.file != NULL, "no memory");
    memcpy(blobs.file, end + 1, blobs.file_nbytes);
    seal(&blobs);
    if (data[0] & REBUILD)
        rebuild_file(&blobs);
    repair_sums(&blobs);
    if (data[0] & DIRECTORY) {
        write_file(ZF_STATE_INDEX, blobs.index, blobs.index_nbytes);
        write_file("zf_state-00001.safetensors", blobs.file, blobs.file_nbytes);
        snprintf(path, sizeof path, "%s/ck", folder);
        args.store = NULL;
        args.path = path;
    }
    use(&args, data[0]);
    free(blobs.index);
    free(blobs.file);
    return 0;
}
