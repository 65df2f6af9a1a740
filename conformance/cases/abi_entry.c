/* SPDX-License-Identifier: Apache-2.0 */
/* abi_entry.c - proof 5 at the entry: negotiation, the tables, describe(), and hosts that offer little. */
#define _GNU_SOURCE /* cpu_set_t */
#include <string.h>

#include "abi_args.h"
#include "abi_probes.h"
#include "abi_watch.h"
#include "zf/ext/draft/collectives.h"

/* ---- negotiation ------------------------------------------------------------------------------------------------- */

typedef struct knock { /* one call of the entry */
    uint32_t abis[64]; /* as many as there may be */
    zf_error_t err;
    zf_bootstrap_t boot;
} knock_t;

static void prepare(knock_t *k) {
    memset(k, 0, sizeof *k);
    k->abis[0] = ZF_ABI_0_16;
    memset(&k->err, ABI_PAINT, sizeof k->err);
    k->err.struct_size = sizeof k->err;
    k->boot = (zf_bootstrap_t){.struct_size = sizeof k->boot,
                               .magic = ZF_BOOTSTRAP_MAGIC,
                               .abis = k->abis,
                               .n_abis = 1,
                               .error = &k->err,
                               .chosen_abi = 0xA5A5A5A5u,
                               .plugin = (const void *)k};
}

/* 1 = it was refused. */
static int refused(abi_probe_t *p, zf_plugin_negotiate_fn entry, knock_t *k, int32_t want, const char *what) {
    abi_try(p, "negotiate: %s", what);
    int32_t st = entry(&k->boot);
    if (!abi_check(p, ABI_RULE_NEGOTIATE, st < 0 && (!want || st == want), "%s: returned %d", what, st) && st >= 0)
        return 0;
    abi_check(p, ABI_RULE_OUTPUTS, k->boot.chosen_abi == 0xA5A5A5A5u && k->boot.plugin == (const void *)k,
              "negotiate, %s: an output was written", what);
    if (!k->boot.error || k->boot.struct_size != sizeof k->boot)
        return 1; /* its members cannot be trusted then */
    size_t n = strnlen(k->err.message, sizeof k->err.message);
    abi_check(p, ABI_RULE_MESSAGE, n >= 10 && n < sizeof k->err.message && strchr(k->err.message, ' '),
              "negotiate, %s: no message", what);
    abi_check(p, ABI_RULE_STATUS, k->err.status == st, "negotiate, %s: returned %d, the record has %d", what, st,
              k->err.status);
    return 1;
}

static void knock_wrongly(abi_probe_t *p, zf_plugin_negotiate_fn entry) {
    knock_t k;
    prepare(&k), k.boot.magic = 1, refused(p, entry, &k, 0, "wrong magic");
    prepare(&k), k.boot.struct_size = 56, refused(p, entry, &k, 0, "struct_size 56");
    prepare(&k), k.boot.struct_size = 0, refused(p, entry, &k, 0, "struct_size 0");
    prepare(&k), k.boot.abis = NULL, refused(p, entry, &k, 0, "no list of ABIs");
    prepare(&k), k.boot.n_abis = 0, refused(p, entry, &k, 0, "an empty list of ABIs");
    prepare(&k), k.boot.n_abis = 65, refused(p, entry, &k, 0, "65 ABIs");
    prepare(&k), k.boot.reserved0 = 1, refused(p, entry, &k, 0, "reserved0 is not zero");
    prepare(&k), k.boot.reserved2 = 1, refused(p, entry, &k, 0, "reserved2 is not zero");
    prepare(&k), k.abis[0] = ZF_ABI_NUMBER(0, 0), refused(p, entry, &k, ZF_ERR_ABI, "only ABI 0.0");
    prepare(&k), k.abis[0] = ZF_ABI_NUMBER(0, 999),
                 refused(p, entry, &k, ZF_ERR_ABI, "only ABI 0.1099: major 0 must match exactly");
    char own[16];
    snprintf(own, sizeof own, "%u.%u", ZF_ABI_MAJOR(ZF_ABI_0_16), ZF_ABI_MINOR(ZF_ABI_0_16));
    prepare(&k), k.abis[0] = ZF_ABI_NUMBER(900, 1);
    if (refused(p, entry, &k, ZF_ERR_ABI, "only ABI 900.1") && memchr(k.err.message, 0, sizeof k.err.message) &&
        strlen(k.err.message) >= 10)
        abi_check(p, ABI_RULE_MESSAGE, strstr(k.err.message, "900") && strstr(k.err.message, own),
                  "negotiate, no common ABI: both lists are not named in \"%.200s\"", k.err.message);
    prepare(&k), k.boot.error = NULL, k.boot.magic = 1, refused(p, entry, &k, 0, "wrong magic, no error record");
    abi_try(p, "negotiate(NULL)");
    abi_check(p, ABI_RULE_NEGOTIATE, entry(NULL) < 0, "negotiate(NULL) succeeded");
}

static void probe_negotiate(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    zf_plugin_negotiate_fn entry = abi_open_entry(p, p->plugin);
    knock_t k, again;
    if (!entry)
        return;
    knock_wrongly(p, entry);
    abi_try(p, "negotiate with newer majors listed first");
    prepare(&k);
    for (k.boot.n_abis = 0; k.boot.n_abis < 63; k.boot.n_abis++)
        k.abis[k.boot.n_abis] = ZF_ABI_NUMBER(963 - k.boot.n_abis, 7);
    k.abis[k.boot.n_abis++] = ZF_ABI_0_16;
    abi_check(p, ABI_RULE_NEGOTIATE, entry(&k.boot) == 0 && k.boot.chosen_abi == ZF_ABI_0_16,
              "a host of 63 majors from 901 on, and of this one, was not served with this one");
    prepare(&again);
    abi_check(p, ABI_RULE_NEGOTIATE, entry(&again.boot) == 0 && again.boot.plugin == k.boot.plugin,
              "a second negotiation gives another table");
}

static void probe_pure(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    abi_watch_t before, after;
    knock_t k;
    abi_watch(&before);
    zf_plugin_negotiate_fn entry = abi_open_entry(p, p->plugin);
    if (!entry)
        return;
    prepare(&k);
    entry(&k.boot);
    entry(&k.boot);
    abi_watch(&after);
    abi_check(p, ABI_RULE_PURE, after.n_threads == before.n_threads, "%d threads before, %d after", before.n_threads,
              after.n_threads);
    abi_check(p, ABI_RULE_PURE, after.n_files == before.n_files, "%d open files before, %d after", before.n_files,
              after.n_files);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void check_table(abi_probe_t *p, const void *table, const char *owner, int is_exact) {
    size_t n;
    const abi_entry_t *entries = abi_table(&n);
    uint32_t struct_size, want = (uint32_t)abi_struct_size(owner);
    memcpy(&struct_size, table, sizeof struct_size);
    abi_check(p, ABI_RULE_TABLE, is_exact ? struct_size == want : struct_size >= want,
              "%s: struct_size %u, the headers say %u", owner, struct_size, want);
    for (size_t i = 0; i < n; i++) {
        abi_slot_t slot;
        if (strcmp(entries[i].owner, owner) != 0)
            continue;
        abi_slot_parse(&entries[i], &slot);
        if (entries[i].offset + entries[i].size > struct_size)
            continue; /* said above */
        abi_check(p, ABI_RULE_TABLE, abi_slot_function(table, &slot) != NULL, "%s.%s is NULL", owner, entries[i].name);
    }
}

static void probe_tables(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    check_table(p, rig->table, "zf_plugin_t", 1);
    abi_check(p, ABI_RULE_TABLE, rig->table->abi == ZF_ABI_0_16, "table.abi is %#x, negotiated was %#x",
              rig->table->abi, ZF_ABI_0_16);
    if (rig->table->struct_size < sizeof *rig->table || !rig->table->get_extension)
        return;
    for (const abi_extension_t *e = abi_extensions; e->id; e++) {
        abi_try(p, "get_extension(\"%s\")", e->id);
        const void *table = rig->table->get_extension(e->id);
        if (table)
            check_table(p, table, e->owner, 0);
        else
            abi_skip(p, ABI_RULE_TABLE, "no extension %s", e->id);
    }
    abi_try(p, "get_extension with unknown ids");
    abi_check(p, ABI_RULE_TABLE,
              !rig->table->get_extension("zf.no-such/1") && !rig->table->get_extension("zf.stats/999") &&
                  !rig->table->get_extension("") && !rig->table->get_extension(NULL),
              "get_extension knows an extension that does not exist");
}

static void probe_describe(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    zf_description_t d = {.struct_size = sizeof d};
    zf_error_t err = {.struct_size = sizeof err};
    if (!rig->table->describe)
        return;
    abi_check(p, ABI_RULE_VALID, rig->table->describe(&d, &err) == ZF_OK, "describe failed: %s", err.message);
    abi_check(p, ABI_RULE_TABLE,
              d.name && *d.name && d.version && *d.version && d.build && d.required_extensions &&
                  d.optional_extensions && d.provided_extensions,
              "describe: a string is NULL or a name is empty");
    abi_check(p, ABI_RULE_TABLE, d.device_types >> rig->create.device_type & 1,
              "describe: device_types = %#llx without type %d, on which it trains", (unsigned long long)d.device_types,
              rig->create.device_type);
    if (!d.provided_extensions || !d.required_extensions)
        return;
    abi_check(p, ABI_RULE_TABLE, d.abi >= rig->table->abi, "describe: newest ABI %#x is older than the negotiated",
              d.abi);
    for (const char *s = d.provided_extensions; *s && rig->table->get_extension; s += strspn(s, " ")) {
        char id[64];
        size_t n = strcspn(s, " ");
        snprintf(id, sizeof id, "%.*s", (int)n, s);
        abi_check(p, ABI_RULE_TABLE, rig->table->get_extension(id) != NULL,
                  "describe lists \"%s\", get_extension does not know it", id);
        s += n;
    }
}

/* ---- hosts that offer little ------------------------------------------------------------------------------------- */

static zf_status_t begin_with(abi_rig_t *rig, const char *what, void (*spoil)(abi_rig_t *rig)) {
    abi_rig_describe(rig, 1);
    rig->host.extension = NULL;
    spoil(rig);
    abi_try(rig->probe, "create for %s", what);
    zf_status_t st = abi_rig_create(rig);
    return st == ZF_OK ? abi_rig_bind(rig, NULL) : st;
}

static void train_with(abi_rig_t *rig, const char *what, void (*spoil)(abi_rig_t *rig)) {
    if (!rig->table->create || !rig->table->destroy)
        return;
    zf_status_t st = begin_with(rig, what, spoil);
    if (abi_rig_check(rig, ABI_RULE_HOST_ABSENT, st == ZF_OK, what, st)) {
        rig->stage = ABI_BOUND;
        abi_rig_train(rig, 6, ABI_RULE_HOST_ABSENT);
    }
    abi_rig_end(rig);
}

static void no_callbacks(abi_rig_t *rig) {
    rig->host.table.log = NULL;
    rig->host.table.get_extension = NULL;
}

static void short_extensions(abi_rig_t *rig) { /* every extension is there, with no slot in it */
    static const uint32_t table[2] = {8, 0};
    rig->host.extension = table;
}

static int uses_collectives(abi_rig_t *rig) {
    zf_description_t d = {.struct_size = sizeof d};
    return rig->table->describe && rig->table->describe(&d, NULL) == ZF_OK &&
           (strstr(d.optional_extensions, ZF_EXT_COLLECTIVES) || strstr(d.required_extensions, ZF_EXT_COLLECTIVES));
}

/* Refused by the table's name where ranks would exchange through it: each would train alone. */
static void refuse_short_extensions(abi_rig_t *rig) {
    zf_status_t st = begin_with(rig, "a host whose extension tables are empty", short_extensions);
    abi_rig_check(rig, ABI_RULE_HOST_ABSENT, st < 0 && strstr(rig->err.message, "collectives"),
                  "a host whose extension tables are empty", st);
    abi_rig_end(rig);
}

static void no_names(abi_rig_t *rig) { rig->host.table.name = rig->host.table.version = NULL; }

static void probe_hosts(abi_rig_t *rig) {
    train_with(rig, "a host with neither log nor get_extension", no_callbacks);
    if (uses_collectives(rig))
        refuse_short_extensions(rig);
    else
        train_with(rig, "a host whose extension tables are empty", short_extensions);
    train_with(rig, "a host without name and version", no_names);
}

const abi_row_t abi_entry_rows[] = {{"negotiation", ABI_NOTHING, 0, probe_negotiate},
                                    {"negotiation's traces", ABI_NOTHING, 0, probe_pure},
                                    {"tables", ABI_OPEN, 0, probe_tables},
                                    {"describe", ABI_OPEN, 0, probe_describe},
                                    {"poor hosts", ABI_OPEN, 0, probe_hosts},
                                    {NULL, ABI_NOTHING, 0, NULL}};
