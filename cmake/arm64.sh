#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# arm64.sh FOLDER [PACKAGE...] - what it takes to build for arm64 on another machine and to run the result in an emulator: Debian's
# libraries of arm64 in FOLDER/root, PACKAGEs among them, and FOLDER/toolchain.cmake for CMake.
#
# Needs Debian or Ubuntu with gcc-aarch64-linux-gnu, qemu-user, cmake, ninja-build and pkg-config; a network for the first run. The packages
# are fetched with apt-get and unpacked: nothing on the system changes, no root is needed. Run a program as
#   qemu-aarch64 -L FOLDER/root -E LD_LIBRARY_PATH=/usr/lib/aarch64-linux-gnu/openblas-pthread PROGRAM
# Exit status 77 where a tool is missing or the packages cannot be had.
set -u
[ $# -gt 0 ] || { sed -n '3,10p' "$0"; exit 2; }
mkdir -p "$1" && here=$(CDPATH='' cd -- "$1" && pwd) || exit 2
shift
for tool in aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user cmake:cmake ninja:ninja-build pkg-config:pkg-config \
    apt-get:apt dpkg-deb:dpkg; do
    command -v "${tool%%:*}" >/dev/null || { echo "${tool%%:*} is missing: apt-get install ${tool#*:}"; exit 77; }
done
sysroot=$here/root
libraries=/usr/lib/aarch64-linux-gnu
packages="libc6 libc6-dev libgcc-s1 linux-libc-dev libcrypt-dev libjansson4 libjansson-dev libinih1 libinih-dev check
    libsubunit0 libsubunit-dev libffi8 libffi-dev libopenblas0-pthread libopenblas-pthread-dev libgfortran5 libgomp1 $*"

# An apt of its own, for arm64, with the system's sources and keys.
foreign_apt() {
    apt-get -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$here/apt/state" \
        -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt/cache" -o APT::Sandbox::User=root \
        -o Acquire::Languages=none "$@"
}

if [ "$(cat "$sysroot/complete" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$here/apt" "$sysroot"
    mkdir -p "$here/apt/state/lists/partial" "$here/apt/cache/archives/partial" "$sysroot"
    : >"$here/apt/status"
    # shellcheck disable=SC2086
    { foreign_apt update && (cd "$here/apt" && foreign_apt download $packages); } >"$here/apt.log" 2>&1 || {
        tail -n 3 "$here/apt.log"
        echo "the libraries of arm64 could not be fetched"
        exit 77
    }
    for package in "$here"/apt/*.deb; do
        dpkg-deb -x "$package" "$sysroot" || exit 2
    done
    echo "$packages" >"$sysroot/complete"
fi
# Links from the root lead into FOLDER/root: where libm.so led nowhere, the linker took libm.a, whose cbrtl needs what is libc.a's own.
find "$sysroot" -type l -lname '/*' | while read -r link; do
    target=$(readlink "$link")
    case $target in "$sysroot"/*) ;; *) ln -sfn "$sysroot$target" "$link" ;; esac
done

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
