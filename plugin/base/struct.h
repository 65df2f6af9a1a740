/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/struct.h - the size rules of the ABI's structs (abi/README.md, "Growth"). */
#pragma once

#include <stdint.h>

#include "zf/types.h"

/* Bytes that the host's structs have in the oldest version of the ABI that is served. Numbers, not sizeof: a member
 * that is appended changes none of them. tests/abi/declarations.py compares them with that version's golden layout. */
enum {
    ZFI_FIRST_zf_bind_args_t = 48,
    ZFI_FIRST_zf_chained_t = 24,
    ZFI_FIRST_zf_collectives_ext_t = 48,
    ZFI_FIRST_zf_create_args_t = 72,
    ZFI_FIRST_zf_destroy_args_t = 8,
    ZFI_FIRST_zf_export_item_t = 32,
    ZFI_FIRST_zf_fence_t = 24,
    ZFI_FIRST_zf_grad_item_t = 40,
    ZFI_FIRST_zf_group_decl_t = 16,
    ZFI_FIRST_zf_group_hyper_t = 48,
    ZFI_FIRST_zf_host_t = 48,
    ZFI_FIRST_zf_inspect_out_t = 64,
    ZFI_FIRST_zf_matrix_rules_t = 40,
    ZFI_FIRST_zf_param_decl_t = 64,
    ZFI_FIRST_zf_param_item_t = 32,
    ZFI_FIRST_zf_plan_args_t = 40,
    ZFI_FIRST_zf_quiesce_args_t = 24,
    ZFI_FIRST_zf_rule_callback_t = 32,
    ZFI_FIRST_zf_state_args_t = 40,
    ZFI_FIRST_zf_state_store_t = 64,
    ZFI_FIRST_zf_step_args_t = 64,
    ZFI_FIRST_zf_stream_t = 40,
    ZFI_FIRST_zf_tensor_t = 64,
};

/* The functions below, for a type of the list above. */
#define ZFI_CHECK(given, type, err) zfi_struct_check(given, ZFI_FIRST_##type, sizeof(type), #type, err)
#define ZFI_READ(out, given, type, err) zfi_struct_read(out, given, ZFI_FIRST_##type, sizeof(type), #type, err)
#define ZFI_READ_ITEM(out, items, i, elem_size, type, err)                                                             \
    zfi_struct_read_item(out, items, i, elem_size, ZFI_FIRST_##type, sizeof(type), #type, err)
/* The same for a type that ends with a chain, which is checked. */
#define ZFI_READ_CHAINED(out, given, type, err)                                                                        \
    zfi_chain_check(ZFI_READ(out, given, type, err), &(out)->next, NULL, #type, err)
#define ZFI_READ_ITEM_CHAINED(out, items, i, elem_size, type, err)                                                     \
    zfi_chain_check(ZFI_READ_ITEM(out, items, i, elem_size, type, err), &(out)->next, NULL, #type, err)
#define ZFI_READ_TABLE(out, given, type, err)                                                                          \
    zfi_struct_read_table(out, given, ZFI_FIRST_##type, sizeof(type), #type, err)
#define ZFI_CHECK_ARRAY(items, n, min_n, elem_size, type, name, err)                                                   \
    zfi_array_check(items, n, min_n, elem_size, ZFI_FIRST_##type, name, err)

/* [any-thread] An input struct of the host: first_size = its size in the first version, size = as compiled here. A
 * longer one is accepted only if its unknown tail is zero. ZF_ERR_ARGUMENT (NULL), ZF_ERR_ABI,
 * ZF_ERR_UNSUPPORTED_FIELD. */
zf_status_t zfi_struct_check(const void *given, uint32_t first_size, uint32_t size, const char *name, zf_error_t *err);

/* [any-thread] The same, and a zero-extended copy in *out (size bytes). */
zf_status_t zfi_struct_read(void *out, const void *given, uint32_t first_size, uint32_t size, const char *name,
                            zf_error_t *err);

/* [any-thread] A table of functions that the host gives, which is not NULL: a zero-extended copy. One that is longer is
 * taken: what this version does not know it does not call. ZF_ERR_ABI. */
zf_status_t zfi_struct_read_table(void *out, const void *given, uint32_t first_size, uint32_t size, const char *name,
                                  zf_error_t *err);

/* [any-thread] zfi_struct_read for element i of an array; its struct_size may not exceed elem_size. */
zf_status_t zfi_struct_read_item(void *out, const void *items, uint32_t i, uint32_t elem_size, uint32_t first_size,
                                 uint32_t size, const char *name, zf_error_t *err);

/* [any-thread] A member that a later version may give a meaning. ZF_ERR_UNSUPPORTED_FIELD where it is not 0. */
zf_status_t zfi_reserved_check(uint32_t reserved0, const char *name, zf_error_t *err);

/* [any-thread] Checks the chain that *next of an input struct leads to, if the struct was read (st = 0). known: the id
 * of a struct that the call reads; NULL: it reads none. st, ZF_ERR_ARGUMENT (no chain), ZF_ERR_ABI (a size),
 * ZF_ERR_UNSUPPORTED_FIELD (an unknown flag, or an unknown struct that is required). */
zf_status_t zfi_chain_check(zf_status_t st, const void *const *next, const char *known, const char *name,
                            zf_error_t *err);
/* [any-thread] The first struct of a checked chain that has this id, or NULL. */
const void *zfi_chain_find(const void *next, const char *id);

/* [any-thread] An output struct: ZF_ERR_ABI where its struct_size is smaller than 8 bytes. NULL is legal. */
zf_status_t zfi_struct_check_out(const void *out, const char *name, zf_error_t *err);

/* [any-thread] The same where the host must give one. ZF_ERR_ARGUMENT (NULL), which names the call. */
zf_status_t zfi_struct_need_out(const void *out, const char *name, const char *origin, zf_error_t *err);

/* [any-thread] Writes the smaller of both sizes, never struct_size. out may be NULL. */
void zfi_struct_write(void *out, const void *from, uint32_t size);

/* [any-thread] Arrays travel with elem_size: at least first_size, a multiple of 8, at most 4096; n >= min_n. */
zf_status_t zfi_array_check(const void *items, uint32_t n, uint32_t min_n, uint32_t elem_size, uint32_t first_size,
                            const char *name, zf_error_t *err);
