/* SPDX-License-Identifier: Apache-2.0 */
/* abi_hosts.c - proof 5, what hosts got wrong in trials: what they may do, and what is refused by name. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi_args.h"
#include "abi_probes.h"
#include "abi_rig.h"

/* Refused with this word in the message. */
static void expect(abi_rig_t *rig, abi_rule_t rule, zf_status_t st, zf_status_t want, const char *word,
                   const char *what) {
    abi_check(rig->probe, rule, st == want, "%s: returned %d, not %d", what, st, want);
    if (st < 0)
        abi_check(rig->probe, ABI_RULE_MESSAGE, strstr(rig->err.message, word) != NULL,
                  "%s: \"%s\" is not in \"%.250s\"", what, word, rig->err.message);
}

/* ---- the host table ---------------------------------------------------------------------------------------------- */

static unsigned n_trapped;

static void trap(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                 uint64_t len) {
    (void)ctx, (void)level, (void)component, (void)file, (void)line, (void)msg, (void)len;
    n_trapped++;
}

/* The table lies in an init function's frame: after create it is something else. */
static void run_host_copy(abi_rig_t *rig) {
    zf_host_t table = rig->host.table;
    char name[] = "zf-conform";
    table.name = table.version = name;
    rig->create.host = &table;
    zf_status_t st = abi_rig_create(rig);
    if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "create", st))
        return;
    table.log = trap;
    table.get_extension = NULL;
    memset(name, 0x7F, sizeof name - 1);
    abi_try(rig->probe, "a host table that changed after create");
    if (abi_rig_bind(rig, NULL) == ZF_OK)
        abi_rig_train(rig, 3, ABI_RULE_VALID);
    abi_rig_end(rig);
    abi_check(rig->probe, ABI_RULE_HOST_COPY, n_trapped == 0, "the host's table was read %u times after create",
              n_trapped);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static void run_bad_weights(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    static const int64_t empty[2] = {0, 5}, no_strides[2] = {0, 0};
    const uint16_t nan = 0x7FC0;
    uint16_t kept;
    memcpy(&kept, (char *)rig->memory[1] + 14, sizeof kept);
    memcpy((char *)rig->memory[1] + 14, &nan, sizeof nan);
    abi_try(p, "bind_params with a NaN weight");
    expect(rig, ABI_RULE_TENSORS, abi_rig_bind(rig, NULL), ZF_ERR_NONFINITE, "b.weight", "bind_params, a NaN weight");
    memcpy((char *)rig->memory[1] + 14, &kept, sizeof kept);
    rig->tensors[2].dl.ndim = 2;
    rig->tensors[2].dl.shape = empty;
    rig->tensors[2].dl.strides = no_strides;
    abi_try(p, "bind_params with an empty tensor");
    zf_status_t st = abi_rig_bind(rig, NULL);
    abi_rig_check(rig, ABI_RULE_TENSORS, st == ZF_OK, "bind_params, an empty tensor with strides 0,", st);
}

/* Refused by name; the weights that the host writes back train as if nothing had been. */
static void run_changed_to_nan(abi_rig_t *rig) {
    enum { MORE = 3 };
    uint64_t alone = abi_rig_hash_alone(rig->probe, 1, ABI_RIG_STEPS + MORE);
    float *w = (float *)(void *)rig->memory[0], kept;
    if (!abi_rig_start(rig, ABI_ACTIVE))
        return;
    kept = w[3];
    w[3] = NAN;
    abi_try(rig->probe, "params_changed with a NaN weight");
    expect(rig, ABI_RULE_TENSORS, ABI_CALL(rig, rig->table->params_changed(rig->instance, NULL, 0, 0, 0, &rig->err)),
           ZF_ERR_NONFINITE, "a.weight", "params_changed, a NaN weight");
    w[3] = kept;
    if (abi_rig_train(rig, MORE, ABI_RULE_USABLE))
        abi_check(rig->probe, ABI_RULE_UNCHANGED, !alone || abi_rig_hash(rig) == alone,
                  "after a refused params_changed training ends in another state than without it");
}

static void run_one_memory(abi_rig_t *rig) {
    static abi_rig_t other;
    abi_probe_t *p = rig->probe;
    if (!abi_rig_open(&other, p, p->plugin) || !abi_rig_start(&other, ABI_CREATED))
        return;
    other.tensors[0].dl.data = rig->tensors[0].dl.data;
    abi_try(p, "two instances on one memory");
    expect(&other, ABI_RULE_TENSORS, abi_rig_bind(&other, NULL), ZF_ERR_PARAM, "a.weight",
           "bind_params, memory of another live instance");
    abi_rig_end(rig);
    zf_status_t st = abi_rig_bind(&other, NULL);
    abi_rig_check(&other, ABI_RULE_TENSORS, st == ZF_OK, "bind_params, memory of a destroyed instance,", st);
    abi_rig_end(&other);
}

/* bind_params again in other memory, of the same set or another: what was left is free for others, what is used is not;
 * and a refused one changes none of that. */
static void run_moved_memory(abi_rig_t *rig) {
    static abi_rig_t other;
    static uint64_t places[2][ABI_RIG_MAX_ELEMS / 2];
    abi_probe_t *p = rig->probe;
    if (!abi_rig_open(&other, p, p->plugin) || !abi_rig_start(&other, ABI_CREATED))
        return;
    for (int i = 0; i < 2; i++) {
        void *former = rig->tensors[0].dl.data;
        abi_try(p, "bind_params again in other memory");
        rig->tensors[0].dl.data = places[i];
        rig->decls[1].home = i ? ZF_HOME_HOST : ZF_HOME_PLUGIN; /* another set */
        zf_status_t st = abi_rig_bind(rig, NULL);
        if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "bind_params again in other memory", st))
            return;
        other.tensors[0].dl.data = places[i];
        expect(&other, ABI_RULE_TENSORS, abi_rig_bind(&other, NULL), ZF_ERR_PARAM, "a.weight",
               "bind_params, memory that another live instance has moved to");
        other.tensors[0].dl.data = former;
        st = abi_rig_bind(&other, NULL);
        abi_rig_check(&other, ABI_RULE_TENSORS, st == ZF_OK, "bind_params, memory that another instance has left,", st);
        rig->tensors[0].dl.data = former;
        expect(rig, ABI_RULE_TENSORS, abi_rig_bind(rig, NULL), ZF_ERR_PARAM, "a.weight",
               "bind_params again, in memory of another live instance");
        rig->tensors[0].dl.data = places[i];
        other.tensors[0].dl.data = places[i];
        expect(&other, ABI_RULE_TENSORS, abi_rig_bind(&other, NULL), ZF_ERR_PARAM, "a.weight",
               "bind_params again, in memory of another one whose own call was refused");
        abi_rig_end(&other);
        abi_rig_train(rig, 1, ABI_RULE_USABLE);
        if (!abi_rig_start(&other, ABI_CREATED))
            return;
    }
    abi_rig_end(&other);
}

/* params_changed(NULL, 0) is every parameter, an empty list none; what it leaves out may be found as written
 * unannounced. */
static void run_all_changed(abi_rig_t *rig) {
    static const zf_param_item_t none = {.struct_size = sizeof none};
    float out[30];
    zf_export_item_t item = {.struct_size = sizeof item, .id = rig->ids[0], .dst = out, .dst_nbytes = sizeof out};
    zf_status_t st;
    for (int i = 0; i < 30; i++)
        ((float *)(void *)rig->memory[0])[i] = 0.5f;
    for (int all = 0; all < 2; all++) {
        abi_try(rig->probe, "params_changed with n = 0");
        st = ABI_CALL(rig, rig->table->params_changed(rig->instance, all ? NULL : &none, 0, sizeof none, 0, NULL));
        if (st >= 0)
            st = abi_rig_export(rig, &item);
        abi_check(rig->probe, ABI_RULE_COUNT,
                  all ? st == ZF_OK && out[7] == 0.5f : st == ZF_ERR_OVERWRITTEN || (st == ZF_OK && out[7] != 0.5f),
                  "params_changed, ids %s with n = 0: returned %d, the weight %s taken over", all ? "NULL" : "given",
                  st, out[7] == 0.5f ? "was" : "was not");
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void run_no_size(abi_rig_t *rig) {
    const zf_bind_args_t args = {
        .struct_size = sizeof args, .decls = NULL, .n_decls = ABI_RIG_PARAMS, .decl_size = sizeof rig->decls[0]};
    zf_error_t err = {0};
    zf_status_t st = ABI_CALL(rig, rig->table->bind_params(rig->instance, &args, rig->ids, NULL, &err));
    abi_check(rig->probe, ABI_RULE_STATUS, st < 0 && err.status == st && err.struct_size == 0,
              "a record with struct_size 0: returned %d, the record has status %d", st, err.status);
}

/* ---- a queue ----------------------------------------------------------------------------------------------------- */

static void pause_now(void *unused) {
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void run_queue(abi_rig_t *rig) {
    const zf_cpu_ext_t *cpu = rig->table->get_extension(ZF_EXT_CPU);
    zf_cpu_queue_t *queue = abi_rig_queue(rig, ABI_RULE_WAITS);
    if (!queue)
        return;
    cpu->queue_launch(queue, pause_now, NULL, NULL);
    zf_status_t st = cpu->queue_sync(queue, UINT64_C(1) << 35, &rig->err); /* 34 s */
    abi_rig_check(rig, ABI_RULE_WAITS, st == ZF_OK, "queue_sync of half a minute", st);
    abi_rig_end(rig);
    cpu->queue_destroy(queue);
}

/* ---- what others define ------------------------------------------------------------------------------------------ */

/* Structs that no plugin knows, and that may be passed over, in every place for them. */
static void run_chain(abi_rig_t *rig) {
    static zf_chained_t last = {sizeof last, 0, "zf-conform.last/1", NULL};
    static struct {
        zf_chained_t head;
        uint64_t rest[4];
    } first = {{sizeof first, 0, "zf-conform.first/1", &last}, {1, 2, 3, 4}};
    rig->create.next = rig->step.next = rig->bind_next = rig->decls[1].next = rig->items[1].next = &first;
    zf_status_t st = abi_rig_create(rig);
    if (st >= 0)
        st = abi_rig_bind(rig, NULL);
    if (abi_rig_check(rig, ABI_RULE_NEXT, st == ZF_OK, "a chain that may be passed over", st))
        abi_rig_train(rig, 1, ABI_RULE_NEXT);
}

/* ---- the host's update rule -------------------------------------------------------------------------------------- */

static float weight_of(uint32_t param, uint64_t element) { return (float)(1000 * (param + 1) + element); }

static int32_t number_elements(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    for (uint64_t i = 0; i < u->n_elems; i++)
        u->w[i] = weight_of(u->param, u->index ? u->index[i] : u->first + i);
    return 0;
}

static void check_numbered(abi_rig_t *rig, uint32_t param) {
    float values[ABI_RIG_MAX_ELEMS];
    zf_export_item_t item = {.struct_size = sizeof item, .id = rig->ids[param], .dst = values, .dst_nbytes = 4};
    uint64_t n = 1;
    for (int d = 0; d < rig->tensors[param].dl.ndim; d++)
        n *= (uint64_t)rig->shapes[param][d];
    item.dst_nbytes = 4 * n;
    zf_status_t st = abi_rig_export(rig, &item);
    if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "export_params", st))
        return;
    for (uint64_t e = 0; e < n; e++)
        if (!abi_check(rig->probe, ABI_RULE_ELEMENTS, values[e] == weight_of(item.id, e),
                       "parameter %u: a rule that writes each element's number left %g in place of %g", item.id,
                       (double)values[e], (double)weight_of(item.id, e)))
            return;
}

/* Every element gets its number from the rule, in selected channels too. */
static void run_elements(abi_rig_t *rig) {
    static const zf_rule_callback_t callback = {
        .struct_size = sizeof callback, .name = "numbers", .update = number_elements};
    static const zf_group_decl_t group = {sizeof group, ZF_RULE_CALLBACK, &callback};
    rig->group = &group;
    zf_status_t st = abi_rig_create(rig);
    if (st >= 0)
        st = abi_rig_bind(rig, NULL);
    if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "bind_params with a rule of the host's", st) ||
        !abi_rig_train(rig, 5, ABI_RULE_VALID))
        return;
    for (uint32_t i = 0; i < ABI_RIG_TRAINED; i++)
        check_numbered(rig, i);
}

static int32_t fail_always(void *ctx, const zf_rule_update_t *u) {
    (void)ctx, (void)u;
    return 77;
}

/* A rule that fails ends the instance: the status of a call that waits for it, or of the next one. */
static void run_failing_rule(abi_rig_t *rig) {
    static const zf_rule_callback_t callback = {
        .struct_size = sizeof callback, .name = "failing", .update = fail_always};
    static const zf_group_decl_t group = {sizeof group, ZF_RULE_CALLBACK, &callback};
    rig->group = &group;
    zf_status_t st = abi_rig_create(rig);
    if (st >= 0)
        st = abi_rig_bind(rig, NULL);
    if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "bind_params with a rule of the host's", st))
        return;
    for (int i = 0; i < 6 && st >= 0; i++)
        st = abi_rig_step(rig, ABI_RIG_TRAINED, NULL);
    st = st < 0 ? st : abi_rig_quiesce(rig, ZF_QUIESCE_FLUSH);
    abi_check(rig->probe, ABI_RULE_ELEMENTS,
              st == ZF_ERR_RULE && rig->err.native_code == 77 && rig->err.scope == ZF_SCOPE_INSTANCE,
              "a rule that returns 77: returned %d, native_code %lld, scope %d: %.200s", st,
              (long long)rig->err.native_code, rig->err.scope, rig->err.message);
    st = ABI_CALL(rig, rig->table->poll(rig->instance, NULL, &rig->err));
    abi_check(rig->probe, ABI_RULE_ELEMENTS, st < 0, "poll of an instance that has ended returned %d", st);
}

/* ---- what is announced ------------------------------------------------------------------------------------------- */

static zf_status_t announce(abi_rig_t *rig, double lr) {
    zf_group_hyper_t hyper = rig->hyper;
    zf_step_args_t args = rig->step;
    hyper.lr = lr;
    args.groups = &hyper;
    return ABI_CALL(rig, rig->table->announce(rig->instance, &args, &rig->err));
}

/* An announcement comes before the first gradient of a step, and changes nothing. */
static void run_announcements(abi_rig_t *rig) {
    enum { STEPS = 6 };
    zf_status_t st;
    uint64_t alone = abi_rig_hash_alone(rig->probe, 1, STEPS);
    if (!abi_rig_start(rig, ABI_BOUND))
        return;
    for (int i = 0; i < STEPS - 1; i++) {
        st = announce(rig, 0.5);
        abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "announce before a step", st);
        st = announce(rig, 0.25);
        abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "announce again", st);
        if (!abi_rig_train(rig, 1, ABI_RULE_USABLE))
            return;
    }
    abi_rig_set_gradients(rig);
    st = abi_rig_deliver(rig, 2, 1);
    abi_rig_check(rig, ABI_RULE_VALID, st >= 0, "grads_ready", st);
    expect(rig, ABI_RULE_STATE, announce(rig, 0.5), ZF_ERR_STATE, "gradient", "announce between a step's gradients");
    st = abi_rig_step(rig, 2, NULL);
    abi_rig_check(rig, ABI_RULE_USABLE, st >= 0, "a step after refused announcements", st);
    abi_check(rig->probe, ABI_RULE_UNCHANGED, st < 0 || !alone || abi_rig_hash(rig) == alone,
              "%d steps with announcements end in another state than without them", STEPS);
}

/* ---- fences ------------------------------------------------------------------------------------------------------ */

static zf_status_t wait_on(abi_rig_t *rig, const uint64_t *counter, uint64_t value) {
    const zf_fence_t fence = {
        .struct_size = sizeof fence, .kind = ZF_FENCE_HOST_COUNTER, .counter = counter, .value = value};
    return ABI_CALL(rig, rig->table->fence_wait(rig->instance, &fence, 1000000, &rig->err));
}

/* A counter of the host's own, behind which no memory is readable: neither waited for nor taken for one that is there.
 */
static void run_foreign_fence(abi_rig_t *rig) {
    uint64_t *counter = abi_guarded(sizeof *counter);
    if (!counter)
        return;
    *counter = 5;
    for (uint64_t value = 5; value <= 6; value++) {
        abi_try(rig->probe, "fence_wait for a counter that is not the plugin's");
        zf_status_t st = wait_on(rig, counter, value);
        abi_check(rig->probe, ABI_RULE_FENCES, st == ZF_ERR_ARGUMENT,
                  "fence_wait for a counter of the host's at 5, for %llu: returned %d, not ZF_ERR_ARGUMENT",
                  (unsigned long long)value, st);
    }
    abi_rig_train(rig, 1, ABI_RULE_USABLE);
}

/* What was never handed out does not come. */
static void run_late_fence(abi_rig_t *rig) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zf_status_t st = ABI_CALL(rig, rig->table->param_fetch(rig->instance, NULL, 0, 0, &rig->stream, &fence, &rig->err));
    if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "param_fetch", st) || fence.kind != ZF_FENCE_HOST_COUNTER)
        return;
    st = ABI_CALL(rig, rig->table->fence_wait(rig->instance, &fence, 60000000000u, &rig->err));
    abi_rig_check(rig, ABI_RULE_FENCES, st == ZF_OK, "fence_wait", st);
    static const uint64_t beyond[] = {1000, UINT64_C(1) << 32, UINT64_C(1) << 63};
    for (int i = 0; i < 3; i++) {
        abi_try(rig->probe, "fence_wait for a value that is not there");
        st = wait_on(rig, fence.counter, fence.value + beyond[i]);
        abi_check(rig->probe, ABI_RULE_FENCES, st == ZF_ERR_TIMEOUT && rig->err.retryable,
                  "fence_wait for a value that does not come, %#llx beyond: returned %d, not ZF_ERR_TIMEOUT, "
                  "retryable %d",
                  (unsigned long long)beyond[i], st, rig->err.retryable);
    }
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Without FLUSH, with arguments as without, what is shown stays. */
static void run_destroy_without(abi_rig_t *rig) {
    const zf_destroy_args_t nothing = {.struct_size = sizeof nothing};
    uint64_t shown[ABI_RIG_PARAMS][ABI_RIG_MAX_ELEMS / 2];
    if (!abi_rig_rest(rig))
        return;
    memcpy(shown, rig->memory, sizeof shown);
    ABI_CALL(rig, (rig->table->destroy(rig->instance, &nothing), ZF_OK));
    rig->instance = NULL;
    abi_check(rig->probe, ABI_RULE_DESTROY, memcmp(shown, rig->memory, sizeof shown) == 0,
              "destroy without FLUSH leaves other values than were shown before");
}

static void run_destroy(abi_rig_t *rig) {
    static abi_rig_t flushed;
    const zf_destroy_args_t flush = {.struct_size = sizeof flush, .flags = ZF_DESTROY_FLUSH};
    if (!abi_rig_open(&flushed, rig->probe, rig->probe->plugin) || !abi_rig_start(&flushed, ABI_ACTIVE))
        return;
    zf_status_t st = abi_rig_quiesce(&flushed, ZF_QUIESCE_FLUSH);
    abi_rig_check(&flushed, ABI_RULE_VALID, st == ZF_OK, "quiesce(FLUSH)", st);
    abi_rig_end(&flushed);
    ABI_CALL(rig, (rig->table->destroy(rig->instance, &flush), ZF_OK));
    rig->instance = NULL;
    abi_check(rig->probe, ABI_RULE_DESTROY, memcmp(flushed.memory, rig->memory, sizeof flushed.memory) == 0,
              "after %u steps, destroy with FLUSH leaves other values than quiesce(FLUSH) shows", rig->n_steps);
}

const abi_row_t abi_host_rows[] = {{"a host table that goes", ABI_OPEN, 0, run_host_copy},
                                   {"bad weights", ABI_CREATED, 0, run_bad_weights},
                                   {"weights that become NaN", ABI_OPEN, 0, run_changed_to_nan},
                                   {"two instances on one memory", ABI_BOUND, 0, run_one_memory},
                                   {"all parameters changed", ABI_ACTIVE, 0, run_all_changed},
                                   {"a record without its size", ABI_BOUND, 0, run_no_size},
                                   {"structs that others define", ABI_OPEN, 0, run_chain},
                                   {"which elements a rule updates", ABI_OPEN, 0, run_elements},
                                   {"a rule that fails", ABI_OPEN, 0, run_failing_rule},
                                   {"a fence of other memory", ABI_ACTIVE, 0, run_foreign_fence},
                                   {"a fence that does not come", ABI_ACTIVE, 0, run_late_fence},
                                   {"announcements", ABI_OPEN, 0, run_announcements},
                                   {"a queue", ABI_OPEN, 0, run_queue},
                                   {"memory that has moved", ABI_ACTIVE, 0, run_moved_memory},
                                   {"destroy with FLUSH", ABI_ACTIVE, 0, run_destroy},
                                   {"destroy without FLUSH", ABI_ACTIVE, 1, run_destroy_without},
                                   {NULL, ABI_NOTHING, 0, NULL}};
