#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# perf_smoke.sh ZF_CONFORM PLUGIN - "zf-conform perf" in small: it passes, and says what it measured.
set -u
. "$(dirname "$0")/expect.sh"
conform=$1
plugin=$2

"$conform" perf --plugin "$plugin" --millions 1 --out "$out/perf.json" >"$out/text" 2>&1 || {
    cat "$out/text"
    echo "FAIL: exit status is not 0"
    exit 1
}
has "$out/text" 'link, bytes per parameter' 'host memory, bytes' 'bf16          4' 'fp32          8' 'bf16/none' '^PASS'
[ "$(grep -c '"down_formula"' "$out/perf.json")" -eq 10 ] ||
    fail "10 rows are needed in: $(cut -c1-200 "$out/perf.json")"
readable "$out/perf.json"

"$conform" perf --plugin "$out/none.so" >/dev/null 2>&1
[ $? -eq 2 ] || fail "a missing plugin: exit status is not 2"
exit $failed
