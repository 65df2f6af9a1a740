#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: tests/arm64.sh [--cases N]
# Builds the plugin, the kernel tests and zf-conform for arm64 and runs them in an emulator: every kernel of NEON and of the
# generic table against the reference, then N random cases (default 40) of the laws, bit for bit. Not part of CI: on two cores
# it takes about five minutes.
#
# cmake/arm64.sh says what this needs and fetches the libraries of arm64, into build/arm64. Exit status 77 where a tool is missing or the
# packages cannot be had.
set -u
cases=40
[ "${1:-}" != --cases ] || { cases=$2; shift 2; }
[ $# -eq 0 ] || { sed -n '3,8p' "$0"; exit 2; }
cd "$(dirname "$0")/.." || exit 2
here=$PWD/build/arm64
sh cmake/arm64.sh "$here" || exit
sysroot=$here/root
libraries=/usr/lib/aarch64-linux-gnu
tests="baseline replay moments rows stats channels dispatch"
targets=
for test in $tests; do
    targets="$targets test_kernels_$test"
done
# shellcheck disable=SC2086
cmake -S . -B "$here/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$here/toolchain.cmake" -DZF_CUDA=OFF -DZF_WERROR=ON >"$here/configure.log" 2>&1 &&
    cmake --build "$here/build" --parallel --target zfplugin zf-conform $targets >"$here/build.log" 2>&1 || {
    tail -n 20 "$here/configure.log" "$here/build.log"
    echo "tests/arm64.sh: the build failed"
    exit 2
}
emulator="qemu-aarch64 -L $sysroot -E LD_LIBRARY_PATH=$libraries/openblas-pthread"
failed=0
python3 tests/abi/versions.py . "$sysroot" || failed=1
for test in $tests; do
    # shellcheck disable=SC2086
    $emulator "$here/build/tests/kernels/test_kernels_$test" >"$here/test.log" 2>&1 || { failed=1; cat "$here/test.log"; }
    printf '%-14s %s\n' "$test" "$(grep % "$here/test.log")"
done
# shellcheck disable=SC2086
ZF_EMULATOR=$emulator $emulator "$here/build/conformance/zf-conform" exact --plugin "$here/build/plugin/libzfplugin.so.0" \
    --cases "$cases" >"$here/exact.log" 2>&1 || { failed=1; head -n 40 "$here/exact.log"; }
tail -n 1 "$here/exact.log"
exit $failed
