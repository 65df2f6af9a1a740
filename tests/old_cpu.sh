#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: tests/old_cpu.sh BUILD [--cases N]
# A build made on any x86-64 machine, run on an emulated CPU without AVX and FMA (Nehalem, 2008): an instruction that this CPU
# lacks ends the program. The kernel tests of dispatch and rows, then N random cases (default 2) of the laws, bit for bit.
# Exit status 77 without qemu-x86_64 (Debian package qemu-user), or on another processor.
set -u
build=${1:?usage: tests/old_cpu.sh BUILD [--cases N]}
cases=2
[ "${2:-}" != --cases ] || cases=$3
[ "$(uname -m)" = x86_64 ] || { echo "this processor is not an x86-64"; exit 77; }
command -v qemu-x86_64 >/dev/null || { echo "qemu-x86_64 is missing: apt-get install qemu-user"; exit 77; }
emulator="qemu-x86_64 -cpu Nehalem"
if ZF_EMULATOR=$emulator $emulator "$build/conformance/zf-conform" exact --plugin "$build/plugin/libzfplugin.so.0" --isa avx2 --cases 1 \
    >/dev/null 2>&1; then
    echo "the emulated CPU has AVX2: nothing is shown by this run"
    exit 1
fi
for test in dispatch rows; do
    $emulator "$build/tests/kernels/test_kernels_$test" || exit 1
done
said=$(ZF_EMULATOR=$emulator $emulator "$build/conformance/zf-conform" exact --plugin "$build/plugin/libzfplugin.so.0" \
    --jobs 2 --cases "$cases" 2>&1)
status=$?
printf '%s\n' "$said" | grep -v drew
exit $status
