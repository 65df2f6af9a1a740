#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# judged.sh STATUS OUT COMMAND... - COMMAND is zf-conform judge with its options; its output is kept in OUT, and the lines of its areas are
# printed. Fails unless it ends with STATUS, within the processor time of six minutes on two cores.
set -u
status=$1 out=$2
shift 2
found=0
"$@" >"$out" 2>&1 || found=$?
grep -E '^(plugin|contract|near|laws|speed|memory|accuracy) {2,}|^not judged:|^[A-Z]+$' "$out"
[ "$found" -eq "$status" ] || {
    cat "$out"
    echo "FAIL: judge: exit status $found, need $status"
    exit 1
}
times >"$out.times" # not in a pipe, whose shell would tell its own
awk -F '[ms ]+' 'NR == 2 { s = 60 * ($1 + $3) + $2 + $4; printf "judged in %d s of processor time, allowed 720\n", s; exit s > 720 }' "$out.times" ||
    { echo "FAIL: judge takes too long" && exit 1; }
