#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ranks.sh - several ranks on this machine: sh tests/ranks.sh [--short] [--only conforms|faults] [--seed N] [BUILD]
#
#   1. zf-conform shard on 1, 2, 3, 4 and 8 ranks: law 4 bit for bit, bytes, order of exchanges; the same with process groups, and in two levels
#   2. checkpoints: saved by each of those numbers of ranks, the same bytes by all, and loaded by others; `zf audit` between runs
#   3. what one rank of three does wrong (killed, stopped, another configuration ...) every other one says, by name, in time
#   4. on a slow link a step shows its last reduce-scatter and the first all-gather after it, no more (two minutes)
#   5. the plugin with each planted fault of conformance/faults/ranks.txt is caught, and with one that takes early replays blindly
#
#   --short   fewer cases, ranks and faults: about a minute
#   --only conforms | faults   1 and 2, or the others, for which the machine must have nothing else to do
#   --seed N  other cases for each N
#   BUILD     a build with tests (default build/test)
#
# Needs MPI (Debian packages libopenmpi-dev openmpi-bin) when BUILD is configured, and mpirun. Without it: exit status 77, and 1
# where CI is set. Ranks are more than processors may be, talk through shared memory and loopback only, and are ended after a
# time limit. Exit status 0 only if all of it passed.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
short=0
only=all
of=
build=$root/build/test
while [ $# -gt 0 ]; do
    case $1 in
    --short) short=1 ;;
    --only) only=${2:-} && shift ;;
    --seed) of=$((${2:-0})) && shift ;;
    --*) only= ;;
    *) build=$(CDPATH='' cd -- "$1" && pwd) || exit 2 ;;
    esac
    case $only in
    all | conforms | faults) shift ;;
    *)
        echo "usage: sh tests/ranks.sh [--short] [--only conforms|faults] [--seed N] [BUILD]" >&2
        exit 2
        ;;
    esac
done

conform=$build/conformance/zf-conform
ZFPLUGIN_PATH=${ZFPLUGIN_PATH:-$build/plugin/libzfplugin.so}
ZF_MPI_PATH=$build/bindings/mpi/libzf_mpi.so
export ZFPLUGIN_PATH ZF_MPI_PATH
if ! command -v mpirun >/dev/null 2>&1 || [ ! -e "$ZF_MPI_PATH" ]; then
    echo "ranks: MPI is missing: install libopenmpi-dev openmpi-bin, then build again"
    [ -z "${CI:-}" ] || exit 1
    exit 77
fi

failed=0
fail() {
    echo "FAIL: $*"
    failed=1
}

# ranks N ARGUMENT... - zf-conform shard on N ranks; recovery=--enable-recovery: a rank that dies does not end the others
recovery=
ranks() {
    n=$1
    session=$(mktemp -d "$scratch/mpi.XXXXXX") # mpirun would fail at times beside another one that ends
    shift
    # shellcheck disable=SC2086 # nothing, or one word
    timeout -k 5 "$limit" mpirun --allow-run-as-root --oversubscribe $recovery --mca btl self,vader,tcp \
        --mca btl_tcp_if_include lo --mca orte_tmpdir_base "$session" --mca btl_vader_single_copy_mechanism none -n "$n" "$conform" shard "$@" 2>&1
}

# conforms N OPTION... - N ranks find nothing wrong
conforms() {
    n_ranks=$1
    shift
    out=$(ranks "$n_ranks" "$@")
    line=$(echo "$out" | grep "^law 4: $n_ranks rank(s), [1-9][0-9]* cases, .* conforms$")
    if [ -n "$line" ]; then
        echo "$*: $line"
    else
        fail "$n_ranks ranks, $*: $(echo "$out" | grep -v '^--' | cut -c 1-600 | head -n 12)"
    fi
}

# drawn_of "N OPTION..."
drawn_of() {
    # shellcheck disable=SC2086 # words
    conforms $1
}

# noticed "FAULT|TEXT[|STAGE[|SEED]]" - every rank but rank 1 ends with an error that has TEXT, within the deadline and some
noticed() {
    words=$IFS IFS='|'
    # shellcheck disable=SC2086 # parts of it
    set -f -- $1
    IFS=$words
    out=$(ranks 3 --fault "$1" --stage "${3:-0}" --seed "${4:-1}")
    for r in 0 2; do
        line=$(echo "$out" | grep "^rank $r noticed after [0-9] s: .*$2")
        [ -n "$line" ] || fail "$1: rank $r did not say \"$2\": $(echo "$out" | cut -c 1-400 | head -n 6)"
    done
    echo "$1: $(echo "$out" | grep '^rank 0' | cut -c 1-160)"
}

# beside K FUNCTION ARGUMENT... - the function of each argument, K at any time: what waits for a deadline leaves a processor idle.
# What they print comes in the order of the arguments; a line FAIL: counts.
beside() {
    k=$1 fn=$2 said=$(mktemp -d "$scratch/XXXXXX") n=0
    shift 2
    mkfifo "$said/.free"
    exec 3<>"$said/.free"
    seq "$k" >&3
    for arg in "$@"; do
        n=$((n + 1))
        read -r _ <&3
        { "$fn" "$arg" >"$said/$(printf '%03d' "$n")" 2>&1; echo >&3; } &
    done
    wait
    exec 3>&-
    [ "$n" -eq 0 ] || cat "$said"/*
    ! cat "$said"/* 2>/dev/null | grep -q '^FAIL: ' || failed=1
}

# kill_one RUN - of four ranks one is killed in an exchange, another one in each run, every second time in two levels: nobody else is named
kill_one() {
    dead=$(($1 % 4))
    transport=host
    [ $(($1 / 4 % 2)) -eq 0 ] || transport=host_two_level
    out=$(ranks 4 --fault kill --at-rank "$dead" --stage $(($1 / 8 % 4)) --transport "$transport" --seed "$1" --deadline-ms 12000)
    echo "$out" | sed -n 's/^rank [0-9] ends in an exchange for \(.*\)/ended in \1/p'
    echo "$out" | sed -n "s/^rank [0-9] noticed .*: rank $dead\( of process group 0\)* has not come to .*/named/p"
    ! echo "$out" | grep 'noticed .*: rank [0-9].* has not come to' | grep -v ": rank $dead" || fail "rank $dead was killed, and another one is named"
    [ "$(echo "$out" | grep -c "noticed .*: rank $dead")" -eq 3 ] || echo "run $1: $(echo "$out" | grep '^rank' | cut -c 1-400)"
}

# kills RUNS - and every survivor names it, but one in thirty that waits beside others which are late on a busy machine
kills() {
    # shellcheck disable=SC2046 # numbers
    beside 10 kill_one $(seq "$1") >"$all_said"
    grep -e '^FAIL: ' -e '^run ' -A 4 "$all_said"
    named=$(grep -c '^named$' "$all_said")
    [ "$named" -ge $((3 * $1 - $1 / 10)) ] || fail "of three ranks in $1 runs only $named name who was killed"
    echo "killed: $named errors of $1 runs name a rank, the right one; $(grep -c 'of group [1-9]' "$all_said") in an exchange of two levels"
}

# loads P:Q - what P ranks saved goes on with Q
loads() {
    # shellcheck disable=SC2086 # words
    conforms "${1#*:}" $drawn ${split:+--split "${1%:*}"} --load "$moves/${1%:*}"
}

# moved OPTIONS N... - saved by each number of ranks, the same data by all, and loaded by the next one. With $split each number of ranks has
# another part of the state resident, and what each has saved is loaded by every one
split=
moved() {
    drawn=$1 first=$2
    shift
    moves=$(mktemp -d "$scratch/XXXXXX") || exit 2
    pairs=
    for last in "$@"; do :; done
    before=$last
    for p in "$@"; do
        mkdir "$moves/$p" || exit 2
        # shellcheck disable=SC2086 # words
        conforms "$p" $drawn ${split:+--split "$p"} --save "$moves/$p"
        for data in "$moves/$first"/*/*.safetensors; do
            [ -n "$split" ] || cmp -s "$data" "$moves/$p/${data#"$moves/$first/"}" || fail "$data is not what $p ranks saved"
        done
        [ -n "$split" ] || pairs="$pairs $before:$p"
        before=$p
        for q in ${split:+"$@"}; do
            [ "$short$p" = "1$q" ] || pairs="$pairs $p:$q"
        done
    done
    # shellcheck disable=SC2086 # words
    beside 2 loads $pairs
}

# alike WHAT A B - `zf audit` finds no difference between any two audits of two folders
alike() {
    n_alike=0
    for file in "$2"/*.rank0; do
        name=$(basename "$file" .rank0)
        out=$("$build/bindings/cli/zf" audit "$2/$name" "$3/$name") || fail "$1, case $name: $(echo "$out" | tail -n 3)"
        n_alike=$((n_alike + 1))
    done
    [ "$n_alike" -gt 0 ] || fail "$1: no audits"
    echo "$1: $n_alike audits are the same"
}

# audited CASES - every step's state is the same on two ranks and on three; with process groups and experts in two runs of four
audited() {
    audits=$(mktemp -d "$scratch/XXXXXX") || exit 2
    mkdir "$audits/two" "$audits/three" "$audits/groups" "$audits/again"
    ZF_AUDIT_DIR=$audits/two conforms 2 --cases "$1" --seed 32
    ZF_AUDIT_DIR=$audits/three conforms 3 --cases "$1" --seed 32
    alike "2 and 3 ranks" "$audits/two" "$audits/three"
    ZF_AUDIT_DIR=$audits/groups conforms 4 --groups --cases "$1" --seed 33
    ZF_AUDIT_DIR=$audits/again conforms 4 --groups --cases "$1" --seed 33
    alike "process groups" "$audits/groups" "$audits/again"
}

# case_of NAME - the case of ranks.txt that fails by a planted fault
case_of() {
    sed -n "s/^== $1 [^ ]* \([0-9]*\)\$/--only \1/p" "$root/conformance/faults/ranks.txt" | head -n 1
}

# caught_moving NAME - in what 5 ranks save, or load again
caught_moving() {
    moves=$(mktemp -d "$scratch/XXXXXX") || exit 2
    drawn="--cases 24 --seed 31 --stage 1 $(case_of "$1") --deadline-ms 2000"
    # shellcheck disable=SC2086 # words
    out=$(ZFPLUGIN_PATH=$build/faults/ranks/$1.so ranks 5 $drawn --save "$moves"
        ZFPLUGIN_PATH=$build/faults/ranks/$1.so ranks 5 $drawn --load "$moves")
    line=$(echo "$out" | grep "^rank [0-9] of 5: " | head -n 1)
    if [ -z "$line" ]; then
        fail "planted fault $1 was not caught: $(echo "$out" | cut -c 1-300 | head -n 4)"
    else
        echo "$1: $(echo "$line" | cut -c 1-160)"
    fi
}

# overlap OPTION... - what a host waits for on a slow link; needs no MPI
overlap() {
    timeout -k 5 "$limit" "$conform" shard --overlap "$@" 2>&1
}

# caught_overlap NAME
caught_overlap() {
    # by far: a busy machine is late, too
    # shellcheck disable=SC2046 # words
    line=$(ZFPLUGIN_PATH=$build/faults/ranks/$1.so overlap $(case_of "$1") | awk -F'|' '/missed/ && $3 >= 1.25 * $4 { print; exit }')
    [ -n "$line" ] || fail "planted fault $1 was not caught"
    echo "$1: $line"
}

# caught NAME - by its own case, or by any of 60
caught() {
    case $1 in
    overlap_*)
        caught_overlap "$1"
        return
        ;;
    move_*)
        caught_moving "$1"
        return
        ;;
    esac
    n=3 tries=1 line=
    drawn="--cases 60 --seed 3"
    first=$(case_of "$1")
    so=$build/faults/ranks/$1.so
    [ -e "$so" ] || so=$build/faults/$1.so
    case $1 in
    average_is_sum) n=2 ;; # averages are exact of powers of two
    early_*) first="--only 30" tries=20 ;; # a busy machine replays little early
    fetched_* | changed_*) drawn="$drawn --stage 3" ;;
    groups_importance_*) n=4 drawn="--cases 60 --seed 6 --stage 1 --groups" ;;
    groups_*) n=4 drawn="$drawn --groups" ;;
    esac
    for try in $(seq "$tries") all; do
        [ "$try" != all ] || first=
        # shellcheck disable=SC2086 # words
        out=$(ZFPLUGIN_PATH=$so ranks "$n" $drawn $first --deadline-ms 2000)
        line=$(echo "$out" | grep -e "^rank [0-9] of $n: " -e '^case [0-9]*: rank' | head -n 1)
        [ -z "$line" ] || break
    done
    if [ -z "$line" ] || echo "$out" | grep -q 'conforms$'; then
        fail "planted fault $1 was not caught: $(echo "$out" | cut -c 1-300 | head -n 4)"
    else
        echo "$1: $(echo "$line" | cut -c 1-160)"
    fi
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/zf-ranks.XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT
all_said=$scratch/said
limit=600
[ "$short" -eq 0 ] || limit=200 # for what takes seconds where nothing else runs
if [ "$only" = faults ]; then
    :
elif [ "$short" -eq 1 ]; then
    conforms 1 --cases 4 --seed 11
    conforms 2 --cases 8 --seed 12
    conforms 3 --cases 6 --seed 13
    conforms 2 --cases 60 --seed 8 --stage 3 --only 36 # the host writes a whole parameter where others are sharded
    conforms 3 --cases 40 --seed 123 --only 4 # ... that was bound with strides
    conforms 2 --seed 215 --only 7 # FLUSH, when one rank has handed over buckets of which the other has not all gradients
    conforms 4 --groups --cases 5 --seed 14
    conforms 4 --groups --cases 120 --seed 28 --only 9 # a parameter of which no rank has a gradient
    conforms 4 --transport host_two_level --cases 4 --seed 15
    moved "--cases 4 --seed 31" 2 3
    split=yes
    moved "--cases 4 --seed 34" 1 2
    split=
    moved "--groups --cases 4 --seed 9" 4
else
    beside 2 drawn_of "1 --cases 20 --seed ${of}21" \
        "2 --cases 60 --seed ${of}22" \
        "3 --cases 40 --seed ${of}23" \
        "4 --cases 30 --seed ${of}24" \
        "8 --cases 8 --seed ${of}25" \
        "2 --cases 60 --seed 8 --stage 3 --only 36" \
        "3 --cases 40 --seed 123 --only 4" \
        "2 --seed 215 --only 7" \
        "2 --groups --cases 50 --seed ${of}26" \
        "3 --groups --cases 12 --seed ${of}27" \
        "4 --groups --cases 40 --seed ${of}28" \
        "8 --groups --cases 10 --seed ${of}29" \
        "4 --transport host_two_level --cases 16 --seed ${of}30" \
        "8 --transport host_two_level --groups --cases 8 --seed ${of}31"
    moved "--cases 12 --seed ${of}31" 1 2 3 4 8
    split=yes
    moved "--cases 12 --seed ${of}34" 1 2 3
    moved "--cases 12 --seed 1134 --only 2" 1 3 # residents, of one rank's and of several
    split=
    moved "--groups --cases 20 --seed ${of}9" 4
    moved "--groups --cases 8 --seed ${of}9" 8
    audited 12
fi
[ "$only" != conforms ] || exit $failed
planted="part_off_by_one groups_norm_of_data"
recovery=--enable-recovery
if [ "$short" -eq 1 ]; then
    kills 2
    recovery=
    beside 2 noticed "stop|rank 1 has not come to" \
        "config|rank 0 and rank 1 differ: \"\[shard\] bucket_bytes"
else
    kills 100
    recovery=
    beside 2 noticed "stop|rank 1 has not come to" \
        "config|rank 0 and rank 1 differ: \"\[shard\] bucket_bytes" \
        "name|rank 0 and rank 1 differ: \"parameter 0" \
        "values|rank 0 and rank 1 differ: \"parameter 0" \
        "hyper|rank 1 and rank 0 differ at step 3 in the arguments of step" \
        "discard|rank 1 and rank 0 differ at step 3 in DISCARD" \
        "flush|rank 1 and rank 0 differ at step 3 in what was called between the steps" \
        "flush|rank 1 and rank 0 differ at step 3 in what was called between the steps|1" \
        "fetch|rank 1 has not come to the gathering of parameters (stage 3), bucket|3|20"
    out=$(overlap) || fail "exchanges are exposed"
    echo "$out" | grep '^  |'
    cmake --build "$build" --target zf_faults >"$all_said" 2>&1 || fail "the planted faults do not build: $(tail -n 5 "$all_said")"
    planted="$(sed -n 's/^== \([^ ]*\) .*/\1/p' "$root/conformance/faults/ranks.txt" | sort -u) early_taken_unexpected"
fi
# shellcheck disable=SC2086 # words
beside 4 caught $planted
exit $failed
