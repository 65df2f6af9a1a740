/* SPDX-License-Identifier: Apache-2.0 */
/* mock_plugin.c - plugins that keep or break one rule of the entry, for test_loader.c.
 *
 * One source, one library per value of MOCK (tests/bindings/CMakeLists.txt). The slots do nothing: the loader never
 * calls them. MOCK_GOOD keeps every rule.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf/ext/cpu.h"
#include "zf/ext/state.h"
#include "zf/plugin.h"

#define MOCK_GOOD 0
#define MOCK_OTHER_ABI 1    /* knows only major 7; says so with both lists */
#define MOCK_SILENT_ABI 2   /* the same, without a word */
#define MOCK_UNSERVED_ABI 3 /* chooses an ABI that the host did not list */
#define MOCK_REFUSES 4      /* another negative status */
#define MOCK_NO_TABLE 5     /* agrees, but hands out NULL */
#define MOCK_TABLE_ABI 6    /* the table names another ABI than was chosen */
#define MOCK_NULL_SLOT 7    /* step is NULL */
#define MOCK_SHORT_TABLE 8  /* ends before poll */
#define MOCK_TINY_TABLE 9   /* ends before abi */
#define MOCK_LONG_TABLE 10  /* a later minor's table, longer than the host's: legal */
#define MOCK_CPU_EXT 11     /* has zf.cpu/1, whose fence_wait always times out */
#define MOCK_REPLACED 12    /* has zf.state/1: while weights are read, the file ZF_MOCK_INDEX becomes the index */

static zf_status_t describe(zf_description_t *out, zf_error_t *err) {
    (void)err;
    out->name = "mock";
    return ZF_OK;
}

/* In every slot that the loader only looks at. */
static void never(void) { abort(); }

static zf_status_t fence_wait(const zf_fence_t *fence, uint64_t timeout_ns, zf_error_t *err) {
    (void)fence, (void)timeout_ns;
    if (err != NULL)
        snprintf(err->message, sizeof err->message, "said by the mock's fence_wait");
    return ZF_ERR_TIMEOUT;
}

static const zf_cpu_ext_t cpu_ext = {.struct_size = sizeof(zf_cpu_ext_t), .fence_wait = fence_wait};

static zf_status_t verify(const zf_state_args_t *args, zf_state_report_t *out_report, zf_error_t *err) {
    (void)args, (void)out_report, (void)err;
    return ZF_OK;
}

static zf_status_t weights(const zf_state_args_t *args, const char *param, float *out, uint64_t n_elems,
                           zf_error_t *err) {
    const char *other = getenv("ZF_MOCK_INDEX");
    char index[4096];
    (void)param, (void)err;
    memset(out, 0, n_elems * sizeof *out);
    snprintf(index, sizeof index, "%s/%s", args->path, ZF_STATE_INDEX);
    if (other && rename(other, index) != 0)
        perror(other); /* the second time it is gone */
    return ZF_OK;
}

static const zf_state_ext_t state_ext = {.struct_size = sizeof(zf_state_ext_t), .verify = verify, .weights = weights};

static const void *get_extension(const char *id) {
    if (MOCK == MOCK_REPLACED && strcmp(id, ZF_EXT_STATE) == 0)
        return &state_ext;
    return MOCK == MOCK_CPU_EXT && strcmp(id, ZF_EXT_CPU) == 0 ? &cpu_ext : NULL;
}

typedef struct long_table { /* what a later minor would append */
    zf_plugin_t known;
    void (*later_a)(void);
    void (*later_b)(void);
} long_table_t;

static long_table_t table = {
    .known = {.struct_size = MOCK == MOCK_SHORT_TABLE  ? offsetof(zf_plugin_t, poll)
                             : MOCK == MOCK_TINY_TABLE ? sizeof(uint32_t)
                             : MOCK == MOCK_LONG_TABLE ? sizeof(long_table_t)
                                                       : sizeof(zf_plugin_t),
              .abi = MOCK == MOCK_TABLE_ABI ? ZF_ABI_NUMBER(3, 1) : ZF_ABI_0_6,
              .describe = describe,
              .get_extension = get_extension},
};

static void fill_table(void) {
    void (*const slot)(void) = MOCK == MOCK_NULL_SLOT ? NULL : never;
    void (*const other)(void) = never;

    for (size_t at = offsetof(zf_plugin_t, create); at < sizeof(zf_plugin_t); at += sizeof slot)
        if (at != offsetof(zf_plugin_t, get_extension))
            memcpy((char *)&table.known + at, at == offsetof(zf_plugin_t, step) ? &slot : &other, sizeof slot);
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

static int32_t negotiate(zf_bootstrap_t *bootstrap, int mock) {
    if (bootstrap->struct_size != sizeof *bootstrap || bootstrap->magic != ZF_BOOTSTRAP_MAGIC ||
        bootstrap->n_abis == 0 || bootstrap->abis == NULL || (bootstrap->reserved0 | bootstrap->reserved1) != 0)
        return refuse(bootstrap, ZF_ERR_ARGUMENT, "the host's bootstrap is wrong");
    switch (mock) {
    case MOCK_OTHER_ABI:
        return refuse(bootstrap, ZF_ERR_ABI, "no common ABI: plugin knows 7.3, host serves 0.6");
    case MOCK_SILENT_ABI:
        return refuse(bootstrap, ZF_ERR_ABI, "");
    case MOCK_REFUSES:
        return refuse(bootstrap, ZF_ERR_MEMORY, "no memory for the mock");
    case MOCK_UNSERVED_ABI:
        return agree(bootstrap, ZF_ABI_NUMBER(5, 2), &table.known);
    case MOCK_NO_TABLE:
        return agree(bootstrap, ZF_ABI_0_6, NULL);
    default:
        return agree(bootstrap, bootstrap->abis[0], &table.known);
    }
}

__attribute__((visibility("default"))) int32_t zf_plugin_negotiate(zf_bootstrap_t *bootstrap) {
    fill_table();
    return negotiate(bootstrap, MOCK);
}
