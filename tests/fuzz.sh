#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh - builds the fuzzers of tests/fuzz in build/fuzz and runs them, one after another, from their corpora.
#
#   sh tests/fuzz.sh [--build DIR] [--seconds N | --runs N] [NAME...]
#
#   --build DIR   they are built there already (ZF_FUZZ=ON): no build of their own
#   --seconds N   each so long (default 60)
#   --runs N      each over N inputs instead; one of hooks or checkpoint trains an instance, and costs as much as 30 to 50 of the others
#   NAME...       these only: config checkpoint hooks safetensors
#
# New inputs that reach new code go to corpus/ of that build, never into the source. What a fuzzer finds lies in its found/, with
# the command that repeats it. Exit status: 0 nothing found, 1 found, 77 clang or libFuzzer is missing (the last line names it).
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2

limit=max_total_time=60
build=build/fuzz
is_built=0
names=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=${2:?}; is_built=1; shift ;;
    --seconds) limit=max_total_time=${2:?}; shift ;;
    --runs) limit=runs=${2:?}; shift ;;
    config | checkpoint | hooks | safetensors) names="$names $1" ;;
    *)
        echo "usage: sh tests/fuzz.sh [--build DIR] [--seconds N | --runs N] [config|checkpoint|hooks|safetensors...]" >&2
        exit 2
        ;;
    esac
    shift
done
names=${names:-config checkpoint hooks safetensors}

# find_clang - with libFuzzer; 77: what is missing
find_clang() {
    clang=$(command -v clang || command -v clang-14) || {
        echo "fuzz: clang is missing: Debian packages clang and libclang-rt-14-dev"
        return 77
    }
    mkdir -p "$build"
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }' >"$build/probe.c"
    "$clang" -fsanitize=fuzzer,address,undefined "$build/probe.c" -o "$build/probe" 2>/dev/null || {
        echo "fuzz: libFuzzer is missing: Debian package libclang-rt-14-dev"
        return 77
    }
}

build_fuzzers() {
    find_clang || return
    if ! cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER="$clang" -DZF_FUZZ=ON -DCMAKE_BUILD_TYPE=Debug \
        ${ZF_WERROR:+-DZF_WERROR=$ZF_WERROR} ${ZF_LAUNCHER:+-DCMAKE_C_COMPILER_LAUNCHER=$ZF_LAUNCHER} >"$build/build.log" 2>&1 ||
        ! cmake --build "$build" --target fuzzers --parallel "${ZF_JOBS:-2}" >>"$build/build.log" 2>&1; then
        tail -n 40 "$build/build.log"
        echo "fuzz: the build failed; all of it is in $build/build.log"
        return 1
    fi
}
[ "$is_built" -eq 1 ] || build_fuzzers || exit
mkdir -p "$build/found"

# fuzz NAME: prints one line; the whole log is NAME.log in $build
fuzz() {
    corpus=$build/corpus/$1
    log=$build/$1.log
    mkdir -p "$corpus"
    dict=
    [ ! -f "tests/fuzz/$1.dict" ] || dict=-dict=tests/fuzz/$1.dict
    most=4096
    [ "$1" != checkpoint ] || most=65536
    # shellcheck disable=SC2086 # a list of words
    if "$build/tests/fuzz/fuzz_$1" "-$limit" $dict -max_len=$most -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/found/$1-" "$corpus" "$build/tests/fuzz/corpus/$1" >"$log" 2>&1; then
        echo "fuzz: $1: nothing in $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs ($(sed -n 's/^#[0-9]*.*DONE *//p' "$log" | sed 's/ lim:.*//'))"
        return 0
    fi
    grep -e 'ERROR:' -e 'runtime error' -e 'fuzz.*: .*: ' -e 'Test unit written' -e '    #[0-9] ' "$log" | head -n 30
    echo "fuzz: $1: FOUND; repeat: $build/tests/fuzz/fuzz_$1 $(ls -t "$build/found/$1-"* 2>/dev/null | head -n 1)"
    return 1
}

ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export ASAN_OPTIONS UBSAN_OPTIONS
status=0
for name in $names; do
    fuzz "$name" || status=1
done
exit $status
