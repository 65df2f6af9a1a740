/* SPDX-License-Identifier: Apache-2.0 */
/* abi_args.c - right arguments for every slot, and what a refusal must look like (abi_args.h). */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "abi_args.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *abi_guarded(size_t nbytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (nbytes + page - 1) / page * page + (nbytes == 0) * page;
    char *map = mmap(NULL, n + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + n, page, PROT_NONE) != 0)
        abort();
    return map + n - nbytes;
}

int abi_args_find(const abi_args_t *a, const char *role) {
    for (int i = 0; i < a->slot.n_args; i++)
        if (strcmp(a->slot.args[i].name, role) == 0)
            return i;
    return -1;
}

/* ---- right arguments --------------------------------------------------------------------------------------------- */

static void nop(void *arg) { (void)arg; }

static int32_t update(void *ctx, const zf_rule_update_t *u) {
    (void)ctx, (void)u;
    return 0;
}

static void copy_descriptions(abi_args_t *a) {
    abi_rig_t *rig = a->rig;
    a->create = rig->create;
    a->host = rig->host.table;
    a->create.host = &a->host;
    a->plan = (zf_plan_args_t){.struct_size = sizeof a->plan, .create = &a->create, .bind = &a->bind};
    a->group = (zf_group_decl_t){.struct_size = sizeof a->group, .rule = ZF_RULE_ADAMW};
    a->callback = (zf_rule_callback_t){.struct_size = sizeof a->callback, .name = "a rule", .update = update};
    a->chained[0] = (zf_chained_t){sizeof a->chained[0], 0, "zf-conform.first/1", &a->chained[1]};
    a->chained[1] = (zf_chained_t){sizeof a->chained[1], 0, "zf-conform.second/1", NULL};
    a->bind = (zf_bind_args_t){.struct_size = sizeof a->bind,
                               .decls = a->decls,
                               .n_decls = ABI_RIG_PARAMS,
                               .decl_size = sizeof a->decls[0],
                               .groups = &a->group,
                               .n_groups = 1,
                               .group_size = sizeof a->group};
    a->step = rig->step;
    a->hyper = rig->hyper;
    a->step.groups = &a->hyper;
    a->stream = rig->stream;
    a->step.stream = &a->stream;
    a->fence = (zf_fence_t){.struct_size = sizeof a->fence, .kind = ZF_FENCE_NONE};
    a->named[0] = (zf_param_item_t){.struct_size = sizeof a->named[0], .id = rig->ids[0]};
    a->quiesce = (zf_quiesce_args_t){.struct_size = sizeof a->quiesce, .mode = ZF_QUIESCE_DRAIN};
    a->destroy = (zf_destroy_args_t){.struct_size = sizeof a->destroy, .flags = ZF_DESTROY_FLUSH};
    for (int i = 0; i < ABI_RIG_PARAMS; i++) {
        a->tensors[i] = rig->tensors[i];
        a->decls[i] = rig->decls[i];
        a->decls[i].tensor = &a->tensors[i];
        a->ids[i] = rig->ids[i];
    }
    for (int i = 0; i < ABI_RIG_TRAINED; i++) {
        a->grad_tensors[i] = rig->grad_tensors[i];
        a->items[i] = rig->items[i];
        a->items[i].tensor = &a->grad_tensors[i];
        a->tensor_list[i] = &a->grad_tensors[i];
        a->exports[i] =
            (zf_export_item_t){.struct_size = sizeof a->exports[i], .id = rig->ids[i], .dst = a->exported[i]};
        a->exports[i].dst_nbytes = 4;
        for (int d = 0; d < rig->tensors[i].dl.ndim; d++)
            a->exports[i].dst_nbytes *= (uint64_t)rig->shapes[i][d];
    }
    snprintf(a->text, sizeof a->text, "%s", abi_rig_config);
}

static void *input_of_type(abi_args_t *a, const char *type) {
    const struct {
        const char *type;
        void *value;
    } inputs[] = {
        {"zf_create_args_t", &a->create}, {"zf_step_args_t", &a->step},       {"zf_stream_t", &a->stream},
        {"zf_bind_args_t", &a->bind},     {"zf_grad_item_t", a->items},       {"zf_export_item_t", a->exports},
        {"zf_fence_t", &a->fence},        {"zf_state_args_t", &a->state},     {"zf_plan_args_t", &a->plan},
        {"zf_param_item_t", a->named},    {"zf_quiesce_args_t", &a->quiesce}, {"zf_destroy_args_t", &a->destroy}};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        if (strcmp(inputs[i].type, type) == 0)
            return inputs[i].value;
    return NULL;
}

static uint32_t count_of(const abi_args_t *a) {
    int array = abi_args_find(a, "array");
    if (abi_args_find(a, "ids") >= 0 || (array >= 0 && strcmp(a->slot.args[array].type, "zf_param_item_t") == 0))
        return 1;
    return ABI_RIG_TRAINED; /* tensors */
}

static void paint_output(abi_args_t *a, int i) {
    const abi_role_t *role = &a->slot.args[i];
    uint32_t size = (uint32_t)abi_struct_size(role->type);
    memset(a->outputs[i], ABI_PAINT, sizeof a->outputs[i]);
    if (*role->type)
        memcpy(a->outputs[i], &size, sizeof size);
    if (strcmp(role->type, "zf_inspect_out_t") == 0) {
        zf_inspect_out_t out = {.struct_size = size,
                                .n_elems = 30,
                                .w = (float *)a->inspected[0],
                                .m = (float *)a->inspected[1],
                                .v = (float *)a->inspected[2],
                                .n = (uint32_t *)a->inspected[3],
                                .selected = (uint8_t *)a->inspected[4],
                                .importance = (double *)a->inspected[5]};
        memset(a->outputs[i], 0, sizeof a->outputs[i]); /* read before it is written: an unknown tail would count */
        memcpy(a->outputs[i], &out, sizeof out);
    }
}

/* It takes a step. */
static int is_of_step(const abi_args_t *a) { return strncmp(a->slot.entry->name, "step_", 5) == 0; }

static int is_weights(const abi_args_t *a) { return strcmp(a->slot.entry->name, "weights") == 0; }

/* A number of bytes, a time, or a step. */
static uint64_t number_of(const abi_args_t *a) {
    if (is_weights(a))
        return a->exports[0].dst_nbytes / 4;
    return is_of_step(a) ? 0 : 1000000000u;
}

static void fill_arg(abi_args_t *a, int i) {
    const abi_role_t *role = &a->slot.args[i];
    const char *name = role->name;
    int array = abi_args_find(a, "array");
    a->v[i].u64 = 0;
    if (strcmp(name, "instance") == 0)
        a->v[i].p = a->rig->instance;
    else if (strcmp(name, "in") == 0 || strcmp(name, "array") == 0)
        a->v[i].p = input_of_type(a, role->type);
    else if (strcmp(name, "ids") == 0)
        a->v[i].p = a->ids;
    else if (strcmp(name, "tensors") == 0)
        a->v[i].p = a->tensor_list;
    else if (strcmp(name, "n") == 0)
        a->v[i].u32 = count_of(a);
    else if (strcmp(name, "elem") == 0)
        a->v[i].u32 = (uint32_t)abi_struct_size(a->slot.args[array].type);
    else if (strcmp(name, "what") == 0)
        a->v[i].u32 = ZF_RELEASE_DEVICE;
    else if (strcmp(name, "id") == 0)
        a->v[i].u32 = a->ids[0];
    else if (strcmp(name, "u64") == 0)
        a->v[i].u64 = number_of(a);
    else if (strcmp(name, "err") == 0)
        a->v[i].p = &a->err;
    else if (strcmp(name, "text") == 0)
        a->v[i].p = a->text;
    else if (strcmp(name, "strs") == 0)
        a->v[i].p = (void *)a->overrides;
    else if (strcmp(name, "str") == 0)
        a->v[i].p = is_weights(a) ? (void *)(uintptr_t)a->decls[0].name : (void *)ZF_EXT_STATS;
    else if (strcmp(name, "queue") == 0)
        a->v[i].p = a->queue;
    else if (strcmp(name, "nbytes") == 0)
        a->v[i].u64 = abi_args_find(a, "text") >= 0 ? strlen(a->text) : 64;
    else if (strcmp(name, "fn") == 0) {
        void (*fn)(void *) = nop;
        memcpy(&a->v[i].p, &fn, sizeof fn);
    } else if (strcmp(name, "out") == 0 || strcmp(name, "handle") == 0 || strcmp(name, "outids") == 0 ||
               strcmp(name, "buf") == 0) {
        paint_output(a, i);
        a->v[i].p = a->outputs[i];
    }
}

const abi_extension_t abi_extensions[] = {{ZF_EXT_CONFIG, "zf_config_ext_t"},
                                          {ZF_EXT_CPU, "zf_cpu_ext_t"},
                                          {ZF_EXT_STATS, "zf_stats_ext_t"},
                                          {ZF_EXT_STATE, "zf_state_ext_t"},
                                          {ZF_EXT_INSPECT, "zf_inspect_ext_t"},
                                          {ZF_EXT_DIGEST, "zf_digest_ext_t"},
                                          {ZF_EXT_PLAN, "zf_plan_ext_t"},
                                          {ZF_EXT_SHARDS, "zf_shards_ext_t"},
                                          {ZF_EXT_RESIDENCY, "zf_residency_ext_t"},
                                          {ZF_EXT_MATRIX, "zf_matrix_ext_t"},
                                          {NULL, NULL}};

static const void *table_of(const zf_plugin_t *plugin, const char *owner) {
    if (strcmp(owner, "zf_plugin_t") == 0)
        return plugin;
    if (plugin->struct_size < sizeof *plugin || !plugin->get_extension)
        return NULL;
    for (const abi_extension_t *e = abi_extensions; e->id; e++)
        if (strcmp(owner, e->owner) == 0)
            return plugin->get_extension(e->id);
    return NULL;
}

/* Arguments of zf.state/1: a store of the host's that holds a checkpoint of the instance, where it can be saved. */
static void fill_store(abi_args_t *a) {
    const zf_state_ext_t *state = a->table;
    blobs_init(&a->blobs, a->rig->probe->scratch);
    a->state_store = a->blobs.table;
    a->state = (zf_state_args_t){.struct_size = sizeof a->state, .flags = ZF_STATE_KEEP_OPEN, .store = &a->state_store};
    if (a->rig->instance && a->rig->stage >= ABI_BOUND && strcmp(a->slot.entry->name, "save") != 0)
        state->save(a->rig->instance, &a->state, NULL, NULL);
    a->state.flags = 0;
}

int abi_args_fill(abi_args_t *a, abi_rig_t *rig, const char *owner, const char *slot) {
    const abi_entry_t *entry = abi_slot_entry(owner, slot);
    memset(a, 0, sizeof *a);
    a->rig = rig;
    a->table = table_of(rig->table, owner);
    if (!a->table || !entry)
        return 0;
    abi_slot_parse(entry, &a->slot);
    if (!abi_slot_function(a->table, &a->slot))
        return 0;
    copy_descriptions(a);
    if (strcmp(owner, "zf_state_ext_t") == 0)
        fill_store(a);
    memset(a->exported, ABI_PAINT, sizeof a->exported);
    memset(a->inspected, ABI_PAINT, sizeof a->inspected);
    if (abi_args_find(a, "queue") >= 0) {
        zf_stream_t stream = {.struct_size = sizeof stream};
        if (((const zf_cpu_ext_t *)a->table)->queue_create(&a->queue, &stream, NULL) < 0)
            return 0;
    }
    for (int i = 0; i < a->slot.n_args; i++)
        fill_arg(a, i);
    memset(&a->err, ABI_PAINT, sizeof a->err);
    a->err.struct_size = sizeof a->err;
    return 1;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

zf_status_t abi_args_call(abi_args_t *a) {
    int handle = abi_args_find(a, "handle");
    abi_host_enter(&a->rig->host);
    zf_status_t st = abi_slot_call(a->table, &a->slot, a->v, NULL);
    if (strcmp(a->slot.entry->name, "destroy") == 0 && a->v[0].p)
        a->rig->instance = NULL;
    if (st >= 0 && handle >= 0 && a->v[handle].p) {
        void *created;
        memcpy(&created, a->v[handle].p, sizeof created);
        if (strcmp(a->slot.entry->name, "create") == 0)
            a->rig->table->destroy(created, NULL);
        else
            ((const zf_cpu_ext_t *)a->table)->queue_destroy(created);
    }
    return abi_host_left(&a->rig->host, st);
}

static int is_text(const char *s, size_t nbytes) {
    size_t n = strnlen(s, nbytes);
    if (n == nbytes)
        return 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] == ABI_PAINT || ((unsigned char)s[i] < 0x20 && s[i] != '\n' && s[i] != '\t'))
            return 0;
    return 1;
}

/* The one parameter that a message names, by its number; ZF_NO_ID: none, or several. */
static uint32_t named_param(const abi_args_t *a, const char *message) {
    uint32_t found = ZF_NO_ID;
    for (uint32_t i = 0; i < ABI_RIG_PARAMS; i++) {
        char quoted[300];
        snprintf(quoted, sizeof quoted, "\"%s\"", a->rig->decls[i].name);
        if (!strstr(message, quoted))
            continue;
        if (found != ZF_NO_ID)
            return ZF_NO_ID;
        found = i;
    }
    return found;
}

/* Ids are numbers of declarations. What is said of a file's or of a configuration's names has none. */
static void check_blame(abi_args_t *a, const char *message, const char *what) {
    uint32_t named = named_param(a, message);
    int is_hook = strcmp(a->slot.entry->owner, "zf_plugin_t") == 0;
    abi_check(a->rig->probe, ABI_RULE_STATUS, a->err.rank == ZF_NO_ID, "%s, %s: the record has rank %u of one rank",
              a->slot.entry->name, what, a->err.rank);
    abi_check(a->rig->probe, ABI_RULE_STATUS,
              a->err.param == ZF_NO_ID || a->err.param < ABI_RIG_PARAMS || a->err.param == a->named[0].id,
              "%s, %s: the record has parameter %u", a->slot.entry->name, what, a->err.param);
    if (is_hook && named != ZF_NO_ID)
        abi_check(a->rig->probe, ABI_RULE_STATUS,
                  a->err.param < ABI_RIG_PARAMS && strcmp(a->decls[a->err.param].name, a->rig->decls[named].name) == 0,
                  "%s, %s: the message names \"%s\", number %u, the record has parameter %u", a->slot.entry->name, what,
                  a->rig->decls[named].name, named, a->err.param);
}

static void check_record(abi_args_t *a, zf_status_t st, const char *needle, const char *what) {
    abi_probe_t *p = a->rig->probe;
    int has_text = is_text(a->err.message, sizeof a->err.message);
    const char *message = has_text ? a->err.message : "(no text)", *slot = a->slot.entry->name;
    abi_check(p, ABI_RULE_STATUS, a->err.status == st && a->err.struct_size == sizeof a->err,
              "%s, %s: returned %d, the record has status %d", slot, what, st, a->err.status);
    abi_check(p, ABI_RULE_STATUS,
              (a->err.scope == ZF_SCOPE_CALL || a->err.scope == ZF_SCOPE_PARAM) && a->err.retryable == 0 &&
                  is_text(a->err.origin, sizeof a->err.origin) && a->err.origin[0],
              "%s, %s: scope %d, retryable %d, origin \"%.40s\"", slot, what, a->err.scope, a->err.retryable,
              a->err.origin);
    abi_check(p, ABI_RULE_NATIVE, a->err.native_code == 0 || (st == ZF_ERR_CONFIG && a->create.config_path),
              "%s, %s: native_code %lld, and the system had no part in it", slot, what, (long long)a->err.native_code);
    abi_check(p, ABI_RULE_MESSAGE, has_text && strlen(message) >= 10 && strchr(message, ' '),
              "%s, %s: message \"%.100s\" says nothing", slot, what, message);
    check_blame(a, message, what);
    if (has_text && strlen(message) >= 10 && needle)
        abi_check(p, ABI_RULE_MESSAGE, strstr(message, needle) != NULL, "%s, %s: \"%s\" is not in \"%.250s\"", slot,
                  what, needle, message);
}

static void check_state(abi_args_t *a, const unsigned char *before, size_t nbytes, const char *what) {
    size_t n_after, i = 0;
    unsigned char *after = abi_rig_state(a->rig, &n_after);
    char where[80] = "";
    while (i < nbytes && before[i] == after[i])
        i++;
    if (i < nbytes)
        abi_rig_describe_byte(a->rig, i, where, sizeof where);
    abi_check(a->rig->probe, ABI_RULE_UNCHANGED, i == nbytes, "%s, %s: %s has changed", a->slot.entry->name, what,
              where);
    free(after);
}

int abi_refused(abi_args_t *a, abi_rule_t rule, zf_status_t want, const char *needle, const char *what) {
    static unsigned char outputs[sizeof a->outputs], exported[sizeof a->exported], inspected[sizeof a->inspected];
    size_t nbytes;
    unsigned char *before = abi_rig_state(a->rig, &nbytes);
    int err = abi_args_find(a, "err"), is_refused;
    memcpy(outputs, a->outputs, sizeof outputs);
    memcpy(exported, a->exported, sizeof exported);
    memcpy(inspected, a->inspected, sizeof inspected);
    abi_try(a->rig->probe, "%s, %s", a->slot.entry->name, what);
    zf_status_t st = abi_args_call(a);
    is_refused = st < 0;
    abi_check(a->rig->probe, rule, st < 0 && (!want || st == want), "%s, %s: returned %d, not %s", a->slot.entry->name,
              what, st,
              want == ZF_ERR_STATE               ? "ZF_ERR_STATE"
              : want == ZF_ERR_UNSUPPORTED_FIELD ? "ZF_ERR_UNSUPPORTED_FIELD"
              : want == ZF_ERR_CONFIG            ? "ZF_ERR_CONFIG"
                                                 : "an error");
    if (is_refused) {
        if (err >= 0 && a->v[err].p == &a->err)
            check_record(a, st, needle, what);
        abi_check(a->rig->probe, ABI_RULE_OUTPUTS,
                  memcmp(outputs, a->outputs, sizeof outputs) == 0 &&
                      memcmp(exported, a->exported, sizeof exported) == 0 &&
                      memcmp(inspected, a->inspected, sizeof inspected) == 0,
                  "%s, %s: an output was written", a->slot.entry->name, what);
        check_state(a, before, nbytes, what);
    }
    free(before);
    return is_refused;
}

/* abi/README.md, "Growth": of another kind is what a host asked for at create, and this one did not. */
static void check_kinds(const abi_args_t *a, int i) {
    const char *type = a->slot.args[i].type;
    union {
        zf_fence_t fence;
        zf_counter_t counter;
        zf_step_report_t report;
        zf_step_record_t record;
    } out;
    int32_t kind = 0, most = 0;
    memcpy(&out, a->outputs[i], sizeof out);
    if (strcmp(type, "zf_fence_t") == 0)
        kind = out.fence.kind, most = ZF_FENCE_HOST_COUNTER;
    if (strcmp(type, "zf_counter_t") == 0)
        kind = (int32_t)out.counter.kind, most = ZF_COUNTER_LEVEL;
    if (strcmp(type, "zf_step_report_t") == 0)
        kind = out.report.skip_reason, most = ZF_SKIP_NONFINITE;
    if (strcmp(type, "zf_step_record_t") == 0)
        kind = out.record.skip_reason, most = ZF_SKIP_NONFINITE;
    abi_check(a->rig->probe, ABI_RULE_KINDS, kind >= 0 && kind <= most, "%s: a %s of kind %d", a->slot.entry->name,
              type, kind);
}

int abi_accepted(abi_args_t *a, abi_rule_t rule, const char *what) {
    char message[200] = "";
    abi_try(a->rig->probe, "%s, %s", a->slot.entry->name, what);
    zf_status_t st = abi_args_call(a);
    if (st < 0 && is_text(a->err.message, sizeof a->err.message))
        snprintf(message, sizeof message, "%.199s", a->err.message);
    for (int i = 0; i < a->slot.n_args && st >= 0; i++)
        if (strcmp(a->slot.args[i].name, "out") == 0 && a->v[i].p)
            check_kinds(a, i);
    return abi_check(a->rig->probe, rule, st >= 0, "%s, %s: returned %d: %s", a->slot.entry->name, what, st, message);
}
