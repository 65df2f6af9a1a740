/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/memop.c - stream memory operations: a stream waits for a word, or writes one.
 *
 * Words are of 64 bits, and the comparison is GEQ, which is cyclic: (int64)(*word - value) >= 0. A wait that CUDA work
 * has to end is a finding: the two streams may share a hardware queue, with the wait in front. Events are for that. */
#include "fake.h"

enum { MAX_WORDS = 4096, POLL_US = 30 };

static uint64_t written[MAX_WORDS]; /* words that streams wrote, by hash */

static void note_stream_write(uint64_t a) {
    for (uint64_t i = 0, h = a / 8 * 0x9e3779b97f4a7c15ull >> 52; i < MAX_WORDS; i++, h = (h + 1) % MAX_WORDS) {
        uint64_t expected = 0;
        if (__atomic_compare_exchange_n(&written[h], &expected, a, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
            expected == a)
            return;
    }
}

static int is_stream_written(uint64_t a) {
    for (uint64_t i = 0, h = a / 8 * 0x9e3779b97f4a7c15ull >> 52; i < MAX_WORDS; i++, h = (h + 1) % MAX_WORDS) {
        uint64_t there = __atomic_load_n(&written[h], __ATOMIC_RELAXED);
        if (there == a || there == 0)
            return there == a;
    }
    return 0;
}

static uint64_t *word_of(fc_op_t *op) {
    emu_range_t range;
    if (fc_find_for_kernel(op->to, &range) && op->to + sizeof(uint64_t) <= range.hi)
        return (uint64_t *)(void *)(range.bytes + (op->to - range.lo));
    fc_finding("memory operation: the word at %#llx is not there when the stream comes to it",
               (unsigned long long)op->to);
    fc_fail_context(op->stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
    return NULL;
}

/* The word has to be there as long as it is waited for. */
static void run_wait(fc_op_t *op) {
    const uint64_t *word = word_of(op);
    while (word && (int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - op->value) < 0) {
        if (__atomic_load_n(&op->stream->context->sticky, __ATOMIC_RELAXED))
            return;
        fc_pause_us(POLL_US);
        word = word_of(op);
    }
    if (word == NULL)
        return;
    fc_acquire(word);
    if (is_stream_written(op->to))
        fc_finding("a stream waits for the word at %#llx, which a stream writes", (unsigned long long)op->to);
}

static void run_write(fc_op_t *op) {
    uint64_t *word = word_of(op);
    if (word == NULL)
        return;
    note_stream_write(op->to);
    if (op->flags & CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
        fc_finding("the word at %#llx is written without a barrier: who sees it may not see what the stream did before",
                   (unsigned long long)op->to);
    else
        fc_release(word);
    __atomic_store_n(word, op->value, __ATOMIC_RELEASE);
}

static CUresult enqueue(CUstream given, CUdeviceptr at, uint64_t value, unsigned flags, unsigned known,
                        void (*run)(fc_op_t *)) {
    CUstream s = fc_stream_of(given);
    emu_range_t range;
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!fc_config.has_memops)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    if (at % 8 != 0 || !fc_find_for_kernel(at, &range) || at + 8 > range.hi)
        return CUDA_ERROR_INVALID_VALUE;
    return fc_enqueue(s, &(fc_op_t){.run = run, .to = at, .value = value, .flags = flags, .tells = run == run_write});
}

FC_API cuStreamWaitValue64(CUstream s, CUdeviceptr at, cuuint64_t value, unsigned int flags) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    return st ? st : enqueue(s, at, value, flags, CU_STREAM_WAIT_VALUE_GEQ, run_wait);
}
FC_API cuStreamWriteValue64(CUstream s, CUdeviceptr at, cuuint64_t value, unsigned int flags) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    return st ? st : enqueue(s, at, value, flags, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER, run_write);
}
