/* SPDX-License-Identifier: Apache-2.0 */
/* step.cu - a step's norm, its scalars, its report; and the gate that says whether the instance has ended. */
#include "common.cuh"

/* ---- norm -------------------------------------------------------------------------------------------------------- */

DEVICE double from_lane(double x, int lane) {
    uint32_t low = (uint32_t)__double_as_longlong(x), high = (uint32_t)(__double_as_longlong(x) >> 32);
    low = __shfl_sync(0xffffffffu, low, lane);
    high = __shfl_sync(0xffffffffu, high, lane);
    return __longlong_as_double((long long)((uint64_t)high << 32 | low));
}

/* Units of each parameter of a batch, behind its statistics, while backward goes on: a warp per parameter, a thread per
 * lane of the stated order. */
KERNEL(zf_norm_params, zfi_cuda_statistics_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t entry = (blockIdx.x * THREADS + threadIdx.x) / 32; entry < args.n;
         entry += gridDim.x * THREADS / 32) {
        const uint32_t i = args.list[entry].param;
        const uint64_t n = in_global(data->params)[i].n_units;
        const uint32_t first_matrix = in_global(data->params)[i].first_matrix;
        const double *units =
            in_global(data->unit_squares) + (n ? in_global(data->matrices)[first_matrix].unit_base : 0);
        double sum = 0.0;
        bool is_bad = false;
#pragma unroll 4
        for (uint64_t u = lane; u < n; u += ZFI_UNIT_LANES) {
            const double unit = in_global(units)[u];
            is_bad = is_bad || !is_finite(unit);
            sum = __dadd_rn(sum, unit);
        }
#pragma unroll
        for (int off = ZFI_UNIT_LANES / 2; off > 0; off /= 2)
            sum = __dadd_rn(sum, from_partner(sum, off));
        is_bad = __ballot_sync(0xffffffffu, is_bad) != 0;
        if (lane == 0) {
            data->sum_squares[i] = sum;
            data->has_nonfinite[i] = is_bad;
        }
    }
}

/* One warp: the parameters by id, 32 of them loaded at once and added one by one. */
KERNEL(zf_norm_part, zfi_norm_part_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    double sum = 0.0;
    int64_t nonfinite = ZFI_NO_PARAM;
    for (uint32_t first = 0; first < data->n_params; first += 32) {
        const uint32_t i = first + threadIdx.x;
        const bool is_there = i < data->n_params && in_global(args.step.present)[i];
        const double mine =
            is_there && in_global(data->params)[i].counts_in_norm ? in_global(data->sum_squares)[i] : 0.0;
        const uint32_t bad = __ballot_sync(0xffffffffu, is_there && in_global(data->has_nonfinite)[i]);
        if (bad && nonfinite == ZFI_NO_PARAM)
            nonfinite = first + lowest_of(bad);
#pragma unroll
        for (int l = 0; l < 32; l++)
            sum = __dadd_rn(sum, from_lane(mine, l));
    }
    if (threadIdx.x == 0) {
        args.out->sum_squares = sum;
        args.out->nonfinite_param = nonfinite;
    }
}

/* ---- scalars ----------------------------------------------------------------------------------------------------- */

KERNEL(zf_scalars, zfi_scalars_args_t) {
    RETURN_IF_ENDED;
    double sum = 0.0, norm, clip_factor = 1.0, s;
    int64_t nonfinite = ZFI_NO_PARAM;
    for (uint32_t i = 0; i < args.n_parts; i++) {
        int64_t bad = args.parts[i].nonfinite_param;
        sum = __dadd_rn(sum, args.parts[i].sum_squares);
        if (bad != ZFI_NO_PARAM && (nonfinite == ZFI_NO_PARAM || bad < nonfinite))
            nonfinite = bad;
    }
    norm = args.host_norm ? *args.host_norm : __dmul_rn(args.unscale, __dsqrt_rn(sum));
    if (args.clip_norm > 0) {
        double factor = __ddiv_rn(args.clip_norm, __dadd_rn(norm, 1e-6));
        clip_factor = factor < 1.0 ? factor : 1.0;
    }
    s = __dmul_rn(args.unscale, clip_factor);
    args.out->norm = norm;
    args.out->clip_factor = clip_factor;
    args.out->s_exact = s;
    args.out->s = __double2float_rn(s);
    args.out->nonfinite_param = nonfinite;
    args.out->applied = nonfinite == ZFI_NO_PARAM && is_finite(norm) && norm >= 0 && is_finite(__double2float_rn(s));
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

/* One block. The device is the only writer of totals. */
KERNEL(zf_report, zfi_report_args_t) {
    RETURN_IF_ENDED;
    volatile zfi_totals_t *totals = args.data->totals;
    if (threadIdx.x)
        return;
    if (args.scalars->applied)
        totals->n_applied = totals->n_applied + 1;
    else
        totals->n_skipped = totals->n_skipped + 1;
    *args.out = *args.scalars;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Behind every wait for the host: a timeline that is this far was poisoned. */
extern "C" __global__ void zf_gate(const zfi_cuda_gate_t args) {
    if (*(const volatile uint64_t *)args.word >= 1ull << 61)
        *args.has_ended = 1;
}
