#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ranks.sh ZF_HOST PLUGIN ZF_MPI - the reference host on two and three ranks, with batches that do not divide and with
# dropout, has one process's loss at every step up to the order of sums: 1e-6, relative (measured: 2e-8). Then what
# it refuses. Needs mpirun: without it exit status 77, and 1 where CI is set.
set -u
host=$1
plugin=$2
mpi=${3:-}
if ! command -v mpirun >/dev/null 2>&1 || [ ! -e "$mpi" ]; then
    echo "ranks: MPI is missing: install libopenmpi-dev openmpi-bin, then build again"
    [ -z "${CI:-}" ] || exit 1
    exit 77
fi
OPENBLAS_NUM_THREADS=1
export OPENBLAS_NUM_THREADS
folder=$(mktemp -d "${TMPDIR:-/tmp}/zf-host-ranks.XXXXXX") || exit 2
trap 'rm -rf "$folder"' EXIT
trap 'exit 2' INT TERM
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

# ranks N ARGUMENT... - more ranks than processors may be; shared memory and loopback only
ranks() {
    n=$1
    shift
    timeout -k 5 60 mpirun -q --allow-run-as-root --oversubscribe --mca btl self,vader,tcp --mca btl_tcp_if_include lo \
        --mca btl_vader_single_copy_mechanism none -n "$n" "$host" --mpi "$mpi" "$@"
}

model="--synthetic $folder/data --max-tokens 32 --hidden 32 --ffn 64 --lr 5e-3 --dropout 0.1 --clip 0.5 --quiet
    --optimizer plugin --plugin $plugin --set zenflow.full_warm_up_rounds=5"

# losses FILE - one a line
losses() {
    tr -d ' \n' <"$1" | sed 's/.*"losses":\[\([^]]*\)\].*/\1/' | tr ',' '\n'
    echo
}

# follows NAME N ARGUMENT... - N ranks beside $folder/one.json
follows() {
    name=$1
    n=$2
    shift 2
    # shellcheck disable=SC2086 # a list of words
    ranks "$n" $model "$@" --out "$folder/$name.json" || {
        fail "$name: exit status $?"
        return
    }
    grep -q "\"ranks\": $n" "$folder/$name.json" || fail "$name: the report does not say $n ranks"
    losses "$folder/one.json" >"$folder/a"
    losses "$folder/$name.json" >"$folder/b"
    paste "$folder/a" "$folder/b" | awk -v name="$name" '
        NF == 2 { n++; d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) { most = d; at = n } }
        END { printf "%s: %d losses, largest relative difference %.1e (step %d)\n", name, n, most, at
              exit !(n == 40 && most <= 1e-6) }' || fail "$name: the losses are not one process's"
}

# shellcheck disable=SC2086
{
    "$host" $model --steps 40 --batch 7 --accumulation 2 --out "$folder/one.json" || fail "one process"
    first=$(losses "$folder/one.json" | head -n 1)
    last=$(losses "$folder/one.json" | sed -n 40p)
    awk -v a="$first" -v b="$last" 'BEGIN { d = (a - b) / a; exit !(d > 0.01 || d < -0.01) }' ||
        fail "one process: the loss did not move ($first to $last)"
}
follows one-rank 1 --steps 40 --batch 7 --accumulation 2
cmp "$folder/a" "$folder/b" || fail "one rank: other bits than without MPI"
follows two-ranks-stage-2 2 --steps 40 --batch 7 --accumulation 2 --set shard.stage=2
follows two-ranks-stage-3 2 --steps 40 --batch 7 --accumulation 2 --set shard.stage=3 --set shard.resident_bytes=1000
follows three-ranks 3 --steps 40 --batch 7 --accumulation 2 --parts

# refused TEXT N ARGUMENT... - exit status other than 0, and TEXT
refused() {
    text=$1
    n=$2
    shift 2
    ranks "$n" "$@" >"$folder/log" 2>&1 && fail "not refused: $*"
    grep -q -- "$text" "$folder/log" || fail "no \"$text\": $(head -c 400 "$folder/log")"
}

# shellcheck disable=SC2086
{
    refused 'rank [012] of 3: train: batch 2 on 3 ranks' 3 $model --steps 2 --batch 2
    refused '--optimizer plugin is needed' 1 --synthetic "$folder/data" --optimizer adamw
}
[ $failed -eq 0 ] && echo "several ranks train as one process does"
exit $failed
