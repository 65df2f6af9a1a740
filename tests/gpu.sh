#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: tests/gpu.sh [--cases N] [--out DIR]
# The first ten minutes on a real GPU: builds for the GPU at hand, every instruction form and the driver's behaviour that the
# test double models, the laws bit for bit (also without stream memory operations, and with one hardware queue), then the
# device pass against a copy of device memory and the link. One table at the end; everything else goes to DIR.
#
# Needs: Linux on x86-64, an NVIDIA GPU of compute capability 8.0 or newer with a driver at least as new as nvcc, cmake, ninja
# (or make), a C compiler, and the packages of README.md's tests (libinih-dev libjansson-dev check libffi-dev libopenblas-dev).
# cuBLAS (libcublas.so.12 or .13) for the reference host; python3 for its curves. Training steps are measured by
# conformance/bench/gpu.sh.
set -u
cases=400
out=build/gpu/results
while [ $# -gt 1 ]; do
    case $1 in
    --cases) cases=$2 ;;
    --out) out=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ $# -eq 0 ] || { sed -n '3,11p' "$0"; exit 2; }
cd "$(dirname "$0")/.." || exit 2
for tool in nvidia-smi nvcc cmake; do
    command -v $tool >/dev/null || { echo "tests/gpu.sh: $tool was not found: see the head of this file"; exit 77; }
done
mkdir -p "$out"
generator=
command -v ninja >/dev/null && generator="-G Ninja"
# shellcheck disable=SC2086
cmake -S . -B build/gpu $generator -DZF_CUDA=ON -DZF_TESTS=ON -DZF_BENCH=ON >"$out/configure.log" 2>&1 &&
    cmake --build build/gpu --parallel --target zfplugin zf-conform zf-host zf-bench-gpu opcodes test_driver_real test_cuda_host >"$out/build.log" 2>&1 || {
    tail -20 "$out/configure.log" "$out/build.log"
    echo "tests/gpu.sh: the build failed"
    exit 2
}
plugin=$PWD/build/gpu/plugin/libzfplugin.so.1
conform=build/gpu/conformance/zf-conform
failed=0
: >"$out/table.txt"
row() { # name status detail
    printf '%-44s %-5s %s\n' "$1" "$2" "$3" | tee -a "$out/table.txt"
}
check() { # name log command...
    name=$1 log=$out/$2
    shift 2
    if "$@" >"$log" 2>&1; then
        row "$name" PASS "$(tail -n 1 "$log")"
    else
        row "$name" FAIL "$(tail -n 1 "$log")"
        failed=1
    fi
}
nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader | tee "$out/gpu.txt"
check "instruction forms against plain C" opcodes.txt build/gpu/tests/cuda/opcodes build/gpu/tests/cuda/opcodes.ptx
check "the driver as the double models it" driver.txt env ZT_PTX=build/gpu/tests/cuda/driver.ptx build/gpu/tests/cuda/test_driver_real
check "laws, bit for bit" exact.txt $conform exact --plugin "$plugin" --device cuda --cases "$cases" --json "$out/exact.json"
check "laws without stream memory operations" exact-fallback.txt \
    env ZF_CUDA_MEMOPS=0 $conform exact --plugin "$plugin" --device cuda --cases 64 --seed 2
check "laws with one hardware queue" exact-one-queue.txt \
    env CUDA_DEVICE_MAX_CONNECTIONS=1 $conform exact --plugin "$plugin" --device cuda --cases 64 --seed 3
check "the reference host's layers beside the processor's" host.txt build/gpu/tests/cuda/test_cuda_host
check "its curves, by AdamW and through the plugin" curves.txt env ZF_GLUE_ON_GPU=1 sh tests/cuda/host/glue.sh build/gpu
check "GLUE parity (generated corpus, 4 seeds)" glue.txt $conform glue --plugin "$plugin" --device cuda --seeds 4 --sync-seeds 1 \
    --out "$out/glue"
if build/gpu/conformance/bench/zf-bench-gpu --json "$out/pass.json" >"$out/pass.txt" 2>&1; then
    cat "$out/pass.txt" | tee -a "$out/table.txt"
else
    row "device pass and link" FAIL "$(tail -n 1 "$out/pass.txt")"
    failed=1
fi
exit $failed
