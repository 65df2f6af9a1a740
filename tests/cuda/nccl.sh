#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nccl.sh - several ranks over NCCL's double, each on a double of the driver: sh tests/cuda/nccl.sh [--short] [--only WHAT] [--cases N] [--seed S] [--limit S] [BUILD]
#
#   1. zf-conform shard --device cuda --transport nccl on two and three ranks, stages 0 to 3, and with process groups, in two
#      levels, and with sums by NCCL (the shares that ranks deliver have exact sums): law 4 bit for bit, and bytes
#   2. a rank that comes late, dies, whose NCCL fails, that sends too little or never connects: every rank says so in time
#   3. what cannot begin: no library, an old one, shared hardware queues: an error on every rank that names the first one
#
#   --only conforms | faults   1, or 2 and 3.   BUILD   a build with MPI and nvcc (default build/cuda)
#   --limit   seconds that one run may take (default 120); under a sanitizer more
#   --short   fewer cases; of faults that look alike to the other ranks, and of what cannot begin, one
#
# Exit status 77 where MPI is missing; 0 only if all of it passed.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd) || exit 2
build=$root/build/cuda
cases=4
seed=8 # small cases with many exchanges
only=
short=0
limit=120
while [ $# -gt 0 ]; do
    case $1 in
    --short) short=1 cases=1 ;;
    --only) only=$2 && shift ;;
    --cases) cases=$2 && shift ;;
    --seed) seed=$2 && shift ;;
    --limit) limit=$2 && shift ;;
    --*)
        sed -n '3,14p' "$0" >&2
        exit 2
        ;;
    *) build=$(CDPATH='' cd -- "$1" && pwd) || exit 2 ;;
    esac
    shift
done
mpi=$build/bindings/mpi/libzf_mpi.so
double=$build/tests/cuda/double
if ! command -v mpirun >/dev/null 2>&1 || [ ! -e "$mpi" ]; then
    echo "nccl: MPI is missing: install libopenmpi-dev openmpi-bin, then build again"
    [ -z "${CI:-}" ] || exit 1
    exit 77
fi
out=$(mktemp "${TMPDIR:-/tmp}/zf-nccl.XXXXXX") || exit 2
without=$(mktemp -d "${TMPDIR:-/tmp}/zf-nccl.XXXXXX") || exit 2
trap 'rm -rf "$out" "$without"' EXIT
ln -s "$double/libcuda.so.1" "$without/libcuda.so.1"
# MPI is not built for the thread sanitizer, which would report its locks and copies.
export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}ignore_noninstrumented_modules=1"
failed=0
fail() {
    echo "FAIL: $1: $(grep -vE '^--|^ *config' "$out" | cut -c 1-400 | head -n 8)"
    failed=1
}

transport=nccl
# ranks N [NAME=VALUE...] -- ARGUMENT... - zf-conform shard on N ranks, output in $out. recovery=--enable-recovery: a rank that dies
# does not end the others.
recovery=
ranks() {
    n=$1
    vars=
    shift
    while [ "$1" != -- ]; do
        vars="$vars $1"
        shift
    done
    shift
    # shellcheck disable=SC2086 # words
    env LD_LIBRARY_PATH="$double" $vars timeout -k 5 "$limit" mpirun --allow-run-as-root --oversubscribe $recovery \
        --mca btl self,vader,tcp --mca btl_tcp_if_include lo --mca btl_vader_single_copy_mechanism none -n "$n" \
        "$build/conformance/zf-conform" shard --plugin "$build/plugin/libzfplugin.so.0" --mpi "$mpi" --device cuda \
        --transport "$transport" "$@" >"$out" 2>&1
}

# conforms N "WHAT" CASES [NAME=VALUE...] - WHAT: --stage S, or --groups: models side by side, experts, each group with communicators of its own
conforms() {
    p=$1
    drawn=$2
    k=$3
    shift 3
    case $drawn in *--seed*) ;; *) drawn="$drawn --seed $seed" ;; esac
    # shellcheck disable=SC2086 # words
    ranks "$p" "$@" -- $drawn --cases "$k"
    if grep -q "^law 4: $p rank(s), $k cases, .* conforms$" "$out" && ! grep -qE '^fakecuda: ' "$out"; then
        echo "$drawn$(printf ' %s' "$@"): $(grep '^law 4' "$out")"
    else
        fail "$p ranks, $drawn $*"
    fi
}

# says WHAT RANKS TEXT [NAME=VALUE...] - each of those ranks ends with an error that has TEXT
says() {
    recovery=--enable-recovery # the first that ends with an error would end the others before they say theirs
    what=$1
    who=$2
    text=$3
    shift 3
    ranks 3 "$@" -- --cases 1 --only 2 --seed 7 --stage 1 --deadline-ms 8000
    recovery=
    and_says "$what" "$who" "$text"
}

# and_says WHAT RANKS TEXT - the same of the run before
and_says() {
    for r in $2; do
        grep -q "^rank $r of 3: .*$3" "$out" || {
            fail "$1: rank $r does not say \"$3\""
            return
        }
    done
    echo "$1: $(grep -o "^rank [0-9] of 3: .*$3.*" "$out" | head -n 1 | cut -c 1-260)"
}

# noticed FAULT TEXT [STAGE [SEED]] - what rank 1 does wrong of itself: every other one ends with an error that has TEXT
noticed() {
    ranks 3 -- --fault "$1" --stage "${3:-1}" --seed "${4:-1}" --deadline-ms 5000
    for r in 0 2; do
        grep -q "^rank $r noticed after [0-9]* s: .*$2" "$out" || {
            fail "$1: rank $r does not say \"$2\""
            return
        }
    done
    echo "$1: $(grep '^rank 0' "$out" | cut -c 1-260)"
}

if [ "$only" != faults ]; then
    for stage in 0 1 2 3; do
        [ $short -eq 1 ] && [ $stage -ne 3 ] || conforms 2 "--stage $stage" "$cases"
        [ $short -eq 1 ] || conforms 3 "--stage $stage" "$cases"
        [ $short -eq 1 ] || conforms 2 "--stage $stage --only 9 --seed 1" 1 # state_mib = auto, where one rank has room for a MiB and the other for two
    done
    [ $short -eq 1 ] || conforms 2 "--stage 1" "$cases" FAKECUDA_MEMOPS=0
    conforms 3 "--stage 2" "$cases" FAKECUDA_SEED=5 FAKENCCL_DELAY_US=3000 FAKECUDA_DELAY_US=1000
    [ $short -eq 1 ] || conforms 3 "--stage 1" 1 FAKENCCL_FAULT=1:slow:6
    transport=nccl_two_level
    conforms 4 "--stage 1" $((short ? 1 : 2))
    [ $short -eq 1 ] || conforms 4 "--stage 0" 2 FAKECUDA_SEED=5 FAKENCCL_DELAY_US=3000
    transport=nccl_native
    conforms 3 "--stage 1" $((short ? 1 : 2))
    [ $short -eq 1 ] || conforms 3 "--stage 0" "$cases" FAKECUDA_SEED=5 FAKENCCL_DELAY_US=3000
    [ $short -eq 1 ] || conforms 2 "--stage 3" "$cases"
    [ $short -eq 1 ] || conforms 4 --groups 2
    transport=nccl
    conforms 2 --groups "$cases"
    [ $short -eq 1 ] || conforms 4 --groups 2
    [ $short -eq 1 ] || conforms 4 --groups 2 FAKECUDA_SEED=5 FAKENCCL_DELAY_US=3000 FAKECUDA_DELAY_US=1000
fi
[ "$only" != conforms ] || exit $failed
seventh="gathering of values, bucket 4, step 1" # the exchange that the case begins in the seventh place
says "stands still" "0 1 2" "every rank waits, but the $seventh has not ended within 5250 ms" \
    FAKENCCL_FAULT=1:late:7
says dead "0 2" "rank 1 has not come to the $seventh within 5250 ms" FAKENCCL_FAULT=1:die:7
[ $short -eq 1 ] || says "too little" "0 1 2" "every rank waits, but the $seventh has not ended" FAKENCCL_FAULT=1:short:7
says "fails on one" "2" "$seventh: NCCL failed: remote process exited" FAKENCCL_FAULT=2:error:7
and_says "fails on one" "0 1" "rank 2 has not come to the $seventh"
says "does not connect" "0" "communicator of .* was not there within 7000 ms" FAKENCCL_FAULT=0:init
and_says "does not connect" "1 2" "rank 0 has not come to the start of the transport within 5250 ms"
if [ $short -eq 0 ]; then # to the others, the same as dead and stands still
    recovery=--enable-recovery
    noticed kill "rank 1 has not come to"
    recovery=
    noticed late "rank 1 has not come to"
    noticed stop "rank 1 has not come to" 0
    noticed stop "rank 1 has not come to"
fi
noticed config "rank 0 and rank 1 differ: \"\[shard\] bucket_bytes"
says "no library" "0 1 2" "rank 0 of 3 cannot use it: libnccl.so.2 cannot be opened" LD_LIBRARY_PATH="$without"
[ $short -eq 1 ] || says "old library" "0 1 2" "rank 0 of 3 cannot use it: libnccl.so.2 is of version 2.12.0" FAKENCCL_VERSION=21200
[ $short -eq 1 ] || says "shared queues" "0 1 2" "rank 0 of 3 cannot use it: CUDA_DEVICE_MAX_CONNECTIONS" CUDA_DEVICE_MAX_CONNECTIONS=1
exit $failed
