#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# report_command.sh ZF_CONFORM PLUGIN RESULTS - "zf-conform --report" up to the drawing, which a stand-in does: what is run and
# left, what the drawing is asked for, what stands without it, and what is refused.
set -u
. "$(dirname "$0")/expect.sh"
conform=$1
plugin=$2
results=$3

# report STATUS ARGUMENT... - with $out/python as Python; output in $out/text
report() {
    want=$1
    shift
    ZF_PYTHON=$out/python "$conform" --report "$@" >"$out/text" 2>&1
    status=$?
    [ "$status" -eq "$want" ] || fail "$*: exit status $status, need $want: $(cat "$out/text")"
}

# stand_in STATUS - a Python that notes how it was called where it is to draw
real=${ZF_PYTHON:-python3}
stand_in() {
    cat >"$out/python" <<END
#!/bin/sh
[ "\$2" = zfplugin.report ] || exec $real "\$@"
echo "\$PYTHONPATH" >"$out/path"
echo "\$@" >"$out/asked"
exit $1
END
    chmod +x "$out/python"
}

mkdir "$out/kept"
echo '{"area": "abi", "exit_status": 0, "summary": "of an older run"}' >"$out/kept/abi.json"
echo old >"$out/kept/exact-1.json"

# Python draws; areas are run and leave their files; older ones of the same area are gone, others stay.
stand_in 0
PYTHONPATH=/before report 0 "$out/page.html" --plugin "$plugin" --results "$out/kept" exact --cases 16 --seed 3
has "$out/text" '^== exact' 'conforms$'
has "$out/asked" "^-m zfplugin.report $out/kept --page $out/page.html\$"
has "$out/path" '/conformance/python:/before$'
has "$out/kept/exact.json" '"area": "exact"' '"summary": "16 random cases' '"group": "law 6"'
has "$out/kept/report.json" '"area": "exact", "exit_status": 0, "seconds": [0-9]'
readable "$out/kept/exact.json"
has "$out/kept/abi.json" 'of an older run'
[ ! -e "$out/kept/exact-1.json" ] || fail "an older result stands beside this run's"

# A plugin that is none: nothing old stands for the run, and the exit status is the area's.
report 2 "$out/page.html" --plugin "$out/none.so" --results "$out/kept" abi
[ ! -e "$out/kept/abi.json" ] || fail "an older result stands for a run that failed"
has "$out/kept/report.json" '"area": "abi", "exit_status": 2'

# The drawing fails: the exit status is the areas', tables and JSON stand, no older page does. Without Python nothing is run.
stand_in 2
echo old >"$out/page.html"
report 0 "$out/page.html" --plugin "$plugin" --results "$out/kept" exact --cases 8
has "$out/text" 'conforms$' "no page was drawn; the tables stand above, the JSON files are in $out/kept; later: zf-conform"
has "$out/kept/exact.json" '"8 random cases'
[ ! -e "$out/page.html" ] || fail "a page of an earlier run stands"
report 2 "$out/page.html" --results "$results"
has "$out/text" 'no page was drawn; the JSON files are in'
rm "$out/python"
report 2 "$out/page.html" --results "$results"
has "$out/text" "$out/python is not there: apt-get install python3 python3-scipy python3-matplotlib"
stand_in 0

"$conform" abi --plugin "$plugin" --json "$out/abi.json" >/dev/null 2>&1
readable "$out/abi.json"

# refused TEXT ARGUMENT...
refused() {
    text=$1
    shift
    report 2 "$@"
    has "$out/text" "^zf-conform --report: $text"
    [ "$(grep -c '' "$out/text")" -eq 1 ] || fail "$*: more than one line: $(cat "$out/text")"
}
refused 'the name of the page is needed first: --report FILE.html; found abi$' abi
refused 'the name of the page is needed first: --report FILE.html; found nothing$'
refused 'found "--nonsense"; an option is needed' "$out/x.html" --nonsense 1 abi
refused '--results: nothing follows; DIR is needed$' "$out/x.html" --results
refused '--data: given twice; once is needed$' "$out/x.html" --data a --data b abi
refused 'the area abi is named twice; once is needed$' "$out/x.html" --plugin "$plugin" abi abi
ZFPLUGIN_PATH='' refused '--plugin FILE is needed (or ZFPLUGIN_PATH)' "$out/x.html" abi
refused "$out/text/x: " "$out/x.html" --results "$out/text/x" --plugin "$plugin" abi
"$conform" --report --help | grep -q '^  --results ' || fail "--report --help does not list --results"
exit $failed
