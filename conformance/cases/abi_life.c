/* SPDX-License-Identifier: Apache-2.0 */
/* abi_life.c - proofs 5 and 7, what shows in a life that is longer, or shared: two hooks at once, a forked child, the
 * signals and open files of the process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "abi_probes.h"
#include "abi_watch.h"
#include "harness/clock.h"

/* ---- two hooks at once ------------------------------------------------------------------------------------------- */

static sem_t gate;

static void pass_gate(void *unused) {
    (void)unused;
    while (sem_wait(&gate) != 0) {
    }
}

static void *step_on_a_held_queue(void *raw) {
    abi_rig_t *rig = raw;
    rig->table->step(rig->instance, &rig->step, NULL, NULL);
    return NULL;
}

/* Up to two seconds until the other thread is in its hook. */
static zf_status_t poll_until_busy(abi_rig_t *rig) {
    zf_status_t st = ZF_OK;
    for (int i = 0; i < 200 && st != ZF_ERR_BUSY; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        st = rig->table->poll(rig->instance, NULL, &rig->err);
    }
    return st;
}

static void hold_a_step(abi_rig_t *rig, const zf_cpu_ext_t *cpu, zf_cpu_queue_t *queue) {
    pthread_t thread;
    cpu->queue_launch(queue, pass_gate, NULL, NULL);
    zf_status_t st = abi_rig_deliver(rig, 0, ABI_RIG_TRAINED);
    if (!abi_rig_check(rig, ABI_RULE_VALID, st >= 0, "grads_ready on a queue", st) ||
        pthread_create(&thread, NULL, step_on_a_held_queue, rig) != 0)
        return;
    st = poll_until_busy(rig);
    abi_check(rig->probe, ABI_RULE_BUSY, st == ZF_ERR_BUSY && rig->err.retryable,
              "poll beside a step that waits: returned %d, not ZF_ERR_BUSY, retryable %d", st, rig->err.retryable);
    sem_post(&gate);
    pthread_join(thread, NULL);
    st = rig->table->poll(rig->instance, NULL, &rig->err);
    abi_rig_check(rig, ABI_RULE_USABLE, st >= 0, "poll after the step", st);
}

static void probe_busy(abi_rig_t *rig) {
    const zf_cpu_ext_t *cpu = rig->table->get_extension(ZF_EXT_CPU);
    sem_init(&gate, 0, 0);
    rig->host.table.log = NULL; /* hooks run on another thread than the rig thinks */
    zf_cpu_queue_t *queue = abi_rig_queue(rig, ABI_RULE_BUSY);
    if (!queue)
        return;
    hold_a_step(rig, cpu, queue);
    abi_rig_end(rig);
    cpu->queue_destroy(queue);
}

/* ---- a forked child ---------------------------------------------------------------------------------------------- */

enum { N_CHILD_CALLS = 5, MORE_STEPS = 3 };

static zf_status_t call_in_child(abi_rig_t *rig, int i) {
    const zf_fence_t fence = {.struct_size = sizeof fence, .kind = ZF_FENCE_NONE};
    switch (i) {
    case 0:
        return rig->table->poll(rig->instance, NULL, &rig->err);
    case 1:
        return abi_rig_deliver(rig, 0, ABI_RIG_TRAINED);
    case 2:
        return abi_rig_quiesce(rig, ZF_QUIESCE_FLUSH);
    case 3:
        return rig->table->params_changed(rig->instance, NULL, 0, 0, 0, &rig->err);
    default:
        return rig->table->fence_wait(rig->instance, &fence, 1000000, &rig->err);
    }
}

/* Exit status: 0, or one more than the call that returns something else; a call that hangs is ended. */
static void be_child(abi_rig_t *rig) {
    alarm(20);
    for (int i = 0; i < N_CHILD_CALLS; i++)
        if (call_in_child(rig, i) != ZF_ERR_FORKED)
            _exit(1 + i);
    rig->table->destroy(rig->instance, NULL);
    _exit(0);
}

static void probe_forked(abi_rig_t *rig) {
    uint64_t alone = abi_rig_hash_alone(rig->probe, 1, ABI_RIG_STEPS + MORE_STEPS);
    int status = -1;
    if (!abi_rig_start(rig, ABI_ACTIVE))
        return;
    pid_t pid = fork();
    if (pid == 0)
        be_child(rig);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return;
    abi_check(rig->probe, ABI_RULE_FORKED, WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "a forked child: %s %d does not return ZF_ERR_FORKED", WIFEXITED(status) ? "call" : "signal",
              WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    if (abi_rig_train(rig, MORE_STEPS, ABI_RULE_USABLE))
        abi_check(rig->probe, ABI_RULE_FORKED, !alone || abi_rig_hash(rig) == alone,
                  "beside a child that called it, training ends in another state");
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

/* The signals that a thread blocks, one bit each; all: it is gone. */
static uint64_t blocked_by(const char *tid) {
    char path[300], line[256];
    uint64_t mask = UINT64_MAX;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "SigBlk: %" SCNx64, &mask) == 1)
            break;
    if (file)
        fclose(file);
    return mask;
}

/* All that a thread can block of the first 31. */
static void check_thread(abi_probe_t *p, const char *tid) {
    const uint64_t none = (uint64_t)1 << (SIGKILL - 1) | (uint64_t)1 << (SIGSTOP - 1);
    const uint64_t all = (((uint64_t)1 << 31) - 1) & ~none;
    uint64_t blocked = blocked_by(tid);
    abi_check(p, ABI_RULE_SIGNALS, (blocked & all) == all,
              "thread %s blocks 0x%" PRIx64 ": a handler of the host's may run there", tid, blocked);
}

static void probe_signals(abi_rig_t *rig) {
    DIR *tasks;
    if (!abi_rig_start(rig, ABI_ACTIVE) || !(tasks = opendir("/proc/self/task")))
        return;
    for (struct dirent *e; (e = readdir(tasks)) != NULL;)
        if (e->d_name[0] != '.' && atoi(e->d_name) != gettid())
            check_thread(rig->probe, e->d_name);
    closedir(tasks);
}

/* ---- open files -------------------------------------------------------------------------------------------------- */

enum { MOST_FILES = 256, MOST_SAVES = 60, ENOUGH_SEEN = 40 };

static struct {
    uint8_t is_old[MOST_FILES];             /* open before */
    _Atomic int is_over, n_seen, inherited; /* a file that exec would leave open; -1: none */
} files;

static void look_at_files(void) {
    for (int fd = 0; fd < MOST_FILES; fd++) {
        int flags = files.is_old[fd] ? -1 : fcntl(fd, F_GETFD);
        if (flags < 0)
            continue;
        atomic_fetch_add(&files.n_seen, 1);
        if (!(flags & FD_CLOEXEC))
            atomic_store(&files.inherited, fd);
    }
}

static void *watch_files(void *unused) {
    (void)unused;
    while (!atomic_load(&files.is_over))
        look_at_files();
    return NULL;
}

static void probe_files(abi_rig_t *rig) {
    const zf_state_ext_t *ext = rig->table->get_extension(ZF_EXT_STATE);
    char path[4200];
    zf_state_args_t args = {.struct_size = sizeof args, .path = path};
    pthread_t thread;
    snprintf(path, sizeof path, "%s/watched", rig->probe->scratch);
    for (int fd = 0; fd < MOST_FILES; fd++)
        files.is_old[fd] = fcntl(fd, F_GETFD) >= 0;
    atomic_store(&files.inherited, -1);
    if (!ext || pthread_create(&thread, NULL, watch_files, NULL) != 0)
        return;
    for (int i = 0; i < MOST_SAVES && atomic_load(&files.n_seen) < ENOUGH_SEEN; i++) {
        zf_status_t st = ABI_CALL(rig, ext->save(rig->instance, &args, NULL, &rig->err));
        if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "save", st))
            break;
    }
    atomic_store(&files.is_over, 1);
    pthread_join(thread, NULL);
    abi_check(rig->probe, ABI_RULE_INHERITED, atomic_load(&files.inherited) < 0,
              "while a save stands, file %d is open without FD_CLOEXEC: a program that is started then inherits it",
              atomic_load(&files.inherited));
}

const abi_row_t abi_life_rows[] = {{"two hooks at once", ABI_OPEN, 0, probe_busy},
                                   {"a forked child", ABI_OPEN, 0, probe_forked},
                                   {"signals", ABI_OPEN, 0, probe_signals},
                                   {"open files of a save", ABI_ACTIVE, 0, probe_files},
                                   {NULL, ABI_NOTHING, 0, NULL}};
