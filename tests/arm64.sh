#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: tests/arm64.sh [--cases N]
# Builds the plugin, the kernel tests and zf-conform for arm64 and runs them in an emulator: every kernel of NEON and of the
# generic table against the reference, then N random cases (default 40) of the laws, bit for bit. Not part of CI: on two cores
# it takes about five minutes.
#
# Needs: Debian or Ubuntu with gcc-aarch64-linux-gnu, qemu-user, cmake, ninja-build and pkg-config; a network for the first run. The libraries
# of arm64 are fetched with apt-get into build/arm64 and unpacked there: nothing on the system changes, no root is needed. Exit
# status 77 where a tool is missing or the packages cannot be had.
set -u
cases=40
[ "${1:-}" != --cases ] || { cases=$2; shift 2; }
[ $# -eq 0 ] || { sed -n '3,10p' "$0"; exit 2; }
cd "$(dirname "$0")/.." || exit 2
for tool in aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user cmake:cmake ninja:ninja-build pkg-config:pkg-config \
    apt-get:apt dpkg-deb:dpkg; do
    command -v "${tool%%:*}" >/dev/null || { echo "tests/arm64.sh: ${tool%%:*} is missing: apt-get install ${tool#*:}"; exit 77; }
done
here=$PWD/build/arm64
sysroot=$here/root
libraries=/usr/lib/aarch64-linux-gnu
packages="libc6 libc6-dev libgcc-s1 linux-libc-dev libcrypt-dev libjansson4 libjansson-dev libinih1 libinih-dev check
    libsubunit0 libsubunit-dev libffi8 libffi-dev libopenblas0-pthread libopenblas-pthread-dev libgfortran5 libgomp1"

# An apt of its own, for arm64, with the system's sources and keys.
foreign_apt() {
    apt-get -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$here/apt/state" \
        -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt/cache" -o APT::Sandbox::User=root \
        -o Acquire::Languages=none "$@"
}

if [ ! -e "$sysroot/complete" ]; then
    mkdir -p "$here/apt/state/lists/partial" "$here/apt/cache/archives/partial" "$sysroot"
    : >"$here/apt/status"
    # shellcheck disable=SC2086
    { foreign_apt update && (cd "$here/apt" && foreign_apt download $packages); } >"$here/apt.log" 2>&1 || {
        tail -n 3 "$here/apt.log"
        echo "tests/arm64.sh: the libraries of arm64 could not be fetched"
        exit 77
    }
    for package in "$here"/apt/*.deb; do
        dpkg-deb -x "$package" "$sysroot" || exit 2
    done
    touch "$sysroot/complete"
fi

cat >"$here/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_SYSROOT $sysroot)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} $sysroot$libraries/pkgconfig:$sysroot$libraries/openblas-pthread/pkgconfig:$sysroot/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $sysroot)
END
tests="baseline replay rules moments rows stats channels dispatch launch launch_moves launch_update"
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
for test in $tests; do
    # shellcheck disable=SC2086
    $emulator "$here/build/tests/kernels/test_kernels_$test" >"$here/test.log" 2>&1 || { failed=1; cat "$here/test.log"; }
    printf '%-14s %s\n' "$test" "$(grep % "$here/test.log")"
done
# shellcheck disable=SC2086
ZF_EMULATOR=$emulator $emulator "$here/build/conformance/zf-conform" exact --plugin "$here/build/plugin/libzfplugin.so.1" \
    --cases "$cases" >"$here/exact.log" 2>&1 || { failed=1; head -n 40 "$here/exact.log"; }
tail -n 1 "$here/exact.log"
exit $failed
