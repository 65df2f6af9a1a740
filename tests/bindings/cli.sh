# SPDX-License-Identifier: Apache-2.0
# cli.sh - sourced by the tests of the command line: a folder of their own in $dir, and what a command must say.
failed=0
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

# expect STATUS TEXT COMMAND...: exit status, and a text (a basic regular expression) in what is printed
expect() {
    want=$1
    text=$2
    shift 2
    out=$("$@" 2>&1 </dev/null)
    status=$?
    if [ "$status" -ne "$want" ] || ! echo "$out" | grep -q -- "$text"; then
        echo "FAIL: $*: exit status $status, want $want; no \"$text\" in: $out"
        failed=1
    fi
}

# shows TEXT COMMAND...: the command says TEXT on a terminal while it works, and nothing of it in a pipe
shows() {
    text=$1
    shift
    line=
    for word in "$@"; do line="$line '$word'"; done
    script -qec "$line" /dev/null </dev/null >"$dir/terminal" || { echo "FAIL: $line: $(cat "$dir/terminal")"; failed=1; }
    grep -q -- "$text" "$dir/terminal" || { echo "FAIL: $line shows no \"$text\" on a terminal: $(cat -v "$dir/terminal")"; failed=1; }
    "$@" </dev/null 2>&1 | grep -q -- "$text" && { echo "FAIL: $line shows \"$text\" in a pipe"; failed=1; }
}
