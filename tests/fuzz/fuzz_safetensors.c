/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz_safetensors.c - the reference host's reader of safetensors files. Input: one byte, n; then the file.
 * Unless n is 255, the 8 bytes of the header's length are not in the input: the header is all but the last n bytes, so
 * that mutations come to the JSON. Every tensor that is found lies in the file and can be read. */
#include <string.h>

#include "fuzz.h"
#include "host/safetensors.h"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

static void read_tensor(const host_safetensors_t *file, const host_tensor_t *tensor, size_t file_nbytes) {
    glue_error_t err = {{0}};
    FUZZ_CHECK(tensor->offset <= file_nbytes && tensor->nbytes <= file_nbytes - tensor->offset, "%s lies outside",
               tensor->name);
    if (host_tensor_is_float(tensor) && tensor->n_elems < 4096) {
        float *out = malloc(tensor->n_elems * sizeof *out + 1);
        FUZZ_CHECK(host_safetensors_read(file, tensor, 0, (size_t)tensor->n_elems, out, &err) == 0, "%s", err.text);
        free(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static const char *const names[] = {"a", "b", "w", "layer.0.weight", "__metadata__", ""};
    host_safetensors_t *opened;
    glue_error_t err = {{0}};
    fuzz_file_t file;
    unsigned char *bytes;
    size_t n = nbytes + 8, tail;

    if (nbytes == 0)
        return 0;
    tail = data[0] == 255 ? 0 : data[0];
    bytes = malloc(n);
    FUZZ_CHECK(bytes != NULL, "no memory");
    memcpy(bytes + 8, data + 1, nbytes - 1);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)(nbytes - 1 - (tail < nbytes ? tail : 0)) >> (8 * i));
    n = nbytes - 1 + (data[0] == 255 ? 0 : 8);
    fuzz_file_start(&file, data[0] == 255 ? data + 1 : bytes, n);
    if (host_safetensors_open(file.path, &opened, &err) == 0) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const host_tensor_t *tensor = host_safetensors_find(opened, names[i]);
            if (tensor)
                read_tensor(opened, tensor, n);
        }
        host_safetensors_close(opened);
    } else {
        FUZZ_CHECK(strlen(err.text) > 10 && !strchr(err.text, '\n'), "refused with \"%s\"", err.text);
    }
    fuzz_file_end(&file);
    free(bytes);
    return 0;
}
