/* SPDX-License-Identifier: Apache-2.0 */
/* abi_slots.c - proof 5, what the signature table alone can ask: NULL for every pointer, every size of every struct,
 * every element size, every hook in every state. One child process for each slot and kind of question. */
#include <stdlib.h>
#include <string.h>

#include "abi_args.h"
#include "abi_probes.h"

enum { LONGER_BY = 64 };

static const abi_entry_t *current; /* slot of the probe that the child runs; set before the fork */
static abi_rig_t rig;
static abi_args_t a; /* of the call that is made next */

static abi_stage_t stage_for(const abi_entry_t *slot) {
    return strcmp(slot->name, "bind_params") == 0 ? ABI_CREATED
           : strcmp(slot->name, "resume") == 0    ? ABI_RELEASED
                                                  : ABI_ACTIVE;
}

static int start(void) {
    static const char *const asks[] = {"zenflow.on_overwrite=ask"};
    abi_rig_end(&rig);
    abi_rig_describe(&rig, 1);
    if (strcmp(current->name, "adopt") == 0) /* legal under this key alone */
        rig.create.overrides = asks, rig.create.n_overrides = 1;
    if (strcmp(current->name, "release") == 0)
        rig.create.flags = ZF_CREATE_CAP_RELEASE;
    return abi_rig_start(&rig, stage_for(current));
}

static int open_rig(abi_probe_t *probe) { return abi_rig_open(&rig, probe, probe->plugin) && start(); }

static int fill(void) { return abi_args_fill(&a, &rig, current->owner, current->name); }

/* The rig goes on after what had to be refused, or starts anew. 0: it cannot. */
static int refused(abi_rule_t rule, zf_status_t want, const char *what) {
    return abi_refused(&a, rule, want, NULL, what) || start();
}

/* Slots that are legal once, or once in a step: after a success the rig starts anew. */
static int is_once(void) {
    return strcmp(current->name, "bind_params") == 0 || strcmp(current->name, "grads_ready") == 0 ||
           strcmp(current->owner, "zf_residency_ext_t") == 0;
}

static int is_destroy(void) {
    return strcmp(current->name, "destroy") == 0 || strcmp(current->name, "queue_destroy") == 0;
}

/* ---- right calls, NULLs ------------------------------------------------------------------------------------------ */

static void probe_nulls(abi_probe_t *probe) {
    char what[64];
    int err;
    if (!open_rig(probe) || !fill())
        return;
    for (int i = 0; i < a.slot.n_args; i++) {
        const abi_role_t *role = &a.slot.args[i];
        if (!role->is_pointer || !fill())
            continue;
        a.v[i].p = NULL;
        snprintf(what, sizeof what, "NULL for argument %d (%s)", i + 1, role->name);
        if (role->null_is == '!') {
            if (!refused(ABI_RULE_NULLS, 0, what))
                return;
        } else {
            if (role->null_is == '?')
                abi_accepted(&a, ABI_RULE_NULLS, what);
            else
                abi_try(probe, "%s, %s", current->name, what), abi_args_call(&a);
            if (strcmp(role->name, "err") == 0 && !is_destroy() && fill()) { /* an error without a record for it */
                err = i;
                a.v[err].p = NULL;
                if (a.slot.args[0].null_is == '?') /* and a number behind it */
                    a.v[1].u32 = 999;
                else if (a.slot.args[0].is_pointer)
                    a.v[0].p = NULL;
                else
                    a.v[0].u32 = 999;
                abi_refused(&a, ABI_RULE_NULLS, 0, NULL, "a wrong call without an error record");
            }
            if (!start())
                return;
        }
    }
    if (fill() && !is_destroy())
        abi_accepted(&a, ABI_RULE_VALID, "right arguments");
    if (is_once() && !start())
        return;
    if (stage_for(current) == ABI_ACTIVE && strcmp(current->name, "quiesce") != 0)
        abi_rig_train(&rig, 1, ABI_RULE_USABLE);
    abi_rig_end(&rig);
}

/* ---- sizes of input structs -------------------------------------------------------------------------------------- */

typedef struct site { /* a place where a call points to an input struct */
    const char *type;
    const void **pointer;
} site_t;

/* All such places of a filled call: arguments, and structs that these point to. */
static int find_sites(site_t *out) {
    int n = 0;
    for (int i = 0; i < a.slot.n_args && !is_destroy(); i++) /* which never fails */
        if (strcmp(a.slot.args[i].name, "in") == 0)
            out[n++] = (site_t){a.slot.args[i].type, (const void **)(void *)&a.v[i].p};
    if (strcmp(current->name, "create") == 0)
        out[n++] = (site_t){"zf_host_t", (const void **)(void *)&a.create.host};
    if (strcmp(current->name, "bind_params") == 0)
        out[n++] = (site_t){"zf_tensor_t", (const void **)(void *)&a.decls[1].tensor};
    if (strcmp(current->name, "plan") == 0) {
        out[n++] = (site_t){"zf_create_args_t", (const void **)(void *)&a.plan.create};
        out[n++] = (site_t){"zf_bind_args_t", (const void **)(void *)&a.plan.bind};
    }
    if (strcmp(current->name, "grads_ready") == 0)
        out[n++] = (site_t){"zf_tensor_t", (const void **)(void *)&a.items[1].tensor};
    if (abi_args_find(&a, "tensors") >= 0)
        out[n++] = (site_t){"zf_tensor_t", (const void **)(void *)&a.tensor_list[1]};
    if (strcmp(current->owner, "zf_state_ext_t") == 0)
        out[n++] = (site_t){"zf_state_store_t", (const void **)(void *)&a.state.store};
    if (strcmp(current->name, "step") == 0 || strcmp(current->name, "announce") == 0)
        out[n++] = (site_t){"zf_stream_t", (const void **)(void *)&a.step.stream};
    return n;
}

/* Moves the struct to memory of nbytes that ends at unreadable memory, and sets its struct_size. */
static unsigned char *resize(site_t *site, size_t nbytes, uint32_t struct_size) {
    size_t known = abi_struct_size(site->type);
    unsigned char *memory = abi_guarded(nbytes);
    memcpy(memory, *site->pointer, nbytes < known ? nbytes : known);
    if (nbytes >= sizeof struct_size)
        memcpy(memory, &struct_size, sizeof struct_size);
    *site->pointer = memory;
    return memory;
}

/* The call is taken under rule LONGER, else refused. 0: the probe ends. */
static int judge(abi_rule_t rule, const char *what) {
    if (rule != ABI_RULE_LONGER)
        return refused(rule, rule == ABI_RULE_TAIL ? ZF_ERR_UNSUPPORTED_FIELD : 0, what);
    abi_accepted(&a, rule, what);
    return start();
}

/* Struct number k in so many bytes, with this struct_size and this added to its last byte. 0: the probe ends. */
static int probe_size(int k, abi_rule_t rule, uint32_t nbytes, uint32_t struct_size, unsigned char last) {
    site_t sites[4];
    char what[96];
    if (!fill() || find_sites(sites) <= k)
        return 0;
    resize(&sites[k], nbytes, struct_size)[nbytes - 1] |= last;
    snprintf(what, sizeof what, "%s with struct_size %u%s", sites[k].type, struct_size,
             last ? ", an unknown byte not zero" : "");
    return judge(rule, what);
}

static int probe_site(int k, uint32_t known) {
    const uint32_t longer = known + LONGER_BY;
    return probe_size(k, ABI_RULE_SHORT, 8, 0, 0) && probe_size(k, ABI_RULE_SHORT, 8, 8, 0) &&
           probe_size(k, ABI_RULE_ABSURD, known, 0xFFFFFFFFu, 0) &&
           probe_size(k, ABI_RULE_ABSURD, known, 65536 + 8, 0) &&
           probe_size(k, ABI_RULE_SHORT, known - 8, known - 8, 0) && probe_size(k, ABI_RULE_TAIL, longer, longer, 1) &&
           probe_size(k, ABI_RULE_LONGER, longer, longer, 0);
}

static void probe_inputs(abi_probe_t *probe) {
    site_t sites[4];
    if (!open_rig(probe) || !fill())
        return;
    int n = find_sites(sites);
    for (int k = 0; k < n; k++)
        if (!fill() || find_sites(sites) <= k || !probe_site(k, (uint32_t)abi_struct_size(sites[k].type)))
            return;
    abi_rig_end(&rig);
}

/* ---- element sizes ----------------------------------------------------------------------------------------------- */

typedef struct array { /* where a call has an array of structs */
    const char *type;
    const void **pointer;
    uint32_t n, *elem;
} array_t;

/* Array number `which` of the call. */
static int find_array(int which, array_t *out) {
    int i = abi_args_find(&a, "array"), n = abi_args_find(&a, "n"), elem = abi_args_find(&a, "elem");
    if (strcmp(current->name, "bind_params") == 0) {
        *out = which ? (array_t){"zf_group_decl_t", (const void **)(void *)&a.bind.groups, 1, &a.bind.group_size}
                     : (array_t){"zf_param_decl_t", (const void **)(void *)&a.bind.decls, ABI_RIG_PARAMS,
                                 &a.bind.decl_size};
        return which < 2;
    }
    if (strcmp(current->name, "step") == 0 || strcmp(current->name, "announce") == 0) {
        *out = (array_t){"zf_group_hyper_t", (const void **)(void *)&a.step.groups, 1, &a.step.elem_size};
        return which < 1;
    }
    if (i < 0 || which > 0)
        return 0;
    *out = (array_t){a.slot.args[i].type, (const void **)(void *)&a.v[i].p, a.v[n].u32, &a.v[elem].u32};
    return 1;
}

/* Lays the elements `stride` bytes apart, with zero between, at the end of readable memory. */
static unsigned char *spread(array_t *array, uint32_t stride, uint32_t struct_size) {
    uint32_t known = (uint32_t)abi_struct_size(array->type);
    unsigned char *memory = abi_guarded((size_t)stride * array->n);
    for (uint32_t i = 0; i < array->n; i++) {
        memcpy(memory + (size_t)i * stride, (const char *)*array->pointer + (size_t)i * known, known);
        memcpy(memory + (size_t)i * stride, &struct_size, sizeof struct_size);
    }
    *array->pointer = memory;
    *array->elem = stride;
    return memory;
}

/* Elements so many bytes apart, each with this struct_size (0: both are as they were, and this is said) and this added
 * to the last one's last byte. 0: the probe ends. */
static int probe_stride(int which, abi_rule_t rule, uint32_t stride, uint32_t struct_size, unsigned char last) {
    array_t array;
    char what[96];
    if (!fill() || !find_array(which, &array))
        return 0;
    if (struct_size == 0)
        *array.elem = stride;
    else
        spread(&array, stride, struct_size)[(size_t)array.n * stride - 1] |= last;
    snprintf(what, sizeof what, "elem_size %u, struct_size %u%s", stride, struct_size,
             last ? ", its tail not zero" : "");
    return judge(rule, what);
}

static int probe_array(int which, uint32_t known) {
    const uint32_t longer = known + LONGER_BY, wrong[] = {0, 4, known - 8, known + 3, 0xFFFFFFF8u};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (!probe_stride(which, ABI_RULE_ELEM, wrong[i], 0, 0))
            return 0;
    return probe_stride(which, ABI_RULE_ELEM, known, known + 8, 0) &&
           probe_stride(which, ABI_RULE_SHORT, known, known - 8, 0) &&
           probe_stride(which, ABI_RULE_TAIL, longer, longer, 1) &&
           probe_stride(which, ABI_RULE_LONGER, longer, longer, 0);
}

static void probe_elements(abi_probe_t *probe) {
    array_t array;
    if (!open_rig(probe))
        return;
    for (int which = 0; fill() && find_array(which, &array); which++)
        if (!probe_array(which, (uint32_t)abi_struct_size(array.type)))
            return;
    abi_rig_end(&rig);
}

/* ---- sizes of output structs ------------------------------------------------------------------------------------- */

static void probe_output(abi_probe_t *probe, int arg) {
    const uint32_t known = (uint32_t)abi_struct_size(a.slot.args[arg].type);
    const uint32_t sizes[] = {0, 8, known - 8, known, known + LONGER_BY, 0xFFFFFFFFu};
    for (size_t v = 0; v < sizeof sizes / sizeof sizes[0]; v++) {
        uint32_t limit = sizes[v] < known ? sizes[v] : known, size = sizes[v], i;
        char what[96];
        if (!fill())
            return;
        memcpy(a.outputs[arg], &size, sizeof size);
        abi_try(probe, "%s, %s with struct_size %u", current->name, a.slot.args[arg].type, size);
        zf_status_t st = abi_args_call(&a);
        i = limit < 4 ? 4 : limit;
        if (st < 0)
            i = 4;
        if (strcmp(current->name, "read") == 0 && st < 0)
            i = 56; /* zf_inspect_out_t is filled by the caller */
        while (i < ABI_OUT_NBYTES && (a.outputs[arg][i] == ABI_PAINT || (st < 0 && i < 4)))
            i++;
        snprintf(what, sizeof what, "%s with struct_size %u", a.slot.args[arg].type, size);
        if (size == 0)
            abi_check(probe, ABI_RULE_OUTSIZE, st < 0, "%s, %s: accepted", current->name, what);
        if (size == known || size == known + LONGER_BY ||
            (size >= 8 && size < known && strcmp(current->owner, "zf_inspect_ext_t") != 0))
            abi_check(probe, ABI_RULE_OUTSIZE, st >= 0, "%s, %s: returned %d", current->name, what, st);
        abi_check(probe, ABI_RULE_OUTSIZE, i == ABI_OUT_NBYTES || strcmp(current->owner, "zf_inspect_ext_t") == 0,
                  "%s, %s: byte %u was written", current->name, what, i);
        if ((st >= 0 && is_once()) && !start())
            return;
    }
}

static void probe_outputs(abi_probe_t *probe) {
    if (!open_rig(probe) || !fill())
        return;
    for (int i = 0; i < a.slot.n_args; i++)
        if (strcmp(a.slot.args[i].name, "out") == 0)
            probe_output(probe, i);
    abi_rig_end(&rig);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* abi/README.md, "States": what is not legal. */
static int is_legal(const char *slot, abi_stage_t stage) {
    if (strcmp(slot, "fence_wait") == 0)
        return 1;
    if (stage == ABI_RELEASED || strcmp(slot, "resume") == 0)
        return stage == ABI_RELEASED &&
               (strcmp(slot, "export_params") == 0 || strcmp(slot, "save") == 0 || strcmp(slot, "resume") == 0);
    return strcmp(slot, "bind_params") == 0 || stage != ABI_CREATED;
}

static void probe_states(abi_probe_t *probe) {
    static const char *const names[] = {[ABI_CREATED] = "created", "bound", "active", "quiesced", "released"};
    char what[64];
    if (!abi_rig_open(&rig, probe, probe->plugin))
        return;
    int last = rig.table->get_extension(ZF_EXT_RESIDENCY) ? ABI_RELEASED : ABI_QUIESCED;
    for (int stage = ABI_CREATED; stage <= last; stage++) {
        abi_rig_end(&rig);
        abi_rig_describe(&rig, 1);
        rig.create.flags = strcmp(current->owner, "zf_residency_ext_t") == 0 ? ZF_CREATE_CAP_RELEASE : 0;
        if (!abi_rig_start(&rig, (abi_stage_t)stage) || !fill())
            return;
        snprintf(what, sizeof what, "in state %s", names[stage]);
        if (is_legal(current->name, (abi_stage_t)stage))
            abi_accepted(&a, ABI_RULE_VALID, what);
        else
            abi_refused(&a, ABI_RULE_STATE, ZF_ERR_STATE, NULL, what);
    }
    abi_rig_end(&rig);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

void abi_slot_probes(abi_probe_t *probe) {
    size_t n;
    const abi_entry_t *entries = abi_table(&n);
    for (size_t i = 0; i < n; i++) {
        char name[96];
        current = &entries[i];
        if (!strchr(current->roles, 'r'))
            continue;
        int is_core = strcmp(current->owner, "zf_plugin_t") == 0;
        snprintf(name, sizeof name, "%s.%s", current->owner, current->name);
        if (strcmp(current->name, "get_extension") == 0)
            continue;
        abi_probe_run(probe, name, probe_nulls);
        if (is_destroy())
            continue;
        if (strstr(current->roles, "in:") || strstr(current->roles, "tensors") ||
            (is_core && strstr(current->roles, "array:")))
            abi_probe_run(probe, name, probe_inputs);
        if (strstr(current->roles, "array:") || strcmp(current->name, "step") == 0 ||
            strcmp(current->name, "announce") == 0 || strcmp(current->name, "bind_params") == 0)
            abi_probe_run(probe, name, probe_elements);
        if (strstr(current->roles, "out:") || strstr(current->roles, "out?:") || strstr(current->roles, "out~:"))
            abi_probe_run(probe, name, probe_outputs);
        if (strncmp(current->roles, "instance", 8) == 0 &&
            (is_core || strcmp(current->owner, "zf_residency_ext_t") == 0 ||
             strcmp(current->owner, "zf_state_ext_t") == 0))
            abi_probe_run(probe, name, probe_states);
    }
}
