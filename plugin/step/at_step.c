/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/at_step.c - closed windows become visible in a step: that one or the next (contract in publisher.h). */
#include "step/publish.h"
#include "step/publisher.h"

static void close_now(zfi_publishing_t *publishing, const zfi_close_t *close) {
    zfi_publish_upload(publishing, close);
    zfi_publish_now(publishing, close);
}

static void close_later(zfi_publishing_t *publishing, const zfi_close_t *close) {
    zfi_publish_upload(publishing, close);
    publishing->clock->due[publishing->clock->n_due++] = *close;
}

/* ---- nothing waits to be fetched --------------------------------------------------------------------------------- */

static zf_status_t fetch(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    (void)publishing, (void)first, (void)end;
    return ZF_OK;
}

static zf_status_t rest(zfi_publishing_t *publishing) {
    (void)publishing;
    return ZF_OK;
}

static zf_status_t drop(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    (void)publishing, (void)first, (void)end;
    return ZF_OK;
}

const zfi_publisher_t zfi_publisher_at_step = {close_now, zfi_publish_share, zfi_publish_nothing, fetch, rest, drop};
const zfi_publisher_t zfi_publisher_next_step = {close_later, zfi_publish_share, zfi_publish_due, fetch, rest, drop};
