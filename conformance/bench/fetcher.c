/* SPDX-License-Identifier: Apache-2.0 */
/* fetcher.c - see fetcher.h. */
#include "fetcher.h"

#include <string.h>
#include <time.h>

#include "harness/clock.h"

static const uint64_t nap_ns = 200000, behind_ns = 5000000;

static void sleep_until(uint64_t at_ns) {
    const struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void compute(uint64_t n_ns) { sleep_until(zc_now_ns() + n_ns); }

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

static void step(fetcher_t *host) {
    const uint64_t start = zc_now_ns();
    rig_step(&host->rig, 0);
    if (host->spec.does_not_fetch)
        host->waited_ns += zc_now_ns() - start;
}

void fetcher_step(fetcher_t *host) {
    for (uint32_t layer = 0; layer < FETCHER_LAYERS; layer++) {
        if (!host->spec.does_not_fetch) {
            const uint64_t start = zc_now_ns();
            rig_fetch(&host->rig, layer * FETCHER_PER_LAYER, FETCHER_PER_LAYER);
            host->waited_ns += zc_now_ns() - start;
        }
        compute(host->spec.forward_ns / FETCHER_LAYERS);
    }
    for (uint32_t layer = FETCHER_LAYERS; layer-- > 0;) {
        rig_wait(&host->rig, &host->done[layer]); /* its gradients of the step before are about to be overwritten */
        compute(host->spec.backward_ns / FETCHER_LAYERS);
        rig_deliver(&host->rig, layer * FETCHER_PER_LAYER, FETCHER_PER_LAYER, FETCHER_PER_LAYER, &host->done[layer]);
    }
    step(host);
}

void fetcher_compute(const fetcher_t *host) {
    for (uint32_t layer = 0; layer < FETCHER_LAYERS; layer++)
        compute(host->spec.forward_ns / FETCHER_LAYERS);
    for (uint32_t layer = 0; layer < FETCHER_LAYERS; layer++)
        compute(host->spec.backward_ns / FETCHER_LAYERS);
}

uint64_t fetcher_stall_ns(const fetcher_t *host) {
    return rig_counter(&host->rig, "stall_replay_ns") + rig_counter(&host->rig, "stall_select_ns") +
           rig_counter(&host->rig, "stall_pool_ns");
}

void fetcher_open(fetcher_t *host, const zf_loader_t *loader, const fetcher_spec_t *spec) {
    const zf_rule_callback_t rule = {
        .struct_size = sizeof rule, .name = "paced", .ctx = &host->spec, .update = update_paced};
    const rig_spec_t of_rig = {.n_tensors = FETCHER_LAYERS * FETCHER_PER_LAYER,
                               .ndim = 2,
                               .shape = {spec->rows, FETCHER_COLUMNS},
                               .dtype = zf_dtype_bfloat16(),
                               .mode = RIG_ASYNC,
                               .config = spec->config,
                               .rule = spec->ns_per_elem > 0 ? &rule : NULL,
                               .does_not_clip = spec->does_not_clip,
                               .does_not_fetch = spec->does_not_fetch};
    memset(host, 0, sizeof *host);
    host->spec = *spec;
    for (int i = 0; i < FETCHER_LAYERS; i++)
        host->done[i] = (zf_fence_t){.struct_size = sizeof host->done[i], .kind = ZF_FENCE_NONE};
    rig_open(&host->rig, loader, &of_rig);
}

void fetcher_close(fetcher_t *host) { rig_close(&host->rig); }
