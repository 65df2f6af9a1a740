/* SPDX-License-Identifier: Apache-2.0 */
/* shard_main.c - zf-conform shard: one rank of mpirun (model in shard.h). Rank 0 prints the result. */
#include "shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "exact_device.h"
#include "exact_steps.h"
#include "harness/option_table.h"
#include "shard_overlap.h"
#include "zf_loader.h"

typedef struct zs_options {
    const char *plugin, *mpi, *device, *transport, *fault, *save, *load;
    uint32_t n_cases, only, at_rank, deadline_ms, stage, hold_us, split;
    uint64_t seed;
    int overlap, groups, wants_help;
} zs_options_t;

enum { ALL = UINT32_MAX };

#define AT(member) offsetof(zs_options_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE", "the library (default: ZFPLUGIN_PATH, else libzfplugin.so.0)"),
    ZC_OPTION("mpi", ZC_TEXT, AT(mpi), "FILE", "libzf_mpi.so (default: ZF_MPI_PATH, else libzf_mpi.so)"),
    ZC_OPTION("device", ZC_CHOICE_TEXT, AT(device), "NAME", "where the tensors are: cpu (default), cuda",
              .choices = "cpu cuda"),
    ZC_OPTION("transport", ZC_CHOICE_TEXT, AT(transport), "NAME",
              "[shard] transport: host (default), that is MPI, or nccl; each with _two_level, on two machines in name; "
              "nccl_native",
              .choices = "host nccl host_two_level nccl_two_level nccl_native"),
    ZC_OPTION("cases", ZC_U32, AT(n_cases), "N", "random cases, default 40", .least = 1, .most = 99999999),
    ZC_OPTION("seed", ZC_U64, AT(seed), "N", "default 1"),
    ZC_OPTION("only", ZC_U32, AT(only), "CASE", "this case alone, or with --overlap this setting", .least = 0,
              .most = 99999999),
    ZC_OPTION("stage", ZC_U32, AT(stage), "N", "0, 1, 2 or 3 in all cases that can have it; default: drawn per case",
              .least = 0, .most = 3),
    ZC_OPTION("groups", ZC_SWITCH, AT(groups), NULL, "process groups are drawn: models side by side, experts"),
    ZC_OPTION("save", ZC_TEXT, AT(save), "DIR", "each case saves a checkpoint there, DIR/case-<number>, and goes on"),
    ZC_OPTION("load", ZC_TEXT, AT(load), "DIR", "each case begins with the checkpoint that --save left, of any ranks"),
    ZC_OPTION("split", ZC_U32, AT(split), "P",
              "with these: P ranks save, and of the state a part is resident, another one for each number of ranks",
              .least = 1, .most = 64),
    ZC_OPTION("deadline-ms", ZC_U32, AT(deadline_ms), "MS",
              "of every wait of the plugin, default 30000; with --fault 4000", .least = 100, .most = 99999),
    ZC_OPTION("hold-us", ZC_U32, AT(hold_us), "US", "exchanges begin as late as up to that, on each rank by itself",
              .least = 0, .most = 900000),
    ZC_OPTION("fault", ZC_CHOICE_TEXT, AT(fault), "NAME",
              "what one rank does wrong in the first case, which every other must notice",
              .choices = "kill stop late config name values hyper discard flush fetch"),
    ZC_OPTION("at-rank", ZC_U32, AT(at_rank), "R", "the rank that does, default 1", .least = 0, .most = 63),
    ZC_OPTION("overlap", ZC_SWITCH, AT(overlap), NULL,
              "instead, without mpirun: what of a step's exchanges a host waits for on a slow link, as tables"),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

/* What every rank tells the others after a case. */
typedef struct zs_report {
    uint64_t order[ZS_LANES], n_started, sent_nbytes, expected_nbytes, n_values;
    uint64_t value_nbytes, expected_value_nbytes;
} zs_report_t;

typedef struct zs_totals {
    uint64_t n_values, n_started, sent_nbytes, value_nbytes;
} zs_totals_t;

static uint64_t count_values(const zx_result_t *result) {
    uint64_t n = 0;
    for (int i = 1; i <= ZX_N_LAWS; i++)
        n += result->n_values[i];
    return n;
}

/* Whether a rank sent another number of bytes than it should have: then it is said. */
static int is_other(const zx_case_t *c, uint32_t rank, const char *what, uint64_t sent, uint64_t expected) {
    if (sent != expected)
        printf("case %" PRIu64 ": rank %u sent %" PRIu64 " bytes of %s %" PRIu64 "\n", c->index, rank, sent, what,
               expected);
    return sent != expected;
}

/* 0 where all ranks have started the same exchanges, and as many bytes as the layout says. */
static int compare_ranks(zs_ranks_t *ranks, const zx_case_t *c, const zx_result_t *result, zs_totals_t *totals) {
    zs_report_t all[64];
    zs_report_t *own = &all[ranks->rank];
    int is_bad = 0;
    *own = (zs_report_t){.sent_nbytes = ranks->gradient_nbytes,
                         .expected_nbytes = ranks->expected_nbytes,
                         .n_values = count_values(result)};
    if (zs_is_by_nccl(ranks)) {
        own->sent_nbytes = zs_ranks_nccl_nbytes();
        own->expected_nbytes = own->sent_nbytes == ZS_NOT_KNOWN || ranks->stage == 3 || zs_moves(ranks) || c->is_rebound
                                   ? own->sent_nbytes
                                   : ranks->expected_nbytes + ranks->expected_value_nbytes;
    } else if (!zs_moves(ranks) && !c->is_rebound) { /* there, a state that is made anew shows all of its values */
        own->value_nbytes = ranks->value_nbytes;
        own->expected_value_nbytes = ranks->expected_value_nbytes;
    }
    memcpy(own->order, ranks->order, sizeof own->order);
    for (int lane = 0; lane < ZS_LANES; lane++)
        own->n_started += ranks->n_started[lane];
    if (zs_ranks_gather(ranks, all, sizeof *all) != 0)
        return fprintf(stderr, "zf-conform shard: the ranks could not be compared\n"), -1;
    for (uint32_t r = 0; r < ranks->size && ranks->rank == 0; r++) {
        if (memcmp(all[r].order, all[0].order, sizeof all[r].order) != 0) {
            printf("case %" PRIu64 ": rank %u started other exchanges than rank 0, or in another order (%" PRIu64
                   " and %" PRIu64 ")\n",
                   c->index, r, all[r].n_started, all[0].n_started);
            is_bad = 1;
        }
        is_bad |= is_other(c, r, "gradients, the layout says", all[r].sent_nbytes, all[r].expected_nbytes);
        is_bad |= is_other(c, r, "values, layout and schedule say", all[r].value_nbytes, all[r].expected_value_nbytes);
        totals->value_nbytes += all[r].value_nbytes;
        totals->n_values += all[r].n_values;
        totals->sent_nbytes += all[r].sent_nbytes;
    }
    totals->n_started += all[0].n_started;
    return is_bad;
}

static void print_case(const zs_ranks_t *ranks, const zx_case_t *c, const zx_result_t *result) {
    printf("rank %u of %u: %s\n  stage %u, buckets of %u bytes, %u model(s), %u expert(s)\n", ranks->rank, ranks->size,
           result->text, ranks->stage, ranks->bucket_bytes, ranks->n_models, ranks->n_experts);
    zx_case_print(c, "  ");
    fflush(stdout);
}

/* A rank that noticed what another did wrong: says so, and how long it took. */
static void print_noticed(const zs_ranks_t *ranks, const zx_result_t *result, time_t began) {
    printf("rank %u noticed after %lld s: %s\n", ranks->rank, (long long)(time(NULL) - began), result->text);
    fflush(stdout);
}

static void set_deadline(zx_case_t *c, uint32_t ms) {
    char *at = strstr(c->config_text, "deadline_ms = 90000");
    if (at) {
        char text[32];
        int n = snprintf(text, sizeof text, "deadline_ms = %05u", ms);
        memcpy(at, text, (size_t)n);
    }
}

/* 0; 1 where it does not conform, or a fault was not noticed. Ends the process where an instance is left behind. */
static int run_case(const zs_options_t *o, zs_ranks_t *ranks, const zf_loader_t *loader, uint32_t index,
                    zs_totals_t *totals) {
    zx_case_t *c = zx_alloc(sizeof *c);
    zx_result_t *result = zx_alloc(sizeof *result);
    zx_resume_t resume = {.plugin = o->plugin};
    time_t began = time(NULL);
    zx_case_make(c, o->seed, 2, index, 0, ZX_HAS_QUEUE);
    c->ranks = ranks;
    set_deadline(c, o->deadline_ms ? o->deadline_ms : o->fault ? ZS_DEADLINE_MS : 30000);
    zs_case_prepare(ranks, c, o->stage);
    zx_result_init(result);
    zx_run_case(c, result, loader, &resume);
    if (zx_is_bad(result)) {
        if (o->fault && ranks->fault == ZS_NO_FAULT)
            print_noticed(ranks, result, began);
        if (!o->fault)
            print_case(ranks, c, result);
        if (o->fault) /* mpirun then ends the others, who may be about to say what they noticed */
            sleep(2);
        _exit(o->fault ? 0 : 1); /* the instance is left behind */
    }
    if (o->fault)
        return printf("rank %u did not notice what rank %u did wrong\n", ranks->rank, o->at_rank), 1;
    int is_bad = compare_ranks(ranks, c, result, totals);
    if (is_bad)
        print_case(ranks, c, result);
    zx_case_free(c);
    zx_result_free(result);
    free(c);
    free(result);
    return is_bad != 0;
}

static zs_fault_t find_fault(const zs_options_t *o, uint32_t rank) {
    for (int i = 0; i < ZS_N_FAULTS && o->fault && rank == o->at_rank; i++)
        if (strcmp(o->fault, zs_fault_name((zs_fault_t)i)) == 0)
            return (zs_fault_t)i;
    return ZS_NO_FAULT;
}

/* Without MPI. */
static int run_alone(const zs_options_t *o) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    if (zf_loader_open(o->plugin, &loader, &err) < 0)
        return fprintf(stderr, "zf-conform shard: %s\n", err.message), 2;
    return zs_overlap(loader, o->only);
}

static int run_all(const zs_options_t *o, zs_ranks_t *ranks) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    zs_totals_t totals = {0};
    uint32_t first = o->only == ALL ? 0 : o->only, n = o->only == ALL ? o->n_cases : 1;
    int is_bad = 0;
    if (zf_loader_open(o->plugin, &loader, &err) < 0)
        return fprintf(stderr, "zf-conform shard: %s\n", err.message), 2;
    for (uint32_t i = first; i < first + (o->fault ? 1 : n) && !is_bad; i++)
        is_bad = run_case(o, ranks, loader, i, &totals);
    if (is_bad)
        _exit(1); /* mpirun ends the others */
    if (ranks->rank == 0)
        printf("law 4: %u rank(s), %u cases, %" PRIu64 " values compared, %" PRIu64 " exchanges in one order, %" PRIu64
               " bytes of gradients and %" PRIu64 " of values as the layout says: conforms\n",
               ranks->size, n, totals.n_values, totals.n_started, totals.sent_nbytes, totals.value_nbytes);
    return 0;
}

int zs_shard_main(int argc, char **argv) {
    zs_options_t o = {.n_cases = 40, .seed = 1, .only = ALL, .at_rank = 1, .stage = ALL};
    static zs_ranks_t one_rank, *const ranks = &one_rank;
    glue_error_t err;
    if (zc_options_parse(table, N_OPTIONS, argc, argv, &o, &err) != 0)
        return fprintf(stderr, "zf-conform shard: %s\n", err.text), 2;
    if (o.wants_help)
        return zc_options_help("zf-conform shard - one rank of mpirun: P ranks against the oracle of one", table,
                               N_OPTIONS, "0 conforms, 1 does not, 2 could not run");
    if (o.overlap)
        return run_alone(&o);
    if (o.device)
        setenv(ZX_DEVICE_ENV, o.device, 1);
    setenv("FAKECUDA_DEVICE_BYTES", "268435456", 0); /* of the double (tests/cuda): it is filled soon */
    const char *file = o.mpi ? o.mpi : getenv("ZF_MPI_PATH");
    ranks->transport = o.transport;
    if (zs_ranks_open(file ? file : "libzf_mpi.so", ranks) != 0)
        return 2;
    ranks->fault = find_fault(&o, ranks->rank);
    ranks->has_fault = o.fault != NULL;
    ranks->hold_us = o.hold_us;
    ranks->draws_groups = o.groups;
    ranks->save_to = o.save;
    ranks->load_from = o.load;
    ranks->split_by = o.split;
    if (ranks->size == 1)
        fprintf(stderr,
                "zf-conform shard: one rank alone, nothing is exchanged (more: mpirun -n P zf-conform shard)\n");
    int status = run_all(&o, ranks);
    fflush(stdout);
    zs_ranks_close(ranks);
    return status;
}
