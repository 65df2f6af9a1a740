/* SPDX-License-Identifier: Apache-2.0 */
/* mock_plugin.c - a plugin that keeps every rule of the entry, or breaks the one that ZF_MOCK in the environment names,
 * for test_loader.c. The slots do nothing: the loader never calls them.
 *
 *   other_abi      knows only major 7; says so with both lists      silent_abi   the same, without a word
 *   unserved_abi   chooses an ABI that the host did not list        refuses      another negative status
 *   no_table       agrees, but hands out NULL                       table_abi    the table's ABI is another one
 *   null_slot      step is NULL                                     short_table  ends before poll
 *   tiny_table     ends before abi                                  long_table   a later minor's, longer: legal
 *   replaced       has zf.state/1: with verify, the file ZF_MOCK_INDEX becomes the index */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf/ext/state.h"
#include "zf/plugin.h"

static int is(const char *mock) {
    const char *wanted = getenv("ZF_MOCK");
    return wanted != NULL && strcmp(wanted, mock) == 0;
}

static zf_status_t describe(zf_description_t *out, zf_error_t *err) {
    (void)err;
    out->name = "mock";
    return ZF_OK;
}

/* In every slot that the loader only looks at. */
static void never(void) { abort(); }

static zf_status_t verify(const zf_state_args_t *args, zf_state_report_t *out_report, zf_error_t *err) {
    const char *other = getenv("ZF_MOCK_INDEX");
    char index[4096];
    (void)out_report, (void)err;
    snprintf(index, sizeof index, "%s/%s", args->path, ZF_STATE_INDEX);
    if (other && rename(other, index) != 0)
        perror(other);
    return ZF_OK;
}

static const zf_state_ext_t state_ext = {.struct_size = sizeof(zf_state_ext_t), .verify = verify};

static const void *get_extension(const char *id) {
    return is("replaced") && strcmp(id, ZF_EXT_STATE) == 0 ? &state_ext : NULL;
}

typedef struct long_table { /* what a later minor would append */
    zf_plugin_t known;
    void (*later_a)(void);
    void (*later_b)(void);
} long_table_t;

static long_table_t table;

static void fill_table(void) {
    void (*const slot)(void) = is("null_slot") ? NULL : never;
    void (*const other)(void) = never;

    for (size_t at = offsetof(zf_plugin_t, create); at < sizeof(zf_plugin_t); at += sizeof slot)
        memcpy((char *)&table.known + at, at == offsetof(zf_plugin_t, step) ? &slot : &other, sizeof slot);
    table.known.describe = describe;
    table.known.get_extension = get_extension;
    table.known.abi = is("table_abi") ? ZF_ABI_NUMBER(3, 1) : ZF_ABI_0_16;
    table.known.struct_size = is("short_table")  ? offsetof(zf_plugin_t, poll)
                              : is("tiny_table") ? sizeof(uint32_t)
                              : is("long_table") ? sizeof(long_table_t)
                                                 : sizeof(zf_plugin_t);
}

static int32_t agree(zf_bootstrap_t *bootstrap, uint32_t abi, const void *plugin) {
    bootstrap->chosen_abi = abi;
    bootstrap->plugin = plugin;
    return ZF_OK;
}

static int32_t refuse(zf_bootstrap_t *bootstrap, int32_t status, const char *message) {
    if (bootstrap->error != NULL)
        snprintf(bootstrap->error->message, sizeof bootstrap->error->message, "%s", message);
    return status;
}

__attribute__((visibility("default"))) int32_t zf_plugin_negotiate(zf_bootstrap_t *bootstrap) {
    fill_table();
    if (bootstrap->struct_size != sizeof *bootstrap || bootstrap->magic != ZF_BOOTSTRAP_MAGIC ||
        bootstrap->n_abis == 0 || bootstrap->abis == NULL || (bootstrap->reserved0 | bootstrap->reserved1) != 0)
        return refuse(bootstrap, ZF_ERR_ARGUMENT, "the host's bootstrap is wrong");
    if (is("other_abi"))
        return refuse(bootstrap, ZF_ERR_ABI, "no common ABI: plugin knows 7.3, host serves 0.16");
    if (is("silent_abi"))
        return refuse(bootstrap, ZF_ERR_ABI, "");
    if (is("refuses"))
        return refuse(bootstrap, ZF_ERR_MEMORY, "no memory for the mock");
    return agree(bootstrap, is("unserved_abi") ? ZF_ABI_NUMBER(5, 2) : bootstrap->abis[0],
                 is("no_table") ? NULL : &table.known);
}
