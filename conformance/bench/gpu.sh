#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gpu.sh - builds and runs the benchmarks of a GPU: the device's pass beside a copy, the link, and whole training steps.
#
# usage: conformance/bench/gpu.sh [--out DIR] [--small] [gpu_step.py's options]
#
#   --out DIR   the figures as JSON and as they were printed (default build/gpu/bench)
#   --small     an encoder of 0.1 billion parameters in place of 1.2
#
# Needs: Linux on x86-64, an NVIDIA GPU of compute capability 8.0 or newer with 16 GB free (--small: 4) and a driver of CUDA 12 or
# newer, nvcc, cmake, a C compiler, python3, cuBLAS (libcublas.so.12 or .13; without it products are zf-host's own, many times
# slower), and in host memory 24 bytes per parameter and more. PYTHON=... an interpreter with torch and deepspeed: these are run
# beside; without it they are left out.
set -eu
cd "$(dirname "$0")/../.."
out=build/gpu/bench
shape=
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=${2:?--out needs a folder} && shift 2 ;;
    --small) shape="--layers 12 --hidden 768 --heads 12" && shift ;;
    *) break ;;
    esac
done
for tool in nvidia-smi nvcc cmake python3; do
    command -v $tool >/dev/null || { echo "conformance/bench/gpu.sh: $tool was not found: see the head of this file"; exit 77; }
done
mkdir -p "$out"
cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DZF_CUDA=ON -DZF_TESTS=ON -DZF_BENCH=ON >"$out/configure.log"
cmake --build build/gpu --parallel --target zfplugin zf-host zf-bench-gpu >"$out/build.log"
peers=
[ -z "${PYTHON:-}" ] || peers="--peers $PYTHON"
nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader | tee "$out/gpu.txt"
build/gpu/conformance/bench/zf-bench-gpu --json "$out/pass.json" | tee "$out/pass.txt"
# shellcheck disable=SC2086 # lists of words
python3 conformance/bench/gpu_step.py build/gpu $shape $peers --pass "$out/pass.txt" --json "$out/step.json" "$@" | tee "$out/step.txt"
