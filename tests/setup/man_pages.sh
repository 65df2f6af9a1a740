#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# man_pages.sh SOURCE_DIR MAN_DIR WORK_DIR - the manual pages that the build wrote into MAN_DIR: one for every slot of the golden layout,
# without a warning of mandoc or groff, each with a name line that fits a terminal. A hook without a contract gets no page but an error.
# Exit status 77 without mandoc and groff (Debian package mandoc).
set -u
source=$1 man=$2 work=$3
failed=0
fail() { echo "FAIL: $*" && failed=1; }

for slot in $(sed -n '/^struct zf_plugin_t /,/^struct /s/.*(\*\([a-z_]*\)).*/\1/p' "$source/abi/layout/v0.4.txt"); do
    [ -s "$man/man3/zf_$slot.3" ] || fail "no page of $slot"
    n=$((${n:-0} + 1))
done
[ "${n:-0}" -ge 13 ] || fail "${n:-0} slots in the golden layout, need 13 or more"
for page in state_save stats_counter config_check; do
    [ -s "$man/man3/zf_$page.3" ] || fail "no page zf_$page"
done
long=$(grep -h -A1 '^.SH NAME' "$man"/man3/*.3 | grep '.\{110,\}') && fail "names too long for apropos: $long"

rm -rf "$work"
mkdir -p "$work"
cp -r "$source/abi/include" "$work/include"
python3 - "$work/include/zf/plugin.h" <<'END'
import re, sys
text = open(sys.argv[1]).read()
open(sys.argv[1], "w").write(re.sub(r"    /\* \[hook\] One optimizer step.*?\*/\n", "", text, flags=re.DOTALL))
END
said=$(python3 "$source/abi/man.py" hooks "0.1.0 2026-01-01" "$work/man" "$work/include" 2>&1) && fail "a hook without a contract was taken"
echo "$said" | grep -q 'no comment says what step does' || fail "a hook without a contract: $said"

if command -v mandoc >/dev/null; then
    found=$(mandoc -Tlint -W warning "$man"/man[13]/* 2>&1) || fail "$found"
elif command -v groff >/dev/null; then
    found=$(for page in "$man"/man[13]/*; do groff -man -Tutf8 -ww -z "$page" 2>&1; done)
    [ -z "$found" ] || fail "$found"
else
    [ "$failed" -eq 1 ] || { echo "neither mandoc nor groff is here (Debian package mandoc)" && exit 77; }
fi
exit "$failed"
