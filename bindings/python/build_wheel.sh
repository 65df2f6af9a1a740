#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build_wheel.sh - one wheel with libzfplugin.so inside: zfplugin-VERSION-py3-none-linux_x86_64.whl
#
#   sh bindings/python/build_wheel.sh [DIRECTORY]      default: bindings/python/dist
#
# Needs python3 with pip, a C compiler, CMake and the libraries of conformance/deps.sh. Where setuptools is installed nothing is
# downloaded; else pip fetches it for the build. ZFPLUGIN_LIBRARY names a library that is already built. The last line
# printed is the wheel's path.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
out=${1:-$here/dist}
python=${ZF_PYTHON:-python3}
mkdir -p "$out"

isolation=
if "$python" -c 'import setuptools; assert int(setuptools.__version__.split(".")[0]) >= 70' 2>/dev/null; then
    isolation=--no-build-isolation
fi

# In a copy: setuptools leaves its folders beside the sources.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/python"
(cd "$here" && tar -cf - --exclude=build --exclude=dist --exclude='*.egg-info' --exclude=__pycache__ --exclude=zfplugin/lib .) |
    tar -C "$work/python" -xf -
# shellcheck disable=SC2086 # one option or none
if ! ZF_SOURCE_DIR=$root "$python" -m pip wheel --no-deps $isolation --wheel-dir "$out" "$work/python" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
ls -t "$out"/zfplugin-*.whl | head -n 1
