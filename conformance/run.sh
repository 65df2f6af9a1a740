#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh - the conformance suite in one command. From any directory: sh conformance/run.sh [options]
#
#   --data DIR   official GLUE files (DIR/SST-2/train.tsv ... and vocab.txt); without: a generated corpus, said so
#   --full       more seeds and longer runs (about an hour on two cores)
#   --seeds N    seeds of each optimizer
#   --build-only stop after 2.
#   others       are passed on to zf-conform glue (zf-conform glue --help), but for --plugin and --out
#
# 1. conformance/deps.sh installs what is missing.   2. build/release is built, only what is needed.
# 3. zf-conform abi and a short exact, one line each.   4. zf-conform glue: the verdict, the table and the picture build/glue/glue.svg.
# Finished training runs are kept in build/glue and not repeated. Python is ZF_PYTHON, or a python3 with scipy and matplotlib.
# Exit status: that of glue (0 conforms, 1 does not, 2 could not run, 3 inconclusive); 1 if abi or exact fails.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2

is_build_only=0
for arg in "$@"; do
    case $arg in
    --build-only) is_build_only=1 ;;
    --help)
        sed -n '2,/^set -u/s/^# \{0,1\}//p' "$root/conformance/run.sh"
        exit 0
        ;;
    --plugin | --plugin=* | --out | --out=*)
        echo "run.sh: $arg is set by this script (build/release and build/glue); zf-conform glue takes another one" >&2
        exit 2
        ;;
    esac
done

sh "$root/conformance/deps.sh" || exit 2

jobs=${ZF_JOBS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
build=$root/build/release
log=$build/build.log
mkdir -p "$build"
echo "== building $build"
if ! { cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$log" 2>&1 &&
    cmake --build "$build" --parallel "$jobs" --target zfplugin zf-host zf-conform >>"$log" 2>&1; }; then
    tail -n 30 "$log"
    echo "run.sh: the build failed; all of it is in $log"
    exit 2
fi

[ "$is_build_only" -eq 0 ] || exit 0

conform=$build/conformance/zf-conform
plugin=$build/plugin/libzfplugin.so
ZF_PYTHON=$(sh "$root/conformance/python.sh")
export ZF_PYTHON
status=0

# preface NAME COMMAND...
# Runs a short area and prints its last line, or all of it when it fails.
preface() {
    name=$1
    shift
    out=$("$@" 2>&1)
    rc=$?
    if [ "$rc" -eq 0 ] || [ "$rc" -eq 77 ]; then
        echo "== $name: $(echo "$out" | grep -v '^ *$' | tail -n 1)"
    else
        echo "$out"
        echo "== $name: exit status $rc"
        status=1
    fi
}

preface abi "$conform" abi --plugin "$plugin"
preface exact "$conform" exact --plugin "$plugin" --cases 200

echo "== glue"
"$conform" glue --plugin "$plugin" --out "$root/build/glue" "$@"
rc=$?
[ "$status" -eq 0 ] || exit "$status"
exit "$rc"
