# SPDX-License-Identifier: Apache-2.0
# expect.sh - read by the smoke tests: a folder $out of their own, $failed, and what they all ask of a program's output.
failed=0
out=$(mktemp -d) || exit 2
# shellcheck disable=SC2064 # this folder, whatever $out is later
trap "rm -rf '$out'" EXIT

fail() {
    echo "FAIL: $*"
    failed=1
}

# has FILE TEXT... - a line of the file matches each
has() {
    file=$1
    shift
    for text in "$@"; do
        grep -q -e "$text" "$file" || fail "no \"$text\" in: $(cat "$file")"
    done
}

# needs_scipy - ends the test where Python has no scipy: skipped, and a failure where CI is set, which promises that everything is there
needs_scipy() {
    "${ZF_PYTHON:-python3}" -c 'import scipy' 2>/dev/null && return
    echo "scipy is not installed for ${ZF_PYTHON:-python3}: apt-get install python3-scipy"
    [ -z "${CI:-}" ] || exit 1
    exit 77
}
