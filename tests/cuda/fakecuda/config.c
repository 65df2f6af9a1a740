/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/config.c - the environment variables; each is described in tests/cuda/README.md. */
#include "fake.h"

#include <stdlib.h>

fc_config_t fc_config;

static const struct {
    const char *name;
    uint64_t *value;
    uint64_t unset;
} table[] = {
    {"FAKECUDA_SEED", &fc_config.seed, 1},
    {"FAKECUDA_DELAY_US", &fc_config.delay_us, 100},
    {"CUDA_DEVICE_MAX_CONNECTIONS", &fc_config.n_queues, 8},
    {"CUDA_DEVICE_MAX_COPY_CONNECTIONS", &fc_config.n_copy_queues, 8},
    {"FAKECUDA_LEGACY", &fc_config.is_legacy, 0},
    {"FAKECUDA_DEPTH", &fc_config.depth, FC_DRAWN},
    {"FAKECUDA_DEVICE_BYTES", &fc_config.device_nbytes, 1ull << 30},
    {"FAKECUDA_ADJOIN", &fc_config.adjoins, 0},
    {"FAKECUDA_MEMOPS", &fc_config.has_memops, 1},
    {"FAKECUDA_VMM", &fc_config.has_virtual_memory, 1},
    {"FAKECUDA_HOST_POINTER", &fc_config.has_host_pointer, 1},
    {"FAKECUDA_INTEGRATED", &fc_config.is_integrated, 0},
    {"FAKECUDA_TEARDOWN_MS", &fc_config.teardown_ms, 0},
    {"FAKECUDA_REGISTER_BYTES", &fc_config.most_registered, 512ull << 30},
    {"FAKECUDA_PINNED_BYTES", &fc_config.most_pinned, 0},
    {"FAKECUDA_COMPUTE", &fc_config.compute, 990},
    {"FAKECUDA_DEVICES", &fc_config.n_devices, 1},
    {"FAKECUDA_MULTIPROCESSORS", &fc_config.n_multiprocessors, 2},
    {"FAKECUDA_TRAFFIC", &fc_config.traffic, 0},
    {"FAKECUDA_COUNTS", &fc_config.counts, 0},
    {"FAKECUDA_DRIVER_VERSION", &fc_config.driver_version, 13000},
    {"FAKENCCL_VERSION", &fc_config.nccl_version, 22304},
    {"FAKENCCL_DELAY_US", &fc_config.nccl_delay_us, 300},
};

static int is(const char *name, const char *value) {
    const char *text = getenv(name);
    return text && strcmp(text, value) == 0;
}

void fc_config_read(void) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *text = getenv(table[i].name);
        *table[i].value = text && *text ? strtoull(text, NULL, 0) : table[i].unset;
    }
    fc_config.fail = getenv("FAKECUDA_FAIL");
    fc_config.name = getenv("FAKECUDA_NAME");
    fc_config.deal = is("FAKECUDA_DEAL", "priority") ? FC_DEAL_PRIORITY
                     : is("FAKECUDA_DEAL", "chance") ? FC_DEAL_CHANCE
                                                     : FC_DEAL_TURN;
    fc_locks_read(getenv("FAKECUDA_LOCKS"));
}
