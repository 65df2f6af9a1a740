#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh - builds everything and runs every test. From any directory: sh tests/run.sh [--quick]
#
#   1. build/test   plain build (RelWithDebInfo, with lines and no variables: half the time of kernels), all tests but for those
#                   labelled "long" (rows of .ci/matrix). CUDA kernels are assembled for one architecture alone, since each takes
#                   long (the gate of tests/cuda.sh does it for all)
#   2. build/asan   address and undefined-behaviour sanitizers, the first build's CUDA kernels and double: tests not labelled
#                   "slow" or "nosan". clang's, with the fuzzers: a row of .ci/matrix
#   3. build/tsan   thread sanitizer, the same tests but for those labelled "serial", which are not about threads, beside those
#                   of 2. Without CUDA: tests/cuda.sh has this sanitizer of its double
#   4. build/tidy   clang-tidy (tests/tidy.sh), if it is there
#
# What 2. to 4. build, and 4. itself, is made at the lowest priority while the tests of 1. run: some of those wait for deadlines.
#
#   --quick         only 1.
#   ZF_JOBS=N       builds and tests side by side (default: the processors of this machine)
#   ZF_WERROR=ON    warnings are errors in 1. to 3. too (CI)
#   ZF_PYTHON       python3 with the packages of tests/requirements.txt. Without it tests/python_env.sh installs them into
#                   build/venv (ZF_PIP_ARGS: arguments of pip, e.g. another index); where that fails the Python tests skip
#   CI              if set: a Python environment that cannot be made, and a Python test that lacks a package, are failures,
#                   and so is a machine without clang-tidy
#   ZF_GLUE_DIR     folder with real GLUE data; tests that need it skip without
#
# Ends with the line "N passed, M failed, K skipped", summed over all runs; a build that fails counts as one failure. The
# output of each failed test and the reason of each skipped one stand before it. Exit status 0 only if nothing failed.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2

quick=0
for arg in "$@"; do
    case $arg in
    --quick) quick=1 ;;
    *)
        echo "usage: sh tests/run.sh [--quick]" >&2
        exit 2
        ;;
    esac
done

jobs=${ZF_JOBS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
werror=${ZF_WERROR:-OFF}
passed=0
failed=0
skipped=0

sh conformance/deps.sh --tests || {
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}

say() { printf '== %s\n' "$*"; }

# build NAME CMAKE-ARGUMENT...
# Configures and builds build/NAME, quietly unless it fails.
priority=
build() {
    name=$1
    shift
    log=build/$name/build.log
    started=$(date +%s)
    say "$name: building"
    mkdir -p "build/$name"
    # shellcheck disable=SC2086 # a list of words
    if $priority cmake -S . -B "build/$name" -G Ninja "$@" >"$log" 2>&1 &&
        $priority cmake --build "build/$name" --parallel "$jobs" -- -k 0 >>"$log" 2>&1; then
        warnings=$(grep -c 'warning:' "$log")
        say "$name: built in $(($(date +%s) - started)) s, $warnings warnings"
        [ "$warnings" -eq 0 ] || grep 'warning:' "$log" | head -n 20
        return 0
    fi
    grep -v -e '^\[[0-9]*/[0-9]*\] ' -e '^-- ' "$log" | head -n 80 # without the steps that went well
    say "$name: the build failed; all of it is in $log"
    return 1
}

# start_tests NAME SIDE-BY-SIDE CTEST-ARGUMENT...
# Runs the tests of build/NAME in the background. ctest writes one line per test as it ends, and the output of each that failed.
start_tests() {
    name=$1
    side_by_side=$2
    shift 2
    { ctest --test-dir "build/$name" -j "$side_by_side" --output-on-failure --no-tests=error "$@"; echo "status $?"; } \
        >"build/$name/ctest.out" 2>&1 &
    echo $! >"build/$name/ctest.pid"
}

# end_tests NAME
# Prints what the tests of start_tests() write, until they have ended, and adds to the counters. The reasons of skipped ones are
# taken from ctest's log.
end_tests() {
    name=$1
    out=build/$name/ctest.out
    say "$name: testing"
    tail -n +1 -f --pid="$(cat "build/$name/ctest.pid")" "$out" | grep -v '^status '
    status=$(sed -n 's/^status //p' "$out" | tail -n 1)
    # "  3/10 Test  #7: name ...........   Passed    0.01 sec", or ***Skipped, ***Failed, ***Timeout, ***Exception: ...
    line='^ *[0-9]*/[0-9]* Test *#[0-9]*: '
    n_passed=$(grep "$line" "$out" | grep -c '[. ] *Passed  *[0-9.]* sec')
    n_skipped=$(grep "$line" "$out" | grep -c '\*\*\*Skipped  *[0-9.]* sec')
    n_all=$(grep -c "$line" "$out")
    n_failed=$((n_all - n_passed - n_skipped))
    # Nothing may be lost: ctest itself failing without a failed test is a failure too.
    [ "$status" = 0 ] || [ "$n_failed" -gt 0 ] || n_failed=1
    passed=$((passed + n_passed))
    failed=$((failed + n_failed))
    skipped=$((skipped + n_skipped))
    [ "$n_skipped" -eq 0 ] || print_skip_reasons "$name"
}

# print_skip_reasons NAME
# The last line that each skipped test printed: ctest names them at the end, their output is in its log.
print_skip_reasons() {
    awk -v run="$1" '
        FNR == NR {
            if (/^\t *[0-9]+ - .* \(Skipped\)$/) {
                sub(/^\t *[0-9]+ - /, "")
                sub(/ \(Skipped\)$/, "")
                is_skipped[$0] = 1
            }
            next
        }
        /^[0-9]+\/[0-9]+ Test: / { test = $0; sub(/^[0-9]+\/[0-9]+ Test: /, "", test); reason = "it gave no reason" }
        /^Output:$/ { is_inside = 1; next }
        /^<end of output>$/ {
            is_inside = 0
            if (test in is_skipped)
                print "== " run ": skipped " test ": " reason
        }
        is_inside && /[^ \t-]/ { reason = $0 }
    ' "build/$1/ctest.out" "build/$1/Testing/Temporary/LastTest.log"
}

# later NAME COMMAND...: in the background, one after the other; what it prints and its status are for outcome().
later() {
    what=$1
    shift
    mkdir -p build/later
    "$@" >"build/later/$what.out" 2>&1
    echo $? >"build/later/$what.status"
}

# outcome NAME: waits for it, prints what it printed and returns its status.
outcome() {
    while [ ! -s "build/later/$1.status" ] && kill -0 "$later_pid" 2>/dev/null; do
        sleep 0.5
    done
    cat "build/later/$1.out"
    return "$(cat "build/later/$1.status" 2>/dev/null || echo 1)"
}

# start_later NAME CTEST-ARGUMENT...: the tests of what was built later, half as many side by side as there are processors and one,
# since another build's run beside them. Adds to $begun.
begun=
start_later() {
    outcome "$1" || { failed=$((failed + 1)); return; }
    begun="$begun $1"
    name=$1
    shift
    start_tests "$name" "$((jobs / 2 + 1))" "$@"
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

# start_python, finish_python
# Makes build/venv beside the first build, unless ZF_PYTHON names an interpreter, and sets ZF_PYTHON. Where that fails the
# tests that need it skip, and with CI set it counts as a failure.
start_python() {
    python_pid=
    [ -z "${ZF_PYTHON:-}" ] || return
    sh tests/python_env.sh "$root/build/venv" &
    python_pid=$!
}

finish_python() {
    [ -n "$python_pid" ] || return
    if wait "$python_pid"; then
        ZF_PYTHON=$root/build/venv/bin/python
        export ZF_PYTHON
        return
    fi
    if [ -n "${CI:-}" ]; then
        failed=$((failed + 1))
        say "python: no environment for the tests, which is a failure where CI is set"
    else
        say "python: no environment for the tests; those that need a package skip"
    fi
}

# count STATUS: of a script that is one test
count() {
    case $1 in
    0) passed=$((passed + 1)) ;;
    77) if [ -n "${CI:-}" ]; then failed=$((failed + 1)); else skipped=$((skipped + 1)); fi ;;
    *) failed=$((failed + 1)) ;;
    esac
}

# Sanitizers: stop at the first report, with a status that no test uses by itself.
sanitizers() {
    ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1:exitcode=99${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
    UBSAN_OPTIONS="print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
    TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:exitcode=99:suppressions='$root/tests/tsan.supp'${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
    export ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
}

# The other builds and clang-tidy. -O1 compiles as fast as -O0, and what is built runs faster; gold links in half the time.
build_later() {
    sanitizers
    priority="nice -n 19"
    set -- -DZF_WERROR="$werror" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=
    ! command -v ld.gold >/dev/null || set -- "$@" -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=gold -DCMAKE_SHARED_LINKER_FLAGS=-fuse-ld=gold
    later asan build asan "$@" -DZF_SANITIZE=address -DZF_CUDA_ARCHITECTURES= -DZF_CUDA_DOUBLE="$root/build/test/tests/cuda"
    later tsan build tsan "$@" -DZF_SANITIZE=thread -DZF_CUDA=OFF -DZF_BENCH=ON
    later tidy nice -n 19 sh tests/tidy.sh
}

# Python keeps what it has compiled, here, whatever this machine's settings say: importing torch and transformers takes half as long.
PYTHONDONTWRITEBYTECODE= # empty, so that zf-conform leaves it alone
PYTHONPYCACHEPREFIX=$root/build/pycache
export PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX

start_python
is_built=0
build test -DZF_WERROR="$werror" -DZF_CUDA_ARCHITECTURES=90a "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" && is_built=1
if [ "$quick" -eq 0 ]; then
    rm -rf build/later
    build_later &
    later_pid=$!
fi
finish_python
if [ "$is_built" -eq 1 ]; then
    # One more than there are processors, since some wait for deadlines.
    start_tests test "$((jobs + 1))" -LE '^long$'
    end_tests test
else
    failed=$((failed + 1))
fi
[ "$quick" -eq 0 ] || finish

sanitizers
start_later asan -LE '^(slow|nosan)$'
start_later tsan -LE '^(slow|nosan|serial)$'
for name in $begun; do
    end_tests "$name"
done
outcome tidy
count $?
finish
