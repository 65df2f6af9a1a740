/* SPDX-License-Identifier: Apache-2.0 */
/* abi_isolation.c - proof 7: the plugin beside copies of itself, other instances and libraries of the same names, and
 * what it leaves of the process. */
#define _GNU_SOURCE /* dl_iterate_phdr, RTLD_GLOBAL, memfd */
#include <dlfcn.h>
#include <fcntl.h>
#include <fenv.h>
#include <link.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi_probes.h"
#include "abi_rig.h"
#include "abi_watch.h"

enum { N_STEPS = 7 };

/* ---- copies and instances ---------------------------------------------------------------------------------------- */

/* Two trainers in turns; each must end where it ends alone. */
static void train_in_turns(abi_probe_t *p, abi_rule_t rule, abi_rig_t *rigs, const uint64_t *alone) {
    for (uint32_t i = 0; i < 2; i++) {
        abi_rig_describe(&rigs[i], i + 1);
        if (!abi_rig_start(&rigs[i], ABI_BOUND))
            return;
    }
    for (int s = 0; s < N_STEPS; s++)
        for (int i = 0; i < 2; i++)
            if (!abi_rig_train(&rigs[i], 1, rule))
                return;
    for (int i = 0; i < 2; i++)
        abi_check(p, rule, abi_rig_hash(&rigs[i]) == alone[i], "trainer %d ends in another state than alone", i + 1);
    abi_rig_end(&rigs[0]);
    if (abi_rig_train(&rigs[1], 1, rule))
        abi_rig_end(&rigs[1]);
}

/* One trainer by the plugin, one by the library in another file or in the same. */
static void train_both(abi_probe_t *p, abi_rule_t rule, const char *other) {
    static abi_rig_t rigs[2];
    uint64_t alone[2];
    for (uint32_t i = 0; i < 2; i++)
        alone[i] = abi_rig_hash_alone(p, i + 1, N_STEPS);
    if (!alone[0] || !alone[1] || !abi_rig_open(&rigs[0], p, p->plugin) || !abi_rig_open(&rigs[1], p, other))
        return;
    abi_check(p, rule, other == p->plugin || rigs[0].table != rigs[1].table, "both copies give the same table");
    abi_check(p, rule, alone[0] != alone[1], "different gradients end in the same state");
    abi_check(p, rule, abi_rig_hash_alone(p, 1, N_STEPS) == alone[0],
              "the same training does not end in the same state");
    train_in_turns(p, rule, rigs, alone);
}

static void probe_instances(abi_rig_t *rig) { train_both(rig->probe, ABI_RULE_INSTANCES, rig->probe->plugin); }

/* A copy of a file that only this process has; 0 where it cannot be made. */
static int copy_file(const char *from, char *out_path, size_t nbytes) {
    struct stat info;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = memfd_create("copy.so", MFD_CLOEXEC);
    int is_copied = in >= 0 && out >= 0 && fstat(in, &info) == 0;
    while (is_copied && info.st_size > 0) {
        ssize_t n = sendfile(out, in, NULL, (size_t)info.st_size);
        is_copied = n > 0;
        info.st_size -= n;
    }
    snprintf(out_path, nbytes, "/proc/self/fd/%d", out);
    return is_copied;
}

static void probe_copies(abi_rig_t *rig) {
    char path[64];
    if (copy_file(rig->probe->plugin, path, sizeof path))
        train_both(rig->probe, ABI_RULE_COPIES, path);
    else
        abi_skip(rig->probe, ABI_RULE_COPIES, "the file cannot be copied");
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void probe_names(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    char path[1024];
    uint64_t alone = abi_rig_hash_alone(p, 1, N_STEPS);
    snprintf(path, sizeof path, "%s/same_names.so", p->mocks ? p->mocks : "");
    if (!p->mocks || access(path, R_OK) != 0) {
        abi_skip(p, ABI_RULE_NAMES, "no same_names.so in \"%s\"; name the directory with --mocks DIR",
                 p->mocks ? p->mocks : "");
        return;
    }
    if (!abi_check(p, ABI_RULE_NAMES, dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL, "%s does not load", path))
        return;
    if (!alone || !abi_rig_open(rig, p, p->plugin) || !abi_rig_start(rig, ABI_BOUND))
        return;
    if (!abi_rig_train(rig, N_STEPS, ABI_RULE_NAMES))
        return;
    abi_check(p, ABI_RULE_NAMES, abi_rig_hash(rig) == alone,
              "training ends in another state beside a library of the same names");
}

/* ---- the process ------------------------------------------------------------------------------------------------- */

static void check_watch(abi_probe_t *p, const abi_watch_t *a, const char *when) {
    abi_watch_t b;
    abi_watch(&b);
    abi_check(p, ABI_RULE_PROCESS, a->environment == b.environment, "%s: the environment has changed", when);
    abi_check(p, ABI_RULE_PROCESS, a->signals == b.signals, "%s: signal handlers or the signal mask have changed",
              when);
    abi_check(p, ABI_RULE_PROCESS, strcmp(a->locale, b.locale) == 0 && a->thread_locale == b.thread_locale,
              "%s: locale \"%s\" became \"%s\"", when, a->locale, b.locale);
    abi_check(p, ABI_RULE_PROCESS, strcmp(a->directory, b.directory) == 0 && a->umask == b.umask,
              "%s: working directory or umask have changed", when);
    abi_check(p, ABI_RULE_PROCESS, CPU_EQUAL(&a->affinity, &b.affinity) && a->policy == b.policy && a->nice == b.nice,
              "%s: affinity, scheduling policy or priority of the calling thread have changed", when);
    abi_check(p, ABI_RULE_FPMODE,
              a->rounding == b.rounding && a->fp_control == b.fp_control && a->x87_control == b.x87_control,
              "%s: rounding %d to %d, control %#x to %#x", when, a->rounding, b.rounding, a->fp_control, b.fp_control);
}

static int is_unwanted(struct dl_phdr_info *info, size_t size, void *out) {
    static const char *const names[] = {"libcuda", "libcudart", "libnccl", "libhip", "librccl", "libmpi"};
    (void)size;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (info->dlpi_name && strstr(info->dlpi_name, names[i]))
            *(const char **)out = names[i];
    return 0;
}

static void probe_process(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    abi_watch_t before;
    const char *unwanted = NULL, *already = NULL;
    dl_iterate_phdr(is_unwanted, &already);
    abi_watch(&before);
    if (!abi_rig_open(rig, p, p->plugin))
        return;
    check_watch(p, &before, "after negotiation");
    if (!abi_rig_start(rig, ABI_BOUND))
        return;
    check_watch(p, &before, "after create and bind_params");
    if (!abi_rig_train(rig, N_STEPS, ABI_RULE_VALID))
        return;
    check_watch(p, &before, "after steps");
    dl_iterate_phdr(is_unwanted, &unwanted);
    abi_check(p, ABI_RULE_LAZY, !unwanted || already, "%s was loaded", unwanted ? unwanted : "");
    abi_rig_end(rig);
    check_watch(p, &before, "after destroy");
}

/* A host that rounds upward and flushes subnormal numbers keeps doing so. */
static void probe_fp_mode(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    abi_watch_t before;
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    unsigned mxcsr;
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
    mxcsr |= 0x8040u; /* FTZ, DAZ */
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
#endif
    abi_watch(&before);
    if (abi_rig_start(rig, ABI_BOUND))
        abi_rig_train(rig, N_STEPS, ABI_RULE_VALID);
    abi_rig_end(rig);
    check_watch(p, &before, "in a host with its own FP mode");
}

static void probe_threads(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    abi_watch_t before, after;
    abi_watch(&before);
    for (int i = 0; i < 3; i++) {
        abi_rig_describe(rig, 1);
        rig->step.flags = 0; /* destroy while a replay may be in flight */
        if (!abi_rig_start(rig, ABI_BOUND) || !abi_rig_train(rig, N_STEPS, ABI_RULE_VALID))
            return;
        abi_rig_end(rig);
    }
    after.n_threads = abi_watch_threads(before.n_threads);
    abi_check(p, ABI_RULE_THREADS, after.n_threads == before.n_threads, "%d threads before create, %d after destroy",
              before.n_threads, after.n_threads);
    abi_watch(&after);
    abi_check(p, ABI_RULE_THREADS, after.n_files == before.n_files, "%d open files before create, %d after destroy",
              before.n_files, after.n_files);
}

const abi_row_t abi_isolation_rows[] = {{"two copies", ABI_NOTHING, 0, probe_copies},
                                        {"two instances", ABI_NOTHING, 0, probe_instances},
                                        {"same names", ABI_NOTHING, 0, probe_names},
                                        {"process", ABI_NOTHING, 0, probe_process},
                                        {"floating-point mode", ABI_OPEN, 0, probe_fp_mode},
                                        {"threads", ABI_OPEN, 0, probe_threads},
                                        {NULL, ABI_NOTHING, 0, NULL}};
