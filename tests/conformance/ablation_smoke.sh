#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ablation_smoke.sh ZF_CONFORM PLUGIN - "zf-conform ablation" in small: what it prints and leaves, that levels of one
# configuration share their runs, that nothing is repeated, and that failed runs and refused levels are said to be so.
set -u
. "$(dirname "$0")/expect.sh"
conform=$1
plugin=$2

small="--seeds 1 --steps 12 --lr 1e-3"
# shellcheck disable=SC2086 # a list of words
"$conform" ablation --plugin "$plugin" $small --out "$out/kept" >"$out/first" 2>"$out/first.err" ||
    fail "exit status $?: $(cat "$out/first.err")"
has "$out/first" '| update_interval | S = 1 |' '| publish_lag |' '| predict |' '| deferred |' \
    '| stagger |' '| full_warm_up_rounds |' '| topk_ratio |' 'the default |$' '^- `update_interval`' 'SYNTHETIC'
has "$out/kept/ablation.json" '"area": "ablation"' '"levels"' '"curve"' '"link_bytes_per_parameter_and_step"'
has "$out/kept/ablation.md" '| factor | level |'
readable "$out/kept/ablation.json"
if command -v python3 >/dev/null 2>&1; then
    python3 - "$out/kept" <<'END' || fail "the JSON does not hold together"
import json, sys
a = json.load(open(sys.argv[1] + "/ablation.json"))
arms = {x["level"]: x.get("arm") for x in a["levels"] if x["factor"] in ("update_interval", "topk_ratio")}
assert len(a["arms"]) > 10 and a["arms"][0]["title"] == "AdamW"
defaults = [x for x in a["levels"] if x.get("arm") == 1]
assert len(defaults) >= 3, defaults  # a level that equals the default shares its runs
assert arms["S = 8"] != arms["S = 16"]
run = [x for x in a["levels"] if "arm" in x]
assert all(0 < x["arm"] < len(a["arms"]) for x in run)
assert abs(a["arms"][0]["rates"][0]["to_adamw"] - 1) < 1e-12
links = {x["level"]: a["arms"][x["arm"]]["rates"][0]["link_bytes_per_parameter_and_step"] for x in run}
assert all(v > 0 for v in links.values())
END
fi

# shellcheck disable=SC2086
"$conform" ablation --plugin "$plugin" $small --out "$out/kept" >"$out/second" 2>"$out/second.err"
has "$out/second.err" ', 0 to do'
cmp -s "$out/first" "$out/second" || fail "other figures when everything is kept"

# No run of the plugin can bind its parameters: each is listed as failed, AdamW's are kept.
# shellcheck disable=SC2086
"$conform" ablation --plugin "$plugin" $small --set host.memory_limit_mib=1 --out "$out/kept" >"$out/third" 2>"$out/third.err"
[ $? -eq 1 ] || fail "failed runs: exit status is not 1"
has "$out/third" 'a run FAILED'
has "$out/third.err" 'FAILED: default, seed 1: '
readable "$out/kept/ablation.json"
grep -q 'the default stands' "$out/third" || fail "no conclusion where nothing ran"

# A level that this plugin refuses is listed with its message and has no figures.
if grep -q 'not run:' "$out/first.err"; then
    has "$out/first" '| - | - | not run: '
fi
"$conform" ablation --plugin "$plugin" --set zenflow.topk_ratio=7 --out "$out/kept" >/dev/null 2>"$out/refused"
[ $? -eq 2 ] || fail "a wrong key: exit status is not 2"
has "$out/refused" 'topk_ratio'
exit $failed
