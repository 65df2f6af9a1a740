/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz_safetensors.c - the reader of safetensors files. Input: one byte, n; then the file.
 * Unless n is 255, the 8 bytes of the header's length are not in the input: the header is all but the last n bytes, so
 * that mutations come to the JSON. Every tensor that is found lies in the file and can be read. */
#include <string.h>

#include "fuzz.h"
#include "lib/safetensors.h"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

static void read_tensor(const zf_safetensors_t *file, const zf_safetensors_tensor_t *tensor, size_t file_nbytes) {
    char why[ZF_SAFETENSORS_WHY] = "";
    FUZZ_CHECK(tensor->offset <= file_nbytes && tensor->nbytes <= file_nbytes - tensor->offset, "%s lies outside",
               tensor->name);
    if (tensor->nbytes < 16384) {
        unsigned char *out = malloc(tensor->nbytes + 1);
        FUZZ_CHECK(zf_safetensors_read(file, tensor->offset, out, tensor->nbytes, why, sizeof why) == 0, "%s", why);
        free(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    zf_safetensors_t opened;
    char why[ZF_SAFETENSORS_WHY] = "";
    fuzz_file_t file;
    size_t n = nbytes + 8, tail;
    if (nbytes == 0)
        return 0;
    tail = data[0] == 255 ? 0 : data[0];
    unsigned char *bytes = malloc(n);
    FUZZ_CHECK(bytes != NULL, "no memory");
    memcpy(bytes + 8, data + 1, nbytes - 1);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)(nbytes - 1 - (tail < nbytes ? tail : 0)) >> (8 * i));
    n = nbytes - 1 + (data[0] == 255 ? 0 : 8);
    fuzz_file_start(&file, data[0] == 255 ? data + 1 : bytes, n);
    if (zf_safetensors_open(file.path, &opened, why, sizeof why) == 0) {
        for (size_t i = 0; i < opened.n; i++)
            read_tensor(&opened, &opened.tensors[i], n);
        zf_safetensors_close(&opened);
    } else {
        FUZZ_CHECK(strlen(why) > 10 && !strchr(why, '\n'), "refused with \"%s\"", why);
    }
    fuzz_file_end(&file);
    free(bytes);
    return 0;
}
