#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# checker.sh ZF_CONFORM PLUGIN WRONG_PLUGIN - the checker itself: it fails on a wrong plugin with the law, the parameter and the
# step named, outlives a crash and a hang, says what it skips, and repeats a single case. wrong.py has all wrong plugins.
set -u
conform=$1
export ZF_WRONG_OF="$2"
wrong=$3
. "$(dirname "$0")/expect.sh"

# expect NAME STATUS PATTERN ARGUMENT...
expect() {
    name=$1
    status=$2
    pattern=$3
    shift 3
    out=$(ZF_WRONG=$name "$conform" exact --plugin "$wrong" --max-failures 1 "$@" 2>&1)
    found=$?
    [ "$found" -eq "$status" ] || fail "$name: exit status $found, not $status: $out"
    echo "$out" | grep -q "$pattern" || fail "$name: no line matches \"$pattern\": $out"
    echo "$name: $(echo "$out" | grep "$pattern" | head -n 1)"
}

value='law [1256]: step [0-9]*, parameter layer[0-9]*\.[a-z]*, [a-z]*\[[0-9]*\]: expected 0x[0-9a-f]*, found 0x[0-9a-f]*'
expect nothing 0 'conforms$' --cases 16
expect stateless 0 '^3 .* skipped: the plugin has no zf.state/1' --cases 16
expect stateless 77 'skipped: the plugin has no zf.state/1' --law 4 --cases 2
expect beta1_off 1 "$value" --cases 40
expect gap 1 'bytes beside its elements were overwritten' --cases 40
expect norm_ulp 1 'report.grad_norm: expected' --cases 40
expect crash 1 'the process ended by signal' --cases 4
expect hang 1 'no answer within 2 s' --cases 2 --deadline 2 --jobs 1

# The command that a failure prints repeats it, and nothing else.
export ZF_WRONG=beta1_off
first=$("$conform" exact --plugin "$wrong" --cases 40 --jobs 1 --max-failures 1)
repeat=$(echo "$first" | sed -n 's/^ *repeat: zf-conform //p')
# shellcheck disable=SC2086 # a list of words
again=$("$conform" $repeat)
[ "$(echo "$first" | grep '^law [0-9]:')" = "$(echo "$again" | grep '^law [0-9]:')" ] ||
    fail "not repeated: $first -- $again"

CUDA_VISIBLE_DEVICES= "$conform" exact --plugin "$wrong" --device cuda --cases 8 >/dev/null 2>&1 # no driver, or no device
[ $? -eq 2 ] || fail "no device is not \"could not run\""
"$conform" exact --plugin /nowhere/libzfplugin.so --cases 1 >/dev/null 2>&1
[ $? -eq 2 ] || fail "a missing plugin: exit status is not 2"
"$conform" exact --laws 3 >/dev/null 2>&1
[ $? -eq 2 ] || fail "an unknown option: exit status is not 2"
exit $failed
