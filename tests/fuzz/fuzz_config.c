/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz_config.c - the INI configuration. Input: the text, then up to four overrides, each behind a NUL. What
 * is accepted, printed and read again is the same; what is refused leaves *out and says why. */
#include <string.h>

#include "config/config.h"
#include "config/config_table.h"
#include "fuzz.h"

enum { MOST_OVERRIDES = 4 };

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

/* All keys as overrides "section.key=value" of an empty text. */
static void read_again(const zfi_config_t *config) {
    static char lines[ZFI_N_KEYS][ZFI_TEXT_NBYTES + 64], text[ZFI_TEXT_NBYTES + 2];
    const char *overrides[ZFI_N_KEYS];
    zf_error_t err = {.struct_size = sizeof err};
    zfi_config_t again;
    uint32_t n = zfi_config_n_keys(), used = 0;
    for (uint32_t i = 0; i < n; i++) {
        zf_config_key_t key = {.struct_size = sizeof key};
        FUZZ_CHECK(zfi_config_key(i, &key, &err) == ZF_OK, "key %u", i);
        FUZZ_CHECK(zfi_config_value(config, i, text, sizeof text, &err) == ZF_OK, "value %u", i);
        FUZZ_CHECK(strlen(text) < sizeof text - 1, "%s is cut: %s", key.key, text);
        snprintf(lines[used], sizeof lines[used], "%s.%s=%s", key.section, key.key, text);
        overrides[used] = lines[used];
        used++;
    }
    FUZZ_CHECK(zfi_config_parse(NULL, 0, "printed", overrides, used, &again, &err) == ZF_OK,
               "what was accepted is refused once it is printed: %s", err.message);
    for (uint32_t i = 0; i < n; i++) {
        char was[ZFI_TEXT_NBYTES], is[ZFI_TEXT_NBYTES];
        zfi_config_value(config, i, was, sizeof was, &err);
        zfi_config_value(&again, i, is, sizeof is, &err);
        FUZZ_CHECK(strcmp(was, is) == 0, "key %u: %s becomes %s", i, was, is);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    const uint8_t *end = nbytes ? memchr(data, 0, nbytes) : NULL;
    size_t text_nbytes = end ? (size_t)(end - data) : nbytes;
    char *text = fuzz_copy(data, text_nbytes), *rest = malloc(nbytes + 1);
    const char *overrides[MOST_OVERRIDES];
    uint32_t n = 0;
    zf_error_t err = {.struct_size = sizeof err};
    zfi_config_t config, before;
    FUZZ_CHECK(rest != NULL, "no memory");
    memcpy(rest, data, nbytes);
    rest[nbytes] = 0;
    for (size_t at = text_nbytes + 1; at < nbytes && n < MOST_OVERRIDES; at += strlen(rest + at) + 1)
        overrides[n++] = rest + at;
    memset(&config, 0x5A, sizeof config);
    before = config;
    /* a length of 0 means NUL-terminated, which the copy is not */
    if (zfi_config_parse(text_nbytes ? text : NULL, text_nbytes, "fuzz.ini", overrides, n, &config, &err) == ZF_OK) {
        read_again(&config);
    } else {
        FUZZ_CHECK(err.status == ZF_ERR_CONFIG || err.status == ZF_ERR_MEMORY, "status %d", err.status);
        FUZZ_CHECK(strlen(err.message) > 10, "refused without a reason: \"%s\"", err.message);
        FUZZ_CHECK(memcmp(&config, &before, sizeof config) == 0, "refused, and written");
    }
    free(text);
    free(rest);
    return 0;
}
