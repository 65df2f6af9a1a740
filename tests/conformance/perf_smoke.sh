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
[ "$(grep -c '"down_formula"' "$out/perf.json")" -eq 10 ] && grep -q '"timeline"' "$out/perf.json" ||
    fail "10 rows and a timeline are needed in: $(cut -c1-200 "$out/perf.json")"
readable "$out/perf.json"

# A timeline is of this run: every thread's time lies within the picture, and the device has worked.
"${ZF_PYTHON:-python3}" - "$out/perf.json" <<'END' || fail "the timeline does not hold together"
import json, sys
t = json.load(open(sys.argv[1]))["timeline"]
at, end = t["at_us"], t["at_us"][-1]
assert len(t["steps_us"]) == 8 and 0 < t["steps_us"][0] < t["steps_us"][-1] <= end + 5000, t["steps_us"]
busy = {x["name"]: sum(x["busy_us"]) for x in t["threads"]}
assert all(len(x["busy_us"]) == len(at) - 1 for x in t["threads"])
assert all(0 <= b <= 1.05 * end for b in busy.values()), busy
assert busy["zf-device"] > 0 and busy["zf-worker"] > 0 and busy["host"] > 0, busy
assert sum(t["down_bytes"]) > 0 and sum(t["up_bytes"]) > 0
assert [h["name"] for h in t["hooks"]] == ["gradients are made", "grads_ready", "step", "waiting for parameters"]
assert all(len(h["from_to_us"]) == 16 for h in t["hooks"])
END

"$conform" perf --plugin "$out/none.so" >/dev/null 2>&1
[ $? -eq 2 ] || fail "a missing plugin: exit status is not 2"
exit $failed
