#!/bin/sh
# perf_smoke.sh ZF_CONFORM PLUGIN - "zf-conform perf" in small: it passes, and says what it measured.
set -u
conform=$1
plugin=$2
out=$(mktemp -d) || exit 2
trap 'rm -rf "$out"' EXIT

"$conform" perf --plugin "$plugin" --millions 1 --out "$out/perf.json" >"$out/text" 2>&1 || {
    cat "$out/text"
    echo "FAIL: exit status is not 0"
    exit 1
}
for text in 'link, bytes per parameter' 'host memory, bytes' 'bf16          4' 'fp32          8' 'bf16/device   8' '^PASS'; do
    grep -q "$text" "$out/text" || {
        echo "FAIL: no \"$text\" in: $(cat "$out/text")"
        exit 1
    }
done
[ "$(grep -c '"down_formula"' "$out/perf.json")" -eq 16 ] && grep -q '"timeline"' "$out/perf.json" || {
    echo "FAIL: 16 rows and a timeline are needed in: $(cut -c1-200 "$out/perf.json")"
    exit 1
}
"$conform" perf --plugin "$out/none.so" >/dev/null 2>&1
[ $? -eq 2 ] || {
    echo "FAIL: a missing plugin: exit status is not 2"
    exit 1
}
