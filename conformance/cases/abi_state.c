/* SPDX-License-Identifier: Apache-2.0 */
/* abi_state.c - proof 5, a checkpoint as its host sees it: the report, the note, weights without an instance. */
#include <string.h>

#include "abi_probes.h"
#include "abi_rig.h"

static const char note[] = "epoch 3, \xc3\xa9t\xc3\xa9";

typedef struct saved {
    abi_rig_t *rig;
    const zf_state_ext_t *ext;
    zf_state_args_t args;
} saved_t;

static void check(saved_t *s, int is_ok, const char *what, zf_status_t st) {
    abi_check(s->rig->probe, ABI_RULE_CHECKPOINT, is_ok, "%s (status %d: %.200s)", what, st,
              st < 0 ? s->rig->err.message : "");
}

static void check_save(saved_t *s) {
    zf_state_report_t r = {.struct_size = sizeof r};
    zf_status_t st = ABI_CALL(s->rig, s->ext->save(s->rig->instance, &s->args, &r, &s->rig->err));
    check(s, st == ZF_OK, "a right save is refused", st);
    check(s,
          r.step == s->rig->n_steps && r.nbytes > 0 && r.n_params == ABI_RIG_TRAINED && r.note_nbytes == strlen(note),
          "the report of a save says something else than was saved", st);
}

static void check_note(saved_t *s) {
    char text[sizeof note + 8] = "";
    zf_status_t st = s->ext->note(&s->args, text, sizeof text, &s->rig->err);
    check(s, st == ZF_OK && strcmp(text, note) == 0, "note gives another note than was saved", st);
}

/* The bits that export_params gives, which are those that FLUSH would leave. */
static void check_weights(saved_t *s) {
    float mine[30], theirs[30];
    zf_export_item_t item = {.struct_size = sizeof item, .id = s->rig->ids[0], .dst = mine, .dst_nbytes = sizeof mine};
    memset(theirs, 0, sizeof theirs);
    zf_status_t st = abi_rig_export(s->rig, &item);
    check(s, st == ZF_OK, "a right export is refused", st);
    st = s->ext->weights(&s->args, "a.weight", theirs, 30, &s->rig->err);
    check(s, st == ZF_OK && memcmp(mine, theirs, sizeof mine) == 0, "weights and export_params give different bits",
          st);
    st = abi_rig_quiesce(s->rig, ZF_QUIESCE_FLUSH);
    check(s, st == ZF_OK && memcmp(mine, s->rig->memory[0], sizeof mine) == 0, "export_params is not what FLUSH leaves",
          st);
}

static void probe_checkpoint(abi_rig_t *rig) {
    char path[80];
    saved_t s = {.rig = rig, .ext = rig->table->get_extension(ZF_EXT_STATE)};
    if (!s.ext)
        return;
    snprintf(path, sizeof path, "%s/saved", rig->probe->scratch);
    s.args = (zf_state_args_t){.struct_size = sizeof s.args, .flags = ZF_STATE_NO_SYNC, .path = path, .note = note};
    check_save(&s);
    s.args.note = NULL;
    s.args.flags = 0;
    check_note(&s);
    check_weights(&s);
}

const abi_row_t abi_state_rows[] = {{"a checkpoint", ABI_ACTIVE, 0, probe_checkpoint}, {NULL, ABI_NOTHING, 0, NULL}};
