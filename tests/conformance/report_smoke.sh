#!/bin/sh
# report_smoke.sh ZF_CONFORM PLUGIN RESULTS - "zf-conform --report": areas run and put into one page, the page made of
# kept results, and what it refuses.
set -u
conform=$1
plugin=$2
results=$3
failed=0
out=$(mktemp -d) || exit 2
trap 'rm -rf "$out"' EXIT

fail() {
    echo "FAIL: $*"
    failed=1
}

# has FILE TEXT...
has() {
    file=$1
    shift
    for text in "$@"; do
        grep -q -e "$text" "$file" || fail "no \"$text\" in $file"
    done
}

# well_formed FILE - by a real parser, where there is one
well_formed() {
    if command -v python3 >/dev/null 2>&1; then
        python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$1" || fail "$1: not well-formed"
    elif command -v xmllint >/dev/null 2>&1; then
        xmllint --noout "$1" || fail "$1: not well-formed"
    fi
    grep -q -e '<script' -e 'src=' -e 'url(' "$1" && fail "$1: not self-contained"
}

mkdir "$out/kept"
echo '{"area": "abi", "exit_status": 0, "summary": "of an older run"}' >"$out/kept/abi.json"
"$conform" --report "$out/page.html" --plugin "$plugin" --results "$out/kept" exact --cases 16 --seed 3 \
    perf --millions 1 >"$out/text" 2>&1 || fail "exit status $?: $(cat "$out/text")"
well_formed "$out/page.html"
has "$out/text" '^== exact' '^== perf' 'page.html$'
has "$out/page.html" '16 random cases' 'law 6' 'Bytes over the link' 'What every thread does' 'zf-device' 'zf-worker' \
    'link down' 'of an older run' 'Not run.'
has "$out/kept/perf.json" '"timeline"' '"exit_status": 0'

# A timeline is of this run: every thread's time lies within the picture, and the device has worked.
if command -v python3 >/dev/null 2>&1; then
    python3 - "$out/kept/perf.json" <<'END' || fail "the timeline does not hold together"
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
fi

# A plugin that is none: the page says so, nothing old stands for the run, and the exit status is the areas'.
"$conform" --report "$out/none.html" --plugin "$out/none.so" --results "$out/kept" abi >"$out/text" 2>&1
[ $? -eq 2 ] || fail "no plugin: exit status is not 2"
well_formed "$out/none.html"
has "$out/none.html" 'left no results; exit status 2' 'could not run'
grep -q 'of an older run' "$out/none.html" && fail "an older result stands for a run that failed"

"$conform" --report "$out/committed.html" --results "$results" >"$out/text" 2>&1 || fail "results: $(cat "$out/text")"
well_formed "$out/committed.html"
has "$out/committed.html" 'Score of every seed' 'Training loss'

# refused NAME TEXT ARGUMENT... - exit status 2 and TEXT
refused() {
    text=$1
    shift
    "$conform" --report "$@" >"$out/text" 2>&1
    [ $? -eq 2 ] || fail "$*: exit status is not 2"
    has "$out/text" "$text"
}
refused 'name of the page' abi
refused 'no results' "$out/x.html" --results "$out/nowhere"
refused 'found --nonsense' "$out/x.html" --nonsense 1 abi
refused 'named twice' "$out/x.html" --plugin "$plugin" abi abi
refused 'cannot write' "$out/no/folder/x.html" --results "$out/kept"
[ ! -e "$out/x.html" ] || fail "a refused call left a page"
exit $failed
