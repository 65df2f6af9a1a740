/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/audit.c - when the training state is audited (contract in audit.h). */
#include "hooks/audit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hooks/drain.h"
#include "state/audit.h"

enum { PATH_NBYTES = ZFI_TEXT_NBYTES + 24 };

/* This instance among all that train the model. */
static zfi_member_t process_of(const zfi_engine_t *engine) {
    if (zfi_is_grouped(engine))
        return zfi_norm_member(engine);
    return (zfi_member_t){zfi_rank(engine), zfi_n_ranks(engine)};
}

static void warn(zfi_engine_t *engine, const char *path, const char *why) {
    if (engine->audit && engine->audit->has_warned++)
        return;
    zfi_log(engine, ZF_LOG_WARN, "audit", "[audit] file = %s: %s; training goes on without records of it there", path,
            why);
}

zf_status_t zfi_auditing_begin(zfi_engine_t *engine, const zfi_config_t *config, zf_error_t *err) {
    zfi_member_t process = process_of(engine);
    zfi_audit_t *audit;
    char path[PATH_NBYTES], *copy;
    if (!*config->audit_file || engine->audit)
        return ZF_OK;
    snprintf(path, sizeof path, "%s", config->audit_file);
    if (process.n_ranks > 1)
        snprintf(path, sizeof path, "%s.rank%" PRIu32, config->audit_file, process.rank);
    audit = calloc(1, sizeof *audit);
    copy = strdup(path);
    int rc = audit && copy ? zfi_lines_open(path, &audit->lines) : ENOMEM;
    if (!rc) {
        audit->path = copy;
        audit->every = config->audit_every;
        engine->audit = audit;
        return ZF_OK;
    }
    free(audit);
    free(copy);
    if (rc == EWOULDBLOCK)
        return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, rc, "bind_params",
                                "[audit] file = %.220s: another instance writes it: destroy that one, or name another",
                                path);
    warn(engine, path, rc == ELOOP || rc == ENOTSUP || rc == ENXIO ? "it is no regular file" : strerror(rc));
    return ZF_OK;
}

void zfi_auditing_bound(zf_instance_t *inst) {
    zfi_engine_t *engine = &inst->engine;
    if (engine->audit &&
        !zfi_audit_describe(engine->audit, &inst->run->state, &inst->engine.config, process_of(engine)))
        warn(engine, engine->audit->path, "no memory for the digests of these parameters");
}

/* The line of the parameters first, if it is not there yet. */
static int write_record(zfi_audit_t *audit, size_t nbytes) {
    int rc = audit->header ? zfi_lines_add(&audit->lines, audit->header, strlen(audit->header)) : 0;
    if (rc)
        return rc;
    free(audit->header);
    audit->header = NULL;
    return zfi_lines_add(&audit->lines, audit->text, nbytes);
}

zf_status_t zfi_auditing_step(zf_instance_t *inst, uint64_t t, zf_error_t *err) {
    zfi_audit_t *audit = inst->engine.audit;
    size_t nbytes;
    if (!audit || !audit->sums || t % audit->every != 0)
        return ZF_OK;
    zf_status_t st = zfi_drain(inst, err);
    if (!st)
        st = zfi_hook_failed(inst, zfi_audit_take(audit, &inst->run->state, t, &nbytes), "step",
                             "the device did not give its state to [audit]", err);
    int rc = st ? 0 : write_record(audit, nbytes);
    if (rc)
        warn(&inst->engine, audit->path, strerror(rc));
    return st;
}

void zfi_auditing_end(zfi_engine_t *engine) {
    zfi_audit_t *audit = engine->audit;
    if (!audit)
        return;
    engine->audit = NULL;
    zfi_lines_close(&audit->lines);
    zfi_audit_forget(audit);
    free((void *)(uintptr_t)audit->path);
    free(audit);
}
