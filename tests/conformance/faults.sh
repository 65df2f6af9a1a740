#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# faults.sh ZF_CONFORM PLUGIN FAULT_DIR TABLE - every planted fault is caught, with the law, the parameter and the step
# named, and the plugin without a fault passes the same cases. TABLE (conformance/faults/exact.txt)
# names the case in which each is caught, which is tried first, some times: when threads come is chance; where it is not any more, all are (cases are drawn anew when what
# they draw changes), and the numbers to put there are printed.
set -u
conform=$1
plugin=$2
dir=$3
table=$4
failed=0
same="--seed 7 --isa plugin --max-failures 1 --deadline 60"
all="--cases 240"
cases_file=$(mktemp) || exit 2
trap 'rm -f "$cases_file"' EXIT

sed -n 's/^== .* \([0-9]*\) \([0-9]*\)$/--law \1 --only \2/p' "$table" | sort -u >"$cases_file"
while read -r cases; do
    # shellcheck disable=SC2086 # a list of words
    out=$("$conform" exact --plugin "$plugin" $same $cases 2>&1) || {
        echo "FAIL: the plugin without a fault, $cases: $out"
        failed=1
    }
done <"$cases_file"
for fault in "$dir"/*.so; do
    name=$(basename "$fault" .so)
    line=
    for cases in "$(sed -n "s/^== $name .* \([0-9]*\) \([0-9]*\)$/--law \1 --only \2 --times 12/p" "$table")" "$all"; do
        [ -z "$line" ] && [ -n "$cases" ] || continue
        # shellcheck disable=SC2086
        out=$("$conform" exact --plugin "$fault" $same $cases 2>&1)
        status=$?
        line=$(echo "$out" | grep '^law [1-6]: step [0-9]*, parameter layer' | head -n 1)
        [ -z "$line" ] || [ "$cases" != "$all" ] ||
            echo "$out" | sed -n "s/^ *repeat: .* --law \([0-9]*\) --only \([0-9]*\).*/exact.txt: $name \1 \2/p"
    done
    if [ "$status" -ne 1 ] || [ -z "$line" ]; then
        echo "FAIL: $name: exit status $status, no law, parameter and step named: $(echo "$out" | head -n 3)"
        failed=1
    else
        echo "$name: $line"
    fi
done
exit $failed
