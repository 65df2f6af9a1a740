#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# man_pages.sh SOURCE_DIR MAN_DIR WORK_DIR - the manual pages that the build wrote into MAN_DIR: one for every slot of the golden layout,
# without a warning of mandoc or groff, each with a name line that fits a terminal. A hook without a contract gets no page but an error.
# Exit status 77 without mandoc and groff (Debian package mandoc).
set -u
source=$1 man=$2 work=$3
failed=0
fail() { echo "FAIL: $*" && failed=1; }

for slot in $(sed -n '/^struct zf_plugin_t /,/^struct /s/.*(\*\([a-z_]*\)).*/\1/p' "$source/abi/layout/v0.16.txt"); do
    [ -s "$man/man3/zf_$slot.3" ] || fail "no page of $slot"
    n=$((${n:-0} + 1))
done
[ "${n:-0}" -ge 13 ] || fail "${n:-0} slots in the golden layout, need 13 or more"
for page in state_save stats_counter config_check; do
    [ -s "$man/man3/zf_$page.3" ] || fail "no page zf_$page"
done
long=$(grep -h -A1 '^.SH NAME' "$man"/man3/*.3 | grep '.\{110,\}') && fail "names too long for apropos: $long"

# without PATTERN WHAT MESSAGE: the headers without the first match of a pattern
without() {
    rm -rf "$work"
    mkdir -p "$work"
    cp -r "$source/abi/include" "$work/include"
    python3 - "$work/include/zf/plugin.h" "$1" <<'END'
import re, sys
text = open(sys.argv[1]).read()
open(sys.argv[1], "w").write(re.sub(sys.argv[2], "", text, count=1, flags=re.DOTALL))
END
    said=$(python3 "$source/abi/man.py" hooks "0.1.0 2026-01-01" "$work/man" "$work/include" 2>&1) && fail "$2 was taken"
    echo "$said" | grep -q "$3" || fail "$2: $said"
}
without '    /\* One optimizer step.*?\*/\n' "a hook without a contract" 'no comment says what step does'
without '\[hook\] State: bound, active, quiesced; afterwards active.(?= \*/\n    zf_status_t \(\*step\))' "a hook without a thread" \
    'no thread is said of step'

if command -v mandoc >/dev/null; then
    found=$(mandoc -Tlint -W warning "$man"/man[13]/* 2>&1) || fail "$found"
elif command -v groff >/dev/null; then
    found=$(for page in "$man"/man[13]/*; do groff -man -Tutf8 -ww -z "$page" 2>&1; done)
    [ -z "$found" ] || fail "$found"
else
    [ "$failed" -eq 1 ] || { echo "neither mandoc nor groff is here (Debian package mandoc)" && exit 77; }
fi
exit "$failed"
