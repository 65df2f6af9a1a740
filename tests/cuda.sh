#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cuda.sh - everything that can be said of the CUDA code without a GPU. From any directory: sh tests/cuda.sh [--cases N]
#
#   gate      ptxas and cuobjdump on the kernels: registers, spills, contractions (tests/cuda/gate)
#   plain     opcode table, the double's own tests, zf-conform exact --device cuda: N cases (default 60), and N/6 of each
#             with streams that share hardware queues, without stream memory operations, and with long delays
#   failures  calls of the driver that fail: an error each, no crash, no hang
#   asan, tsan  the double's own tests and N/6 cases under the sanitizers
#   faults    each of tests/cuda/faults/*.patch is built and caught
#   waits     each wait that the programs of plugin/offload enqueue is left out in turn, and that is caught
#
#   --only STAGE  one of them.   --seed S  of the cases (default 1).   ZF_JOBS=N  builds and cases side by side
#
# Needs nvcc with cuda.h, cmake, ninja and python3; exit status 77 without nvcc. The last line is the verdict; exit status 0
# only if every stage passed. What the double models, and its environment variables: tests/cuda/README.md.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2
cases=60
seed=1
only=
while [ $# -gt 0 ]; do
    case $1 in
    --cases) cases=$2 ;;
    --seed) seed=$2 ;;
    --only) only=$2 ;;
    *)
        sed -n '3,18p' "$0" >&2
        exit 2
        ;;
    esac
    shift 2
done
jobs=${ZF_JOBS:-$(nproc 2>/dev/null || echo 2)}
few=$((cases / 6 > 0 ? cases / 6 : 1))
failed=

command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ] || {
    echo "nvcc was not found: no CUDA code can be tested here"
    exit 77
}

say() { printf '== %s\n' "$*"; }
fails() {
    say "FAIL: $*"
    failed="$failed $1"
}
wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }

# build SOURCE FOLDER CMAKE-ARGUMENT...
build() {
    from=$1
    to=$2
    shift 2
    mkdir -p "$to"
    cmake -S "$from" -B "$to" -G Ninja -DZF_CUDA=ON ${ZF_CMAKE_ARGS:-} "$@" >"$to/cuda.log" 2>&1 &&
        cmake --build "$to" --parallel "$jobs" --target zfplugin zf-conform zf_double opcodes test_driver >>"$to/cuda.log" 2>&1
}

# conform FOLDER CASES [NAME=VALUE...]: zf-conform on the double; its output goes to FOLDER/conform.out
conform() {
    folder=$1
    n=$2
    shift 2
    env LD_LIBRARY_PATH="$root/$folder/tests/cuda/double" "$@" "$folder/conformance/zf-conform" exact \
        --plugin "$folder/plugin/libzfplugin.so.1" --device cuda --cases "$n" --seed "$seed" --jobs "$jobs" --deadline 300 \
        >"$folder/conform.out" 2>&1
    status=$?
    # What the double finds in a process that then ends in peace does not always show in its status.
    if [ $status -eq 0 ] && grep -qE '^(fakecuda|emulator): ' "$folder/conform.out"; then
        status=96
    fi
    return $status
}

# judge WHAT FOLDER CASES [NAME=VALUE...]
judge() {
    what=$1
    shift
    if conform "$@"; then
        say "$what: $(tail -n 1 "$1/conform.out")"
    else
        fails "${what%% *}" "$what"
        grep -vE '^  ' "$1/conform.out" | head -n 20
    fi
}

own_tests() { # NAME FOLDER
    if ctest --test-dir "$2" -R '^(cuda_|test_driver)' -LE "${3:-none}" --output-on-failure >"$2/own.out" 2>&1; then
        say "$1: $(grep 'tests passed' "$2/own.out")"
    else
        fails "$1" "the double's own tests"
        tail -n 40 "$2/own.out"
    fi
}

stage_gate() {
    python3 tests/cuda/gate/gate.py build/cuda/kernels/cuda/zfi.ptx tests/cuda/gate/table.txt || fails gate "see above"
}

stage_plain() {
    own_tests plain build/cuda
    judge plain build/cuda "$cases"
    judge "plain, two hardware queues" build/cuda "$few" CUDA_DEVICE_MAX_CONNECTIONS=2 FAKECUDA_SEED=2
    judge "plain, one hardware queue" build/cuda "$few" CUDA_DEVICE_MAX_CONNECTIONS=1 FAKECUDA_SEED=3
    judge "plain, no stream memory operations" build/cuda "$few" FAKECUDA_MEMOPS=0 FAKECUDA_SEED=4
    judge "plain, long delays" build/cuda "$few" FAKECUDA_DELAY_US=2000 FAKECUDA_SEED=6
}

# Functions that the plugin alone calls: zf-conform's own calls succeed. Any status of zf-conform is right but one of a
# crash (128 and more), of the double's findings, and of a case that hangs ("deadline").
stage_failures() {
    for fail in cuModuleLoadData:1 cuModuleGetFunction:2 cuEventCreate:1 cuEventCreate:40 cuStreamCreateWithPriority:1 \
        cuStreamCreateWithPriority:3 cuMemHostRegister:1 cuMemHostRegister:2 cuLaunchKernel:1 \
        cuLaunchKernel:30 cuEventRecord:5 cuStreamWaitEvent:5 cuStreamWaitValue64:1 cuStreamWriteValue64:20; do
        conform build/cuda 2 FAKECUDA_FAIL=$fail
        if grep -qE 'signal|deadline of|did not end|^emulator|leaks|illegal|^fakecuda: [0-9]* findings' build/cuda/conform.out; then
            fails failures "$fail"
            grep -vE '^  ' build/cuda/conform.out | cut -c1-300 | head -n 8
        else
            say "failures: $fail: $(grep -m 1 -oE '(create|bind|step|grads_ready|law [0-9]).{0,110}' build/cuda/conform.out)"
        fi
    done
    conform build/cuda 2 FAKECUDA_HOST_POINTER=0
    grep -q 'only at addresses of its own' build/cuda/conform.out || fails failures "registered memory at other addresses"
    for nbytes in 50000 100000 200000; do
        conform build/cuda 6 FAKECUDA_DEVICE_BYTES=$nbytes
        grep -q 'status -10: device memory for' build/cuda/conform.out && ! grep -q 'leaks' build/cuda/conform.out ||
            fails failures "$nbytes bytes of device memory"
    done
}

# stage_sanitized NAME SANITIZER
stage_sanitized() {
    build . build/cuda-$1 -DZF_SANITIZE=$2 -DCMAKE_BUILD_TYPE=Debug || {
        fails "$1" "the build failed: build/cuda-$1/cuda.log"
        return
    }
    own_tests "$1" build/cuda-$1 '^nosan$'
    judge "$1" build/cuda-$1 "$few"
}

# A fault that values do not show is looked for by the thread sanitizer as well. The copy of the tree keeps the times of its
# files, so that only what a patch touches is built again.
stage_faults() {
    src=build/cuda-faults/src
    rm -rf $src
    mkdir -p $src
    tar cf - --exclude=./build --exclude=./.git . | tar xf - -C $src
    for patch in tests/cuda/faults/*.patch; do
        name=$(basename "$patch" .patch)
        patch -d $src -p1 -s -F0 <"$patch" || {
            fails faults "$name does not apply"
            continue
        }
        caught=
        for way in plain tsan; do
            sanitize=
            [ $way = plain ] || sanitize=thread
            build $src build/cuda-faults/$way -DZF_SANITIZE=$sanitize || {
                fails faults "$name does not build: build/cuda-faults/$way/cuda.log"
                break
            }
            for cuda_seed in 1 2 3; do
                conform build/cuda-faults/$way 24 FAKECUDA_SEED=$cuda_seed FAKECUDA_DELAY_US=500 || {
                    caught=$way
                    break 2
                }
            done
        done
        if [ -n "$caught" ]; then
            say "faults: $name: caught ($caught): $(grep -m 1 -oE 'law [0-9]: .{0,90}|emulator: .{0,100}|fakecuda: .{0,100}|WARNING: ThreadSan.*' \
                build/cuda-faults/$caught/conform.out)"
        else
            fails faults "$name was not caught"
        fi
        patch -d $src -p1 -s -R <"$patch"
    done
}

# Every wait that plugin/offload enqueues, left out in turn.
stage_waits() {
    src=build/cuda-faults/src
    [ -d $src ] || {
        mkdir -p $src
        tar cf - --exclude=./build --exclude=./.git . | tar xf - -C $src
    }
    patch -d $src -p1 -s -F0 <tests/cuda/faults/each/waits.patch
    for way in plain tsan; do
        sanitize=
        [ $way = plain ] || sanitize=thread
        build $src build/cuda-faults/$way -DZF_SANITIZE=$sanitize || fails waits "does not build: build/cuda-faults/$way/cuda.log"
    done
    for place in $(cd plugin/offload && grep -n 'zfi_op_wait(' ./*.c | cut -d: -f1,2 | sed 's,^\./,,'); do
        caught=
        for way in plain tsan; do
            conform build/cuda-faults/$way 48 ZF_DROP_WAIT="$place" FAKECUDA_DELAY_US=1000 || {
                caught=$way
                break
            }
        done
        if [ -n "$caught" ]; then
            say "waits: $place: caught ($caught)"
        else
            fails waits "$place was not caught"
        fi
    done
    patch -d $src -p1 -s -R <tests/cuda/faults/each/waits.patch
}

# Where a report ends a process the case fails.
export ASAN_OPTIONS="detect_leaks=0:exitcode=99${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export TSAN_OPTIONS="halt_on_error=1:exitcode=99${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
build . build/cuda || {
    say "the build failed: build/cuda/cuda.log"
    tail -n 20 build/cuda/cuda.log
    exit 1
}
! wanted gate || stage_gate
! wanted plain || stage_plain
! wanted failures || stage_failures
! wanted asan || stage_sanitized asan address
! wanted tsan || stage_sanitized tsan thread
! wanted faults || stage_faults
! wanted waits || stage_waits
if [ -n "$failed" ]; then
    echo "FAIL:$failed"
    exit 1
fi
echo "PASS: the CUDA code on the test double"
