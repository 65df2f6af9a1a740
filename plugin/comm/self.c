/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/self.c - the transport of one rank: every part is there already (contract in comm.h). */
#include "base/error.h"
#include "comm/comm.h"

static zf_status_t self_open(const zfi_comm_env_t *env, zfi_comm_t **out, zf_error_t *err) {
    (void)env;
    (void)err;
    *out = NULL;
    return ZF_OK;
}

static void self_close(zfi_comm_t *comm) { (void)comm; }

static zf_status_t self_join(zfi_comm_t *comm, uint32_t group, uint32_t *out_index, zf_error_t *err) {
    (void)comm;
    *out_index = 0;
    return zfi_error(err, ZF_ERR_RANKS, "ranks", "process group %u: the host does not offer %s", group,
                     ZF_EXT_COLLECTIVES);
}

static zfi_member_t self_place(const zfi_comm_t *comm, uint32_t index) {
    (void)comm;
    (void)index;
    return (zfi_member_t){0, 1};
}

static zf_status_t self_exchange(zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err) {
    (void)comm;
    (void)exchange;
    (void)err;
    return ZF_OK;
}

static int self_holds_memory(const zfi_comm_t *comm) {
    (void)comm;
    return 0;
}

const zfi_comm_ops_t zfi_comm_self = {
    .name = "self",
    .open = self_open,
    .close = self_close,
    .join = self_join,
    .place = self_place,
    .exchange = self_exchange,
    .holds_memory = self_holds_memory,
};
