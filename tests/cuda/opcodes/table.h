/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/table.h - every PTX instruction that ptx2c knows, beside plain C that says what it computes.
 *
 * A row: name, PTX with %0 for the result, the types of the result and of its operands a, b, c, and the expected result
 * as a C expression of them. opcodes.cu makes a kernel of each row, reference.c a function. A type is one of U16, U32,
 * S32, U64, S64, F32, F64. NaN equals NaN.
 *
 * Include it with OP3 and ATOM defined: operands that an instruction does not have are drawn, too. */
#define OP1(name, ptx, R, A, expected) OP3(name, ptx, R, A, U32, U32, expected)
#define OP2(name, ptx, R, A, B, expected) OP3(name, ptx, R, A, B, U32, expected)

/* ---- floating point ---- */
OP2(add_f32, "add.rn.f32 %0, %1, %2;", F32, F32, F32, a + b)
OP2(sub_f32, "sub.rn.f32 %0, %1, %2;", F32, F32, F32, a - b)
OP2(mul_f32, "mul.rn.f32 %0, %1, %2;", F32, F32, F32, a *b)
OP2(div_f32, "div.rn.f32 %0, %1, %2;", F32, F32, F32, a / b)
OP1(rcp_f32, "rcp.rn.f32 %0, %1;", F32, F32, 1.0f / a)
OP1(sqrt_f32, "sqrt.rn.f32 %0, %1;", F32, F32, sqrtf(a))
OP3(fma_f32, "fma.rn.f32 %0, %1, %2, %3;", F32, F32, F32, F32, fmaf(a, b, c))
OP2(add_f64, "add.rn.f64 %0, %1, %2;", F64, F64, F64, a + b)
OP2(sub_f64, "sub.rn.f64 %0, %1, %2;", F64, F64, F64, a - b)
OP2(mul_f64, "mul.rn.f64 %0, %1, %2;", F64, F64, F64, a *b)
OP2(div_f64, "div.rn.f64 %0, %1, %2;", F64, F64, F64, a / b)
OP1(rcp_f64, "rcp.rn.f64 %0, %1;", F64, F64, 1.0 / a)
OP1(sqrt_f64, "sqrt.rn.f64 %0, %1;", F64, F64, sqrt(a))
OP3(fma_f64, "fma.rn.f64 %0, %1, %2, %3;", F64, F64, F64, F64, fma(a, b, c))
OP1(abs_f32, "abs.f32 %0, %1;", F32, F32, fabsf(a))
OP1(neg_f32, "neg.f32 %0, %1;", F32, F32, -a)
OP1(abs_f64, "abs.f64 %0, %1;", F64, F64, fabs(a))
OP1(neg_f64, "neg.f64 %0, %1;", F64, F64, -a)
OP2(min_f32, "min.f32 %0, %1, %2;", F32, F32, F32, ref_min(a, b))
OP2(max_f32, "max.f32 %0, %1, %2;", F32, F32, F32, -ref_min(-a, -b))
OP2(min_f64, "min.f64 %0, %1, %2;", F64, F64, F64, ref_min(a, b))
OP2(max_f64, "max.f64 %0, %1, %2;", F64, F64, F64, -ref_min(-a, -b))

/* ---- comparisons: ordered ones are false, unordered ones true where there is a NaN ---- */
#define SETP(op, type) "{.reg .pred p; setp." op "." type " p, %1, %2; selp.u32 %0, 1, 0, p;}"
OP2(eq_f32, SETP("eq", "f32"), U32, F32, F32, a == b)
OP2(ne_f32, SETP("ne", "f32"), U32, F32, F32, a<b || a> b)
OP2(lt_f32, SETP("lt", "f32"), U32, F32, F32, a < b)
OP2(le_f32, SETP("le", "f32"), U32, F32, F32, a <= b)
OP2(gt_f32, SETP("gt", "f32"), U32, F32, F32, a > b)
OP2(ge_f32, SETP("ge", "f32"), U32, F32, F32, a >= b)
OP2(equ_f32, SETP("equ", "f32"), U32, F32, F32, !(a < b || a > b))
OP2(neu_f32, SETP("neu", "f32"), U32, F32, F32, a != b)
OP2(ltu_f32, SETP("ltu", "f32"), U32, F32, F32, !(a >= b))
OP2(leu_f64, SETP("leu", "f64"), U32, F64, F64, !(a > b))
OP2(gtu_f64, SETP("gtu", "f64"), U32, F64, F64, !(a <= b))
OP2(geu_f64, SETP("geu", "f64"), U32, F64, F64, !(a < b))
OP2(eq_s16, SETP("eq", "s16"), U32, U16, U16, a == b)
OP2(eq_b32, SETP("eq", "b32"), U32, U32, U32, a == b)
OP2(lt_s32, SETP("lt", "s32"), U32, S32, S32, a < b)
OP2(ge_s32, SETP("ge", "s32"), U32, S32, S32, a >= b)
OP2(lt_u32, SETP("lt", "u32"), U32, U32, U32, a < b)
OP2(le_u32, SETP("le", "u32"), U32, U32, U32, a <= b)
OP2(gt_u32, SETP("gt", "u32"), U32, U32, U32, a > b)
OP2(lt_s64, SETP("lt", "s64"), U32, S64, S64, a < b)
OP2(le_u64, SETP("le", "u64"), U32, U64, U64, a <= b)
OP2(gt_u64, SETP("gt", "u64"), U32, U64, U64, a > b)
OP2(ne_s64, SETP("ne", "s64"), U32, S64, S64, a != b)
OP3(logic_pred,
    "{.reg .pred p, q, s; setp.lt.u32 p, %1, %2; setp.lt.u32 q, %2, %3; xor.pred s, p, q; not.pred s, s; and.pred p, "
    "p, s; "
    "or.pred p, p, q; selp.u32 %0, 1, 0, p;}",
    U32, U32, U32, U32, ((a < b) && !((a < b) != (b < c))) || b < c)
OP3(selp_f64, "{.reg .pred p; setp.ne.u32 p, %3, 0; selp.f64 %0, %1, %2, p;}", F64, F64, F64, U32, c ? a : b)

/* ---- integers ---- */
OP2(add_s32, "add.s32 %0, %1, %2;", U32, U32, U32, a + b)
OP2(sub_s32, "sub.s32 %0, %1, %2;", U32, U32, U32, a - b)
OP2(add_s64, "add.s64 %0, %1, %2;", U64, U64, U64, a + b)
OP2(sub_s64, "sub.s64 %0, %1, %2;", U64, U64, U64, a - b)
OP1(neg_s32, "neg.s32 %0, %1;", U32, U32, 0u - a)
OP1(neg_s64, "neg.s64 %0, %1;", U64, U64, 0u - a)
OP2(max_s32, "max.s32 %0, %1, %2;", S32, S32, S32, a > b ? a : b)
OP2(max_u32, "max.u32 %0, %1, %2;", U32, U32, U32, a > b ? a : b)
OP2(min_u64, "min.u64 %0, %1, %2;", U64, U64, U64, a < b ? a : b)
OP2(max_u64, "max.u64 %0, %1, %2;", U64, U64, U64, a > b ? a : b)
OP2(mul_lo_s32, "mul.lo.s32 %0, %1, %2;", U32, U32, U32, a *b)
OP2(mul_lo_s64, "mul.lo.s64 %0, %1, %2;", U64, U64, U64, a *b)
OP2(mul_wide_u32, "mul.wide.u32 %0, %1, %2;", U64, U32, U32, (uint64_t)a *b)
OP2(mul_wide_s32, "mul.wide.s32 %0, %1, %2;", S64, S32, S32, (int64_t)a *b)
OP3(mad_lo_s32, "mad.lo.s32 %0, %1, %2, %3;", U32, U32, U32, U32, a *b + c)
OP2(div_u32, "{.reg .b32 t; or.b32 t, %2, 1; div.u32 %0, %1, t;}", U32, U32, U32, a / (b | 1))
OP2(rem_u32, "{.reg .b32 t; or.b32 t, %2, 1; rem.u32 %0, %1, t;}", U32, U32, U32, a % (b | 1))
OP2(div_u64, "{.reg .b64 t; or.b64 t, %2, 1; div.u64 %0, %1, t;}", U64, U64, U64, a / (b | 1))
OP2(rem_u64, "{.reg .b64 t; or.b64 t, %2, 1; rem.u64 %0, %1, t;}", U64, U64, U64, a % (b | 1))
OP2(and_b32, "and.b32 %0, %1, %2;", U32, U32, U32, a &b)
OP2(or_b64, "or.b64 %0, %1, %2;", U64, U64, U64, a | b)
OP2(xor_b16, "xor.b16 %0, %1, %2;", U16, U16, U16, a ^ b)
OP1(not_b32, "not.b32 %0, %1;", U32, U32, ~a)
OP1(not_b64, "not.b64 %0, %1;", U64, U64, ~a)
OP2(shl_b32, "shl.b32 %0, %1, %2;", U32, U32, U32, b > 31 ? 0 : a << b)
OP2(shl_b64, "shl.b64 %0, %1, %2;", U64, U64, U32, b > 63 ? 0 : a << b)
OP2(shr_u32, "shr.u32 %0, %1, %2;", U32, U32, U32, b > 31 ? 0 : a >> b)
OP2(shr_u64, "shr.u64 %0, %1, %2;", U64, U64, U32, b > 63 ? 0 : a >> b)
OP3(bfi_b64, "bfi.b64 %0, %1, %2, %3, 32;", U64, U64, U64, U32, ref_bfi(a, b, c, 32))
OP1(popc_b32, "popc.b32 %0, %1;", U32, U32, ref_popc(a))

/* ---- moves and conversions ---- */
OP1(mov_bits, "{.reg .f32 t; mov.b32 t, %1; mov.b32 %0, t;}", U32, U32, a)
OP1(mov_f64, "mov.f64 %0, %1;", U64_FROM_F64, F64, a)
OP1(cvt_s32_s8, "cvt.s32.s8 %0, %1;", S32, U32, (int8_t)a)
OP1(cvt_u32_u16, "cvt.u32.u16 %0, %1;", U32, U16, a)
OP1(cvt_u16_u32, "cvt.u16.u32 %0, %1;", U16, U32, a)
OP1(cvt_u64_u32, "cvt.u64.u32 %0, %1;", U64, U32, a)
OP1(cvt_s64_s32, "cvt.s64.s32 %0, %1;", S64, U32, (int32_t)a)
OP1(cvt_u32_u64, "cvt.u32.u64 %0, %1;", U32, U64, a)
OP1(cvt_f64_f32, "cvt.f64.f32 %0, %1;", F64, F32, a)
OP1(cvt_f32_f64, "cvt.rn.f32.f64 %0, %1;", F32, F64, (float)a)
OP1(cvt_f32_u32, "cvt.rn.f32.u32 %0, %1;", F32, U32, (float)a)
OP1(cvt_f32_u64, "cvt.rn.f32.u64 %0, %1;", F32, U64, (float)a)
OP1(cvt_f64_u64, "cvt.rn.f64.u64 %0, %1;", F64, U64, (double)a)
OP1(cvt_f32_f16, "cvt.f32.f16 %0, %1;", F32, U16, ref_from_f16(a))

/* ---- atomic updates of a word of one's own that holds b: expected is what it holds then ---- */
ATOM(atom_add_u32, U32, "atom.global.add.u32", a + b)
ATOM(atom_or_b32, U32, "atom.global.or.b32", a | b)
ATOM(atom_add_u64, U64, "atom.add.u64", a + b)
#undef SETP
#undef OP1
#undef OP2
#undef OP3
#undef ATOM
