/* SPDX-License-Identifier: Apache-2.0 */
/* fetcher.c - see fetcher.h. */
#include "fetcher.h"

#include <time.h>

#include "clock.h"

enum { SHORT = 16 }; /* so many times shorter is a pass beside which nothing may be under way */
static const uint64_t nap_ns = 200000, behind_ns = 5000000;

static void sleep_until(uint64_t at_ns) {
    const struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void compute(fetcher_t *host, uint64_t n_ns, int is_long) {
    const uint64_t start = zc_now_ns();
    sleep_until(start + (is_long ? n_ns : n_ns / SHORT));
    host->computed_ns += zc_now_ns() - start;
}

/* The paced rule: SGD. A thread that is ahead of its pace sleeps, one that is behind it catches up, unless by so much
 * that it must have had nothing to do. */
static int32_t update_paced(void *ctx, const zf_rule_update_t *update) {
    static _Thread_local uint64_t due_ns;
    const fetcher_spec_t *spec = ctx;
    const uint64_t now = zc_now_ns();

    for (uint64_t i = 0; i < update->n_elems; i++)
        update->w[i] -= (float)update->lr * update->g[i];
    due_ns = (now > due_ns + behind_ns ? now : due_ns) + (uint64_t)(spec->ns_per_elem * (double)update->n_elems);
    if (due_ns > now + nap_ns)
        sleep_until(due_ns);
    return 0;
}

/* n = 0: all of them. */
static void fetch(fetcher_t *host, uint32_t first, uint32_t n) {
    if (!host->spec.cannot_fetch)
        rig_fetch(&host->rig, first, n);
}

/* Parameters that live as shards are there for as long as they are computed with. */
static void take_shard(fetcher_t *host, uint32_t layer) {
    if (host->spec.goes_by_shards)
        rig_fetch(&host->rig, layer * host->spec.per_layer, host->spec.per_layer);
}
static void give_shard(fetcher_t *host, uint32_t layer) {
    if (host->spec.goes_by_shards)
        rig_release(&host->rig, layer * host->spec.per_layer, host->spec.per_layer);
}

static void deliver(fetcher_t *host, uint32_t layer, int is_last) {
    const uint32_t n = host->spec.per_layer, first = layer * n;
    for (uint32_t i = first; i < first + n; i++)
        host->rig.items[i].flags = ZF_GRAD_PART | ZF_GRAD_ASYNC_READ | (is_last ? ZF_GRAD_LAST : ZF_GRAD_MORE);
    rig_deliver(&host->rig, first, n, n, &host->done[layer]);
}

static void forward(fetcher_t *host, int is_first) {
    const fetcher_spec_t *spec = &host->spec;
    if (is_first && spec->is_serial)
        fetch(host, 0, 0);
    for (uint32_t layer = 0; layer < spec->n_layers; layer++) {
        take_shard(host, layer);
        if (is_first && !spec->is_serial && !spec->goes_by_shards)
            fetch(host, layer * spec->per_layer, spec->per_layer);
        compute(host, spec->forward_ns, is_first);
        give_shard(host, layer);
    }
}

/* All that can be hidden is: what is under way from now on, the host waits for. */
static void end_compute(fetcher_t *host) {
    const uint64_t now = zc_now_ns();
    host->waited_ns = now - host->since_ns - host->computed_ns;
    host->since_ns = now;
    host->computed_ns = 0;
}

static void backward(fetcher_t *host, int is_last) {
    const fetcher_spec_t *spec = &host->spec;
    const int comes_later = spec->is_serial && is_last;
    for (uint32_t layer = spec->n_layers; layer-- > 0;) {
        take_shard(host, layer);
        rig_wait(&host->rig, &host->done[layer]); /* its gradients are about to be overwritten */
        compute(host, spec->backward_ns, is_last);
        give_shard(host, layer);
        if (layer == 0 && is_last)
            end_compute(host);
        if (!comes_later)
            deliver(host, layer, is_last);
    }
    for (uint32_t layer = spec->n_layers; comes_later && layer-- > 0;)
        deliver(host, layer, 1);
}

void fetcher_step(fetcher_t *host) {
    for (uint32_t pass = 0; pass < host->spec.n_passes; pass++) {
        forward(host, pass == 0);
        backward(host, pass + 1 == host->spec.n_passes);
    }
    rig_step(&host->rig, 0);
}

void fetcher_open(fetcher_t *host, const zf_loader_t *loader, const fetcher_spec_t *spec) {
    const zf_rule_callback_t rule = {
        .struct_size = sizeof rule, .name = "paced", .ctx = &host->spec, .update = update_paced};
    const rig_spec_t of_rig = {.n_tensors = spec->n_layers * spec->per_layer,
                               .ndim = 2,
                               .shape = {spec->shape[0], spec->shape[1]},
                               .dtype = spec->dtype,
                               .mode = RIG_ASYNC,
                               .config = spec->config,
                               .rule = spec->ns_per_elem > 0 ? &rule : NULL,
                               .ranks = spec->ranks,
                               .does_not_clip = spec->does_not_clip,
                               .goes_by_shards = spec->goes_by_shards,
                               .cannot_fetch = spec->cannot_fetch};
    *host = (fetcher_t){.spec = *spec};
    for (uint32_t i = 0; i < spec->n_layers; i++)
        host->done[i] = (zf_fence_t){.struct_size = sizeof host->done[i], .kind = ZF_FENCE_NONE};
    rig_open(&host->rig, loader, &of_rig);
    host->since_ns = zc_now_ns();
}

void fetcher_close(fetcher_t *host) { rig_close(&host->rig); }
