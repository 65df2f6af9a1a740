/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/types.h - the types of table.h: C type, letter in inline assembly, from and to 64 bits of input.
 * Needs bits_f32, f32_bits, bits_f64, f64_bits. */
#define U16_TYPE uint16_t
#define U32_TYPE uint32_t
#define S32_TYPE int32_t
#define U64_TYPE uint64_t
#define S64_TYPE int64_t
#define F32_TYPE float
#define F64_TYPE double
#define U64_FROM_F64_TYPE double

#define U16_LETTER "h"
#define U32_LETTER "r"
#define S32_LETTER "r"
#define U64_LETTER "l"
#define S64_LETTER "l"
#define F32_LETTER "f"
#define F64_LETTER "d"
#define U64_FROM_F64_LETTER "d"

#define U16_IN(bits) ((uint16_t)(bits))
#define U32_IN(bits) ((uint32_t)(bits))
#define S32_IN(bits) ((int32_t)(uint32_t)(bits))
#define U64_IN(bits) ((uint64_t)(bits))
#define S64_IN(bits) ((int64_t)(bits))
#define F32_IN(bits) bits_f32((uint32_t)(bits))
#define F64_IN(bits) bits_f64(bits)

#define U16_OUT(x) ((uint64_t)(uint16_t)(x))
#define U32_OUT(x) ((uint64_t)(uint32_t)(x))
#define S32_OUT(x) ((uint64_t)(uint32_t)(x))
#define U64_OUT(x) ((uint64_t)(x))
#define S64_OUT(x) ((uint64_t)(x))
#define F32_OUT(x) ((uint64_t)f32_bits(x))
#define F64_OUT(x) f64_bits(x)
#define U64_FROM_F64_OUT(x) f64_bits(x) /* a move: the bits of a NaN stay */
