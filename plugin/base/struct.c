/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/struct.c - the size rules of the ABI's structs (contract in struct.h). */
#include "base/struct.h"

#include <string.h>

#include "base/error.h"

enum { LARGEST_STRUCT = 65536 }; /* a size beyond this is garbage, not a newer host */
enum { MOST_CHAINED = 64 };

static zf_status_t check_size(const void *given, uint32_t first_size, const char *name, uint32_t *out_has,
                              zf_error_t *err) {
    memcpy(out_has, given, sizeof *out_has);
    if (*out_has >= first_size && *out_has <= LARGEST_STRUCT)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_ABI, "abi", "%s: struct_size = %u, need at least %u: set it to sizeof(%s)", name,
                     *out_has, first_size, name);
}

zf_status_t zfi_struct_check(const void *given, uint32_t first_size, uint32_t size, const char *name, zf_error_t *err) {
    uint32_t has;
    if (!given)
        return zfi_error(err, ZF_ERR_ARGUMENT, "abi", "%s is NULL", name);
    zf_status_t st = check_size(given, first_size, name, &has, err);
    if (st)
        return st;
    for (uint32_t i = size; i < has; i++)
        if (((const unsigned char *)given)[i])
            return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "abi",
                             "%s: byte %u of %u is not zero: a member that this plugin (which knows %u bytes) does not "
                             "know; use a newer plugin or leave it zero",
                             name, i, has, size);
    return ZF_OK;
}

zf_status_t zfi_struct_read(void *out, const void *given, uint32_t first_size, uint32_t size, const char *name,
                            zf_error_t *err) {
    zf_status_t st = zfi_struct_check(given, first_size, size, name, err);
    return st ? st : zfi_struct_read_table(out, given, first_size, size, name, err);
}

zf_status_t zfi_struct_read_table(void *out, const void *given, uint32_t first_size, uint32_t size, const char *name,
                                  zf_error_t *err) {
    uint32_t has;
    zf_status_t st = check_size(given, first_size, name, &has, err);
    if (st)
        return st;
    memset(out, 0, size);
    memcpy(out, given, has < size ? has : size);
    return ZF_OK;
}

zf_status_t zfi_struct_read_item(void *out, const void *items, uint32_t i, uint32_t elem_size, uint32_t first_size,
                                 uint32_t size, const char *name, zf_error_t *err) {
    const char *item = (const char *)items + (size_t)i * elem_size;
    uint32_t has;
    memcpy(&has, item, sizeof has);
    if (has > elem_size)
        return zfi_error(err, ZF_ERR_ABI, "abi", "%s %u: struct_size = %u is larger than elem_size = %u", name, i, has,
                         elem_size);
    return zfi_struct_read(out, item, first_size, size, name, err);
}

zf_status_t zfi_reserved_check(uint32_t reserved0, const char *name, zf_error_t *err) {
    if (!reserved0)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "abi", "%s: reserved0 = %u; it must be 0", name, reserved0);
}

zf_status_t zfi_chain_check(zf_status_t st, const void *const *next, const char *known, const char *name,
                            zf_error_t *err) {
    const zf_chained_t *at = st ? NULL : *next;
    for (uint32_t i = 0; at; i++, at = at->next) {
        if (i == MOST_CHAINED)
            return zfi_error(err, ZF_ERR_ARGUMENT, "abi", "%s: next: more than %d structs, or a ring", name,
                             MOST_CHAINED);
        if (at->struct_size < ZFI_FIRST_zf_chained_t || at->struct_size > LARGEST_STRUCT)
            return zfi_error(err, ZF_ERR_ABI, "abi", "%s: next: struct_size = %u of number %u; need %d to %d", name,
                             at->struct_size, i, ZFI_FIRST_zf_chained_t, LARGEST_STRUCT);
        if (!at->id)
            return zfi_error(err, ZF_ERR_ARGUMENT, "abi", "%s: next: id of number %u is NULL", name, i);
        if (at->flags & ~ZF_CHAINED_REQUIRED)
            return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "abi", "%s: next: \"%.64s\": unknown flags 0x%x", name,
                             at->id, at->flags);
        if ((at->flags & ZF_CHAINED_REQUIRED) && !(known && strcmp(at->id, known) == 0))
            return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "abi",
                             "%s: next: \"%.64s\" is required, and this version does not know it", name, at->id);
    }
    return st;
}

const void *zfi_chain_find(const void *next, const char *id) {
    const zf_chained_t *at = next;
    while (at && strcmp(at->id, id) != 0)
        at = at->next;
    return at;
}

zf_status_t zfi_struct_need_out(const void *out, const char *name, const char *origin, zf_error_t *err) {
    return out ? zfi_struct_check_out(out, name, err) : zfi_error(err, ZF_ERR_ARGUMENT, origin, "out is NULL");
}

zf_status_t zfi_struct_check_out(const void *out, const char *name, zf_error_t *err) {
    uint32_t has;
    if (!out)
        return ZF_OK;
    memcpy(&has, out, sizeof has);
    if (has < 8 || has > LARGEST_STRUCT)
        return zfi_error(err, ZF_ERR_ABI, "abi", "%s: struct_size = %u: set it to sizeof(%s) before the call", name,
                         has, name);
    return ZF_OK;
}

void zfi_struct_write(void *out, const void *from, uint32_t size) {
    uint32_t has;
    if (!out)
        return;
    memcpy(&has, out, sizeof has);
    if (has > size)
        has = size;
    memcpy((char *)out + 4, (const char *)from + 4, has - 4);
}

zf_status_t zfi_array_check(const void *items, uint32_t n, uint32_t min_n, uint32_t elem_size, uint32_t first_size,
                            const char *name, zf_error_t *err) {
    if (n < min_n)
        return zfi_error(err, ZF_ERR_ARGUMENT, "abi", "%s: n = %u, need at least %u", name, n, min_n);
    if (n == 0)
        return ZF_OK;
    if (!items)
        return zfi_error(err, ZF_ERR_ARGUMENT, "abi", "%s is NULL with n = %u", name, n);
    if (elem_size < first_size || elem_size % 8 || elem_size > 4096)
        return zfi_error(err, ZF_ERR_ABI, "abi",
                         "%s: elem_size = %u, need a multiple of 8, at least %u: pass the element's sizeof", name,
                         elem_size, first_size);
    return ZF_OK;
}
