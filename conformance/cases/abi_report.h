/* SPDX-License-Identifier: Apache-2.0 */
/* abi_report.h - the rules of the ABI that a plugin can keep or break, and what was found about each.
 *
 * One rule collects many checks, of the probes (abi_probe.h). One thread at a time uses a report. */
#pragma once

#include "glue/error.h"

#include <stdio.h>

/* X(enumerator, proof of the design, name, what holds if it passes) */
#define ABI_RULES(X)                                                                                                   \
    X(EXPORTS, 3, "exports", "exports the entry alone, with its version")                                              \
    X(NEEDED, 3, "needed", "needs no library but libc, libm and libinih")                                              \
    X(IMPORTS, 3, "imports", "imports nothing that touches the process: exit, signals, locale, stdout ...")            \
    X(SONAME, 3, "soname", "SONAME is libzfplugin.so.0")                                                               \
    X(NODELETE, 3, "nodelete", "linked with -z nodelete")                                                              \
    X(STACK, 3, "stack", "no executable stack")                                                                        \
    X(TEXTREL, 3, "textrel", "no text relocations")                                                                    \
    X(NEGOTIATE, 5, "negotiate", "negotiation chooses, refuses and repeats as written")                                \
    X(PURE, 5, "negotiate-pure", "negotiation starts no thread and leaves no file open")                               \
    X(TABLE, 5, "table", "the table has its size and every slot")                                                      \
    X(VALID, 5, "valid-calls", "right calls succeed in every legal state")                                             \
    X(NULLS, 5, "null", "a NULL that is not allowed is refused, one that is allowed is taken")                         \
    X(SHORT, 5, "size-short", "input structs below the oldest size are refused")                                       \
    X(LONGER, 5, "size-long", "input structs with a longer, zero tail are taken")                                      \
    X(TAIL, 5, "size-tail", "an unknown tail that is not zero is ZF_ERR_UNSUPPORTED_FIELD")                            \
    X(ABSURD, 5, "size-absurd", "a size beyond reason is refused unread")                                              \
    X(ELEM, 5, "elem-size", "wrong element sizes are refused")                                                         \
    X(KINDS, 5, "kinds", "statuses, fences, skip reasons and counters are of kinds that these headers know")           \
    X(FENCES, 5, "fences", "fence_wait ends: at its timeout, and for a counter that is not this instance's")           \
    X(OUTSIZE, 5, "size-output", "outputs are written up to the caller's struct_size and no further")                  \
    X(STATE, 5, "state", "a hook in the wrong state is ZF_ERR_STATE")                                                  \
    X(IDS, 5, "ids", "unknown ids are refused")                                                                        \
    X(COUNT, 5, "count", "n = 0 does what its hook says")                                                              \
    X(FLAGS, 5, "flags", "unknown or contradicting flags are refused")                                                 \
    X(RESERVED, 5, "reserved", "a reserved member that is not zero is refused by name")                                \
    X(NEXT, 5, "next", "a chain of others' structs is passed over, but for what is required or broken")                \
    X(CONFIG, 5, "config", "wrong configuration is refused with place, key and range")                                 \
    X(TENSORS, 5, "tensors", "wrong tensors, names and storage are refused")                                           \
    X(RANGES, 5, "ranges", "matrices that a parameter does not have are refused")                                      \
    X(ELEMENTS, 5, "elements", "the host's update rule is told which elements of which parameter it updates")          \
    X(MATRICES, 5, "matrices", "the host's function of whole matrices gets them once a step, on its thread")           \
    X(NUMBERS, 5, "numbers", "hyper-parameters out of range are refused")                                              \
    X(DESTROY, 5, "destroy", "destroy with FLUSH leaves what quiesce(FLUSH) shows")                                    \
    X(NONFINITE, 5, "nonfinite", "a NaN gradient skips the step and is named")                                         \
    X(REPORT, 5, "report", "the step report says what happened: numbers, gradients")                                   \
    X(COUNTERS, 5, "counters", "counters have names and units of their own; sums do not fall, steps add up to them")   \
    X(POLL, 5, "poll", "poll says ZF_IN_PROGRESS while steps are under way, ZF_OK when they have ended")               \
    X(BOOKS, 5, "books", "counters, layout, warnings and scopes agree with what the host counts")                      \
    X(CHECKPOINT, 5, "checkpoint", "a checkpoint keeps note and weights")                                              \
    X(ORDER, 5, "save-order", "a save that is killed, or cut off by the power, leaves a whole checkpoint")             \
    X(NATIVE, 5, "native-code", "an error of the system is named by its errno, and retryable")                         \
    X(KEYS, 5, "config-keys", "keys have the ranges that they show, and check refuses what create does")               \
    X(DIGEST, 5, "digest", "a digest changes with every element, in all its bits")                                     \
    X(RECORDS, 5, "records", "reports and records of former steps say what the host counted")                          \
    X(WAITS, 5, "waits", "a wait ends at its deadline, and a fetch does not wait")                                     \
    X(WRITTEN, 5, "written", "what the host wrote is found, held and told until it is announced")                      \
    X(AUDITS, 5, "audits", "an audit moves with every array, every part of it, and with nothing else")                 \
    X(EXTENT, 5, "extent", "many parameters, a large one and many steps train as AdamW")                               \
    X(NO_ALLOC, 5, "no-alloc", "hooks allocate nothing after the first step")                                          \
    X(STATUS, 5, "status", "the error record's status, scope, origin and parameter are in order")                      \
    X(MESSAGE, 5, "message", "each refusal says what is wrong, with names")                                            \
    X(OUTPUTS, 5, "outputs", "outputs are untouched when a call fails")                                                \
    X(UNCHANGED, 5, "unchanged", "a refused call leaves every bit of the training state")                              \
    X(USABLE, 5, "usable", "training goes on after refused calls")                                                     \
    X(HOST_THREAD, 5, "host-thread", "the host is called inside hooks only, on the calling thread")                    \
    X(HOST_ARGS, 5, "host-args", "what the host is called with is in order")                                           \
    X(HOST_COPY, 5, "host-copy", "the host's table and strings may go when create has returned")                       \
    X(CANCEL, 5, "cancel", "a thread that is cancelled in a hook leaves it as it should")                              \
    X(HOST_ABSENT, 5, "host-absent", "a host with little is served; an empty zf.collectives is refused")               \
    X(BUSY, 5, "busy", "a hook beside another one on one instance is ZF_ERR_BUSY")                                     \
    X(CRASH, 5, "crash", "no probe crashed or hung")                                                                   \
    X(QUIET, 5, "quiet", "nothing is printed to stdout or stderr")                                                     \
    X(COPIES, 7, "two-copies", "two copies of the file train independently in one process")                            \
    X(INSTANCES, 7, "two-instances", "two instances train independently")                                              \
    X(NAMES, 7, "same-names", "a library with the same helper names beside it does not interfere")                     \
    X(PROCESS, 7, "process", "environment, signals, locale, directory and umask are left alone")                       \
    X(ENVIRONMENT, 7, "environment", "no environment variable is read but those of a list")                            \
    X(FPMODE, 7, "fp-mode", "the floating-point mode is left alone")                                                   \
    X(THREADS, 7, "threads", "no thread and no file is left after destroy")                                            \
    X(FORKED, 7, "forked", "calls in a forked child are ZF_ERR_FORKED, and the parent trains on")                      \
    X(SIGNALS, 7, "signals", "threads of the plugin block all signals")                                                \
    X(INHERITED, 7, "inherited", "what is open while a save stands is closed by exec")                                 \
    X(GROWTH, 7, "growth", "two thousand steps take no more memory, and the last no more time than the first")         \
    X(FILES, 7, "files", "no file is left in the working directory and the one for temporary files")                   \
    X(LEAK, 7, "leak", "an instance that is destroyed leaves no memory")                                               \
    X(IDLE, 7, "idle", "without work no thread takes processor time")                                                  \
    X(HOOK_TIME, 7, "hook-time", "hooks of a tiny model return at once")                                               \
    X(LAZY, 7, "lazy", "no GPU or network library is loaded for a CPU instance")

typedef enum {
#define ABI_RULE_ENUM(id, proof, name, text) ABI_RULE_##id,
    ABI_RULES(ABI_RULE_ENUM)
#undef ABI_RULE_ENUM
        ABI_N_RULES
} abi_rule_t;

typedef enum { ABI_PASS, ABI_FAIL, ABI_SKIP } abi_verdict_t;

enum { ABI_MAX_DETAILS = 12, ABI_DETAIL_NBYTES = 640 };

typedef struct abi_finding {
    unsigned n_pass, n_fail, n_skip;
    unsigned n_details;
    char details[ABI_MAX_DETAILS][ABI_DETAIL_NBYTES]; /* of failures and skips */
} abi_finding_t;

typedef struct abi_report {
    abi_finding_t rules[ABI_N_RULES];
} abi_report_t;

/* One finding; detail may be NULL for a pass. */
void abi_report_add(abi_report_t *report, abi_rule_t rule, abi_verdict_t verdict, const char *detail);

/* FAIL if any check failed; PASS if one passed; else SKIP. */
abi_verdict_t abi_report_verdict(const abi_report_t *report, abi_rule_t rule);

/* A table, one line per rule, with what was found below it. */
void abi_report_print(const abi_report_t *report, FILE *out);

/* 0 every rule holds that could be tried, 1 one is broken. */
int abi_report_exit_status(const abi_report_t *report);
