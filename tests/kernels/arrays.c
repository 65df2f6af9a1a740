/* SPDX-License-Identifier: Apache-2.0 */
/* arrays.c - see arrays.h. */
#include "arrays.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

const zfi_kernels_t *next_table(const zfi_kernels_t *table) {
    int isa = ZFI_N_ISAS;
    while (isa > 0 && zfi_kernels_of((zfi_isa_t)(isa - 1)) != table)
        isa--;
    while (isa < ZFI_N_ISAS && !zfi_kernels_of((zfi_isa_t)isa))
        isa++;
    return isa < ZFI_N_ISAS ? zfi_kernels_of((zfi_isa_t)isa) : NULL;
}

uint64_t random_bits(void) {
    static uint64_t state = 20250526;
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t random_below(uint64_t n) { return n == 0 ? 0 : random_bits() % n; }

uint64_t random_subset(uint64_t n, uint32_t *out_index) {
    const uint64_t one_in = 1 + random_below(10);
    uint64_t n_chosen = 0;
    for (uint64_t i = 0; i < n; i++)
        if (random_below(one_in) == 0)
            out_index[n_chosen++] = (uint32_t)i;
    return n_chosen;
}

float random_unit(void) { return (float)(int32_t)(random_bits() >> 40) * 0x1p-23f - 1.0f; }

float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float special(void) {
    static const uint32_t bits[] = {
        0x00000000, 0x80000000,             /* zeros */
        0x00000001, 0x807fffff, 0x00400000, /* denormals */
        0x00800000, 0x7f7fffff, 0xff7fffff, /* smallest normal, largest */
        0x7f800000, 0xff800000,             /* infinities */
        0x7fc00000, 0xffc12345, 0x7f800001, /* NaNs: quiet, with a payload, signalling with bits only below bf16 */
        0x3f808000, 0x3f818000, 0x3f808001, /* bf16 ties to even: down, up; above a tie */
        0x7f7f8000, 0x00008000, 0x00018000, /* a tie into Inf; ties among denormals */
    };
    return float_of(bits[random_below(sizeof bits / sizeof bits[0])]);
}

static float random_element(contents_t contents) {
    switch (contents) {
    case SPECIAL:
        return random_below(8) == 0 ? special() : random_unit() * 1e-3f;
    case POSITIVE:
        return random_below(8) == 0 ? float_of((uint32_t)random_below(1u << 23)) : (random_unit() + 1.0f) * 1e-6f;
    case EDGE: {
        static uint64_t left;
        static int kind;

        if (left-- == 0) {
            left = 1 + random_below(5000);
            kind = (int)random_below(4);
        }
        return random_unit() * (kind == 0 ? 0.0f : kind == 1 ? 0x1p-58f : kind == 2 ? 0x1p63f : 1.0f);
    }
    case ANY_BITS:
        return float_of((uint32_t)random_bits());
    default:
        return random_unit() * 1e-3f;
    }
}

static struct allocation {
    struct allocation *next;
    _Alignas(16) char bytes[];
} * allocations;

static array_t array_allocate(zfi_dtype_t dtype, uint64_t n_elems) {
    const size_t nbytes = zfi_dtype_nbytes(dtype), lead = 2 * (size_t)random_below(8) + 1;
    struct allocation *made = malloc(sizeof *made + (lead + n_elems) * nbytes);
    ck_assert_ptr_nonnull(made);
    made->next = allocations;
    allocations = made;
    return (array_t){.dtype = dtype, .n_elems = n_elems, .at = made->bytes + lead * nbytes};
}

void arrays_free(void) {
    while (allocations) {
        struct allocation *made = allocations;
        allocations = made->next;
        free(made);
    }
}

array_t array_new(zfi_dtype_t dtype, uint64_t n_elems, contents_t contents) {
    array_t array = array_allocate(dtype, n_elems);
    for (uint64_t i = 0; i < n_elems; i++) {
        float x = random_element(contents);
        uint16_t upper;
        memcpy(&upper, (char *)&x + 2, sizeof upper);
        if (dtype == ZFI_F32)
            ((float *)array.at)[i] = x;
        else if (dtype == ZFI_BF16 || contents == ANY_BITS || (contents == SPECIAL && i % 8 == 0))
            ((uint16_t *)array.at)[i] = upper;
        else
            ((uint16_t *)array.at)[i] = zfi_f32_to_f16(x);
    }
    return array;
}

array_t array_copy(const array_t *from) {
    array_t array = array_allocate(from->dtype, from->n_elems);
    memcpy(array.at, from->at, from->n_elems * zfi_dtype_nbytes(from->dtype));
    return array;
}

static uint32_t bits_at(const array_t *array, uint64_t i) {
    if (array->dtype == ZFI_BF16)
        return (uint32_t)((const uint16_t *)array->at)[i] << 16;
    if (array->dtype == ZFI_F16)
        return bits_of(zfi_f16_to_f32(((const uint16_t *)array->at)[i])); /* one to one */
    return bits_of(((const float *)array->at)[i]);
}

static int is_nan(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

void check_arrays(const array_t *want, const array_t *got, const char *table, const char *what, uint64_t n_elems) {
    for (uint64_t i = 0; i < want->n_elems; i++) {
        uint32_t x = bits_at(want, i), y = bits_at(got, i);
        if (x != y && !(is_nan(x) && is_nan(y)))
            ck_abort_msg("%s: %s of %llu elements: element %llu is %08x, generic has %08x", table, what,
                         (unsigned long long)n_elems, (unsigned long long)i, y, x);
    }
}

int doubles_differ(double a, double b) { return !(a != a && b != b) && memcmp(&a, &b, sizeof a) != 0; }
