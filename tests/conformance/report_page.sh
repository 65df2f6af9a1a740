#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# report_page.sh ZF_CONFORM PLUGIN RESULTS PERF_JSON - "zf-conform --report" with its page: areas run and put into one page, a
# timeline, the page of the results of this repository. Skipped where Python has no matplotlib; with CI
# set, which promises that everything is installed, that is a failure.
set -u
. "$(dirname "$0")/expect.sh"
conform=$1
plugin=$2
results=$3
perf_json=$4
python=${ZF_PYTHON:-python3}

"$python" -c 'import matplotlib' 2>/dev/null || {
    reason="matplotlib is not installed for $python"
    [ -z "${CI:-}" ] || {
        echo "FAIL: $reason, and CI is set: pip install matplotlib"
        exit 1
    }
    echo "skipped: $reason"
    exit 77
}

# shows FILE TEXT... - a well-formed page that fetches nothing
shows() {
    file=$1
    shift
    "$python" - "$file" "$@" <<'END' || fail "$file"
import re, sys, xml.dom.minidom
text = open(sys.argv[1], encoding="utf-8").read()
xml.dom.minidom.parseString(text.encode())
assert "<script" not in text and not re.findall(r'(?:src|href)="(?!data:image/svg|#)', text), "not self-contained"
missing = [x for x in sys.argv[2:] if x not in text]
assert not missing, f"no {missing} in the page"
END
}

mkdir "$out/kept"
echo '{"area": "abi", "exit_status": 0, "summary": "of an older run"}' >"$out/kept/abi.json"
cp "$perf_json" "$out/kept/perf.json"
"$conform" --report "$out/page.html" --plugin "$plugin" --results "$out/kept" exact --cases 16 --seed 3 \
    >"$out/text" 2>&1 || fail "exit status $?: $(cat "$out/text")"
tail -n 1 "$out/text" | grep -q 'page.html$' || fail "the page is not named: $(cat "$out/text")"
shows "$out/page.html" '16 random cases' 'law 6' 'Bytes over the link' 'What every thread does' 'of an older run' 'Not run.'

# A run that left nothing is in the page with its exit status.
"$conform" --report "$out/none.html" --plugin "$out/none.so" --results "$out/kept" abi >"$out/text" 2>&1
[ $? -eq 2 ] || fail "no plugin: exit status is not 2"
shows "$out/none.html" 'left no results; exit status 2' 'could not run'

mkdir "$out/committed"
cp "$results/glue.json" "$out/committed"
"$conform" --report "$out/committed.html" --results "$out/committed" >"$out/text" 2>&1 || fail "results: $(cat "$out/text")"
shows "$out/committed.html" 'Score of every seed' 'Training loss' '12 seeds'
exit $failed
