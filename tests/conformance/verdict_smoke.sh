#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# verdict_smoke.sh ZF_CONFORM - the area "verdict": one input for each verdict, exit statuses, refused input.
set -u
conform=$1
failed=0

# expect STATUS TEXT INPUT [OPTION...]
expect() {
    want=$1 text=$2 input=$3
    shift 3
    out=$(printf "$input" | "$conform" verdict "$@" - 2>&1)
    status=$?
    [ "$status" -eq "$want" ] || { echo "FAIL: $text: exit status $status, need $want: $out"; failed=1; }
    case $out in *"$text"*) ;; *) echo "FAIL: no \"$text\" in: $out"; failed=1 ;; esac
}

expect 0 'PASS: plugin - AdamW = +0.10 points over 3 seeds' '# seed baseline plugin\n1 80 80.1\n2 81 81.2\n3 82 82.0\n'
expect 1 'FAIL' '1 80 70.1\n2 81 71.2\n3 82 72.0\n'
expect 3 'INCONCLUSIVE' '1 80 75\n2 81 86\n'
expect 3 'INCONCLUSIVE' '1 80 80\n'
expect 0 '"verdict": "PASS"' '1 80 80.1\n2 81 81.2\n3 82 82.0\n' --json
expect 3 'INCONCLUSIVE' '1 80 79.9\n2 81 81.0\n3 82 81.9\n' --margin 0.1
expect 2 'found no seed' ''
expect 2 '2: found "2 x 3"' '1 80 80\n2 x 3\n'
expect 2 'found "1 80 80 7"' '1 80 80 7\n'
expect 2 'is nan; a finite number' '1 80 nan\n2 80 80\n'
expect 2 'above 0' '1 80 80\n' --margin -1
exit $failed
