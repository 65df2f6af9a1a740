#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh - the conformance suite in one command. From any directory: sh conformance/run.sh [options]
#
#   --plugin FILE  judge this library (of a wheel, a package, another vendor), not the one of this tree
#   --profile NAME core, near or schedule (zf-conform judge --help)
#   --data DIR   official GLUE files (DIR/SST-2/train.tsv ... and vocab.txt); without: a generated corpus, said so
#   --full       more seeds and longer runs (about an hour on two cores)
#   --seeds N    seeds of each optimizer
#   --build-only stop after 2.
#   others       are passed on to zf-conform glue (zf-conform glue --help), but for --out
#
# 1. conformance/deps.sh installs what is missing.   2. build/release is built, only what is needed.
# 3. zf-conform judge: which file, which machine, one line for each area, the table of a task that is trained, what was not judged, one word.
# Finished training runs are kept in build/glue and not repeated. Python is ZF_PYTHON, or a python3 with scipy and matplotlib.
# Exit status: that of judge (0 conforms, 1 does not, 2 could not run all, 3 inconclusive).
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2

is_build_only=0 plugin='' profile='' n=$#
while [ "$n" -gt 0 ]; do # what is not this script's stays, in its order
    word=$1
    shift
    n=$((n - 1))
    case $word in
    --build-only) is_build_only=1 ;;
    --help)
        sed -n '2,/^set -u/s/^# \{0,1\}//p' "$root/conformance/run.sh"
        exit 0
        ;;
    --plugin | --profile)
        [ "$n" -gt 0 ] || { echo "run.sh: $word: nothing follows" >&2 && exit 2; }
        [ "$word" = --plugin ] && plugin=$1 || profile=$1
        shift
        n=$((n - 1))
        ;;
    --out | --out=*)
        echo "run.sh: $word is set by this script (build/glue); zf-conform judge -- --out DIR takes another one" >&2
        exit 2
        ;;
    *) set -- "$@" "$word" ;;
    esac
done

sh "$root/conformance/deps.sh" || exit 2

jobs=${ZF_JOBS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
build=$root/build/release
log=$build/build.log
own=zfplugin
[ -z "$plugin" ] || own=''
mkdir -p "$build"
echo "== building $build"
if ! { cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$log" 2>&1 &&
    cmake --build "$build" --parallel "$jobs" --target $own zf-host zf-conform >>"$log" 2>&1; }; then
    tail -n 30 "$log"
    echo "run.sh: the build failed; all of it is in $log"
    exit 2
fi

[ "$is_build_only" -eq 0 ] || exit 0

ZF_PYTHON=$(sh "$root/conformance/python.sh")
export ZF_PYTHON
exec "$build/conformance/zf-conform" judge --plugin "${plugin:-$build/plugin/libzfplugin.so}" ${profile:+--profile "$profile"} -- \
    --out "$root/build/glue" "$@"
