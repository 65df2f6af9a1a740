/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_no_alloc.c - after the first step no hook allocates, maps or frees, and no other thread of the
 * plugin does either. The program's own malloc() and mmap() count; they stand before the C library's for everything in
 * it. */
#define _GNU_SOURCE
#include <check.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"

#if !defined(__GLIBC__)
int main(void) {
    printf("skipped: needs the GNU C library's __libc_malloc\n");
    return 77;
}
#else

extern void *__libc_malloc(size_t nbytes);
extern void *__libc_calloc(size_t n, size_t nbytes);
extern void *__libc_realloc(void *old, size_t nbytes);
extern void __libc_free(void *old);

static _Atomic int is_counting;
static _Atomic uint64_t n_calls;

static void note(void) {
    if (atomic_load(&is_counting))
        atomic_fetch_add(&n_calls, 1);
}

void *malloc(size_t nbytes) {
    note();
    return __libc_malloc(nbytes);
}

void *calloc(size_t n, size_t nbytes) {
    note();
    return __libc_calloc(n, nbytes);
}

void *realloc(void *old, size_t nbytes) {
    note();
    return __libc_realloc(old, nbytes);
}

void free(void *old) {
    if (old)
        note();
    __libc_free(old);
}

void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset) {
    note();
    return (void *)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
}

int munmap(void *addr, size_t length) {
    note();
    return (int)syscall(SYS_munmap, addr, length);
}

/* ---- the host ---------------------------------------------------------------------------------------------------- */

static const zt_shape_t shapes[] = {
    {.rows = 96, .cols = 300},
    {.rows = 64, .cols = 120, .is_bf16 = 1, .group = 1},
    {.rows = 500},
    {.rows = 33, .cols = 77, .channels = ZF_CHANNELS_ROWS, .group = 2},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static zt_rig_t rig;

static zf_status_t one_step(uint64_t step) {
    const zf_digest_ext_t *ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    const zf_tensor_t *first = &rig.params[0].grad_tensor;
    uint64_t digest;
    zf_step_report_t report;
    zf_fence_t fence = {.struct_size = sizeof fence}, ready = {.struct_size = sizeof ready};
    zf_status_t st = ZF_OK;
    for (uint32_t p = 0; p < N_SHAPES && st >= 0; p++) {
        if (step % 5 == 3 && p == 1)
            continue; /* a hole */
        zt_rig_fill_grad(&rig, p, step);
        if (step % 7 == 2 && p == 0)
            memcpy(rig.params[p].grad, &(float){NAN}, sizeof(float)); /* skipped */
        if (step % 3 == 0 && p == 2) {                                /* two parts */
            st = zt_rig_deliver(&rig, p, ZF_GRAD_PART | ZF_GRAD_MORE, NULL);
            if (st >= 0)
                st = zt_rig_deliver(&rig, p, ZF_GRAD_PART | ZF_GRAD_LAST, NULL);
        } else if (st >= 0) {
            st = zt_rig_deliver(&rig, p, p & 1 ? ZF_GRAD_TOTAL : 0, &fence);
        }
    }
    if (st >= 0 && step % 11 == 5)
        st = zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL);
    if (st >= 0)
        st = zt_rig_submit(&rig, 0, &report);
    if (st >= 0)
        st = rig.zf->param_fetch(rig.inst, NULL, 0, 0, &rig.stream, &ready, &rig.err);
    if (st >= 0 && ready.kind == ZF_FENCE_HOST_COUNTER)
        st = rig.cpu->fence_wait(&ready, 60000000000u, &rig.err);
    if (st >= 0)
        st = rig.zf->poll(rig.inst, &report, &rig.err);
    if (st >= 0)
        st = ext->digest(rig.inst, &first, 1, &digest, &rig.err);
    if (st >= 0)
        st = rig.zf->param_release(rig.inst, NULL, 0, 0, &rig.stream, &rig.err);
    if (st >= 0)
        st = rig.cpu->fence_wait(&fence, 60000000000u, &rig.err);
    return st;
}

static void count_allocations(const char *config, int is_queue) {
    zf_status_t st = ZF_OK;
    zt_rig_start(&rig, shapes, N_SHAPES);
    if (is_queue)
        zt_rig_use_queue(&rig);
    zt_rig_open(&rig, config, ZF_CREATE_CAP_FETCH);
    ZT_OK(&rig, one_step(1));
    ZT_OK(&rig, one_step(3)); /* the first with parts: their sums are mapped when they are first delivered */
    zt_rig_sync(&rig);
    atomic_store(&n_calls, 0);
    atomic_store(&is_counting, 1);
    for (uint64_t step = 4; step < 204 && st >= 0; step++)
        st = one_step(step);
    atomic_store(&is_counting, 0);
    ZT_OK(&rig, st);
    ck_assert_msg(atomic_load(&n_calls) == 0, "%llu calls of the allocator in 200 steps",
                  (unsigned long long)atomic_load(&n_calls));
    ck_assert_uint_gt(zt_rig_counter(&rig, "reselects"), 20); /* what this test is about did happen */
    ck_assert_uint_gt(zt_rig_counter(&rig, "steps_skipped"), 10);
    zt_rig_end(&rig);
}

#define COMMON                                                                                                         \
    "topk_ratio = 0.1\nupdate_interval = 4\nselect_interval = 5\nfull_warm_up_rounds = 4\n[host]\nthreads = 2\n"

ZT_TEST(the_counter_counts) {
    void *volatile block;
    atomic_store(&is_counting, 1);
    block = malloc(100);
    free(block);
    block = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(block, 4096);
    atomic_store(&is_counting, 0);
    ck_assert_uint_eq(atomic_load(&n_calls), 4);
}

ZT_TEST(replay_mode) {
    count_allocations("[zenflow]\n" COMMON, 0);
    count_allocations("[zenflow]\n" COMMON, 1);
}

ZT_TEST(mean_mode) {
    count_allocations("[zenflow]\nmode = mean\n" COMMON, 0);
    count_allocations("[zenflow]\nmode = mean\n" COMMON, 1);
}

ZT_SUITE("no_alloc")

#endif
