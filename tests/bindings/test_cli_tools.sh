#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_cli_tools.sh ZF PLUGIN - the tools of the command line: what holds with a configuration file, and why.
set -u
zf=$1
plugin=$2
failed=0
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

# expect STATUS TEXT ARGUMENTS...: exit status of zf, and a text (a basic regular expression) in what it prints
expect() {
    want=$1
    text=$2
    shift 2
    out=$(timeout 30 "$zf" --plugin "$plugin" "$@" 2>&1 </dev/null)
    status=$?
    if [ "$status" -ne "$want" ] || ! echo "$out" | grep -q -- "$text"; then
        echo "FAIL: zf $*: exit status $status, want $want; no \"$text\" in: $out"
        failed=1
    fi
}

# ---- zf config FILE: every key, its value and where it comes from ----
printf '\357\273\277\n[zenflow]\n  update_interval = 4 ; of a window\nenergy=0.8\n\n[host]\nthreads : 3\n' >"$dir/some.ini"
expect 0 "^update_interval = 4 *; $dir/some.ini:3\$" config "$dir/some.ini"
expect 0 "^energy = 0.8 *; $dir/some.ini:4\$" config "$dir/some.ini"
expect 0 "^threads = 3 *; $dir/some.ini:7\$" config "$dir/some.ini"
expect 0 '^topk_ratio = 0.1 *; default$' config "$dir/some.ini"
expect 0 '^publish_lag = 1 *; default auto$' config "$dir/some.ini"
expect 0 '^publish_lag = 0 *; zenflow.publish_lag = 0$' config "$dir/some.ini" 'zenflow.publish_lag = 0'
expect 0 'energy has no effect without topk_ratio = auto' config "$dir/some.ini"
"$zf" --plugin "$plugin" config "$dir/some.ini" >"$dir/whole.ini"
[ "$(grep -c ' ; ' "$dir/whole.ini")" -eq "$("$zf" --plugin "$plugin" config | grep -c '^[a-z_]* = ')" ] ||
    { echo "FAIL: not every key is shown"; failed=1; }
expect 0 "^update_interval = 4 *; $dir/whole.ini:" config "$dir/whole.ini"
printf '[zenflow]\nupdate_intervall = 4\n[hst]\n' >"$dir/typo.ini"
expect 1 "$dir/typo.ini:2: \[zenflow\] has no key \"update_intervall\"; nearest: update_interval" config "$dir/typo.ini"
expect 1 "$dir/typo.ini:3: no section \[hst\]; nearest: \[host\]" config "$dir/typo.ini"
expect 1 'nearest: topk_ratio' config "$dir/some.ini" zenflow.topk_rato=1
: >"$dir/empty.ini"
expect 0 '^update_interval = 2 *; default$' config "$dir/empty.ini"
mkfifo "$dir/fifo"
expect 1 'not a regular file' config "$dir/fifo"
expect 1 'not a regular file' config "$dir"
printf 'a\000b\n' >"$dir/binary.ini"
expect 1 'byte 0x00' config "$dir/binary.ini"

[ "$failed" -eq 0 ]
