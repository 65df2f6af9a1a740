/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_older.c - checkpoints with keys and values that this version no longer has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_table.h"
#include "hostile_rig.h"
#include "suite.h"

static const char config[] =
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\npublish_lag = 1";

/* The good checkpoint, as a version that had this key would have written it. */
static void add_key(const zfi_gone_t *gone, const char *value) {
    char text[192];
    snprintf(text, sizeof text, "\"%s.%s\":\"%s\",\"zenflow.topk_ratio\":", gone->section, gone->name, value);
    zt_hostile_copy();
    zt_index_replace(&zt_hostile.bad, "\"config\"", "\"zenflow.topk_ratio\":", text);
}

/* A checkpoint of a version that had more keys is refused with what to use instead, and continued to the bit where they
 * say what this version does. */
ZT_TEST(keys_that_are_gone) {
    int n = 0;
    for (uint32_t i = 0; zfi_gone_at(i); i++) {
        const zfi_gone_t *gone = zfi_gone_at(i);
        if (!gone->name || zfi_key_is_free(gone->section, gone->name) ||
            (gone->implied && (gone->value || strcmp(gone->implied, "*") == 0)) ||
            (gone->value && strcmp(gone->value, "none") == 0)) /* read as state_mib = all */
            continue;
        if (gone->value) {
            char was[96], is[96];
            snprintf(was, sizeof was, "\"%s.%s\":", gone->section, gone->name);
            snprintf(is, sizeof is, "\"%s.%s\":\"%s\",\"was\":", gone->section, gone->name, gone->value);
            zt_hostile_copy();
            if (!strstr(zt_index_text(&zt_hostile.bad), was)) /* nothing that a checkpoint has */
                continue;
            zt_index_replace(&zt_hostile.bad, "\"config\"", was, is);
        } else {
            add_key(gone, "0.123");
        }
        zt_hostile_refused_for(gone->name, gone->instead);
    }
    zt_hostile_check_unchanged("a key that is gone");
    for (uint32_t i = 0; zfi_gone_at(i); i++) {
        const zfi_gone_t *gone = zfi_gone_at(i);
        if (!gone->implied || gone->value)
            continue;
        add_key(gone, *gone->implied == '*' ? "0.123" : gone->implied);
        ZT_OK(&zt_hostile.victim, zt_load(&zt_hostile.victim, &zt_hostile.bad.table, NULL, ZF_STATE_EXACT, NULL));
        zt_state_check_equal(&zt_hostile.rig, &zt_hostile.victim, gone->name);
        n++;
    }
    ck_assert_int_gt(n, 0);
    zt_hostile_remember();
}

/* Saved with `more` in its configuration, in place of `from`. */
static zf_status_t load_as(uint32_t flags, const char *from, const char *more) {
    ZT_OK(&zt_hostile.rig, zt_save(&zt_hostile.rig, &zt_hostile.good.table, NULL, flags, NULL));
    zt_hostile_copy();
    zt_index_replace(&zt_hostile.bad, "\"config\"", from, more);
    return zt_load(&zt_hostile.victim, &zt_hostile.bad.table, NULL, 0, NULL);
}

/* What says the same as this version is passed over. What does not is refused, but of a compact checkpoint, which does
 * not depend on it. */
ZT_TEST(what_is_gone) {
    static const char mode[] = "\"zenflow.mode\":\"windows\"";
    ZT_OK(&zt_hostile.victim, load_as(0, mode,
                                      "\"zenflow.deferred\":\"replay\",\"zenflow.accumulate_on\":\"host\","
                                      "\"zenflow.deferred_lr_scale\":\"1\""));
    zt_state_check_equal(&zt_hostile.rig, &zt_hostile.victim, "keys at their defaults");
    ZT_OK(&zt_hostile.victim, load_as(0, "\"zenflow.on_overwrite\":\"error\"", "\"zenflow.on_overwrite\":\"follow\""));
    zt_state_check_equal(&zt_hostile.rig, &zt_hostile.victim, "a key that changes no number");
    zt_hostile_remember();
    zt_refused(&zt_hostile.victim.err, load_as(0, mode, "\"zenflow.deferred\":\"moments\""), ZF_ERR_CHECKPOINT,
               "[zenflow] deferred is no key of this version");
    ck_assert_int_eq(load_as(0, mode, "\"zenflow.deferred\":\"replay\",\"zenflow.deferred_lr_scale\":\"2\""),
                     ZF_ERR_CHECKPOINT);
    zt_hostile_check_unchanged("refused");
    ZT_OK(&zt_hostile.victim, load_as(ZF_STATE_COMPACT, mode, "\"zenflow.deferred\":\"moments\""));
    ZT_OK(&zt_hostile.rig, zt_save(&zt_hostile.rig, &zt_hostile.good.table, NULL, 0, NULL));
    zt_hostile_remember();
}

/* ABI 0.1 had one rule of all groups, and no numbers of parameters. */
ZT_TEST(one_rule_of_all_groups) {
    zt_hostile_copy();
    zt_index_replace(&zt_hostile.bad, "\"params\"", "\"id\":0,", "");
    zt_index_replace(&zt_hostile.bad, "\"kind\"", "\"rules\":[{\"rule\":0},{\"rule\":0},{\"rule\":0}]",
                     "\"rule\":0,\"rule_name\":\"\",\"rule_moments\":0");
    ZT_OK(&zt_hostile.victim, zt_load(&zt_hostile.victim, &zt_hostile.bad.table, NULL, ZF_STATE_EXACT, NULL));
    zt_state_check_equal(&zt_hostile.rig, &zt_hostile.victim, "one rule of all groups");
    zt_hostile_remember();
}

/* Keys that change nothing that is computed may have been saved with any value, and may be gone. */
ZT_TEST(keys_that_change_nothing) {
    zf_state_args_t args = {.struct_size = sizeof args, .store = &zt_hostile.bad.table};
    zt_hostile_copy();
    zt_index_replace(&zt_hostile.bad, "\"config\"", "\"host.local_rank\":\"auto\"",
                     "\"host.local_rank\":\"2\",\"host.local_ranks\":\"4\",\"host.huge_pages\":\"off\","
                     "\"host.max_steps_ahead\":\"3\",\"trace.first_step\":\"7\",\"stats.prometheus\":\"x\"");
    ZT_OK(&zt_hostile.victim, zt_state(&zt_hostile.victim)->verify(&args, NULL, &zt_hostile.victim.err));
    zt_index_replace(&zt_hostile.bad, "\"config\"", "\"host.max_steps_ahead\":\"3\"", "\"host.moments\":\"3\"");
    zt_hostile_refused_for("a key that is unknown", "[host] has no key \"moments\"");
}

static void start(void) { zt_hostile_start(config); }

ZT_SUITE_WITH("state_older", start, zt_hostile_end)
