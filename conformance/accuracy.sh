#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# accuracy.sh - makes every figure of conformance/README.md anew: sh conformance/accuracy.sh [--data DIR] [--seeds N]
#
#   --data DIR   official GLUE files; without: the generated corpus, and the tables say so
#   --seeds N    of the loss curves, the parity verdict and the ablation (default 5, 16 and 3)
#   --only PART  this part alone: curves, glue, faults, perf, ablation or report
#
# Builds build/release, trains (curves, glue, glue on the planted faults, ablation), measures bytes (perf) and writes the
# tables between the markers of conformance/README.md, the files of conformance/results/ and build/report.html, the page
# made of them. Runs that are kept in build/glue are not repeated. The plots need python3 (or ZF_PYTHON) with matplotlib; without
# it the old ones stay, and that is said. On two quiet cores the ablation takes about 10 minutes, the rest a
# quarter of an hour. Exit status: 1 if a bar is missed or a fault that must be caught is not.
set -u

caller=$(pwd)
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
data=
seeds=
only=
jobs=2
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || {
        echo "usage: sh conformance/accuracy.sh [--data DIR] [--seeds N] [--jobs N] [--only PART]" >&2
        exit 2
    }
    case $1 in
    --data) case $2 in /*) data=$2 ;; *) data=$caller/$2 ;; esac ;;
    --seeds) seeds=$2 ;;
    --jobs) jobs=$2 ;;
    --only)
        only=$2
        case $only in
        curves | glue | faults | perf | ablation | report) ;;
        *)
            echo "accuracy.sh: --only $only: curves, glue, faults, perf, ablation or report is needed" >&2
            exit 2
            ;;
        esac
        ;;
    *)
        echo "accuracy.sh: found \"$1\"; --data, --seeds, --jobs and --only are known" >&2
        exit 2
        ;;
    esac
    shift 2
done

cd "$root" || exit 2
sh conformance/run.sh --build-only || exit 2
cmake --build build/release --target zf_faults >>build/release/build.log 2>&1 || exit 2

conform=build/release/conformance/zf-conform
plugin=build/release/plugin/libzfplugin.so
readme=conformance/README.md
results=conformance/results
status=0
mkdir -p "$results" build/glue

# wants PART
wants() { [ -z "$only" ] || [ "$only" = "$1" ]; }

# train AREA ARGUMENT... - one of the training areas with what all share
train() {
    area=$1
    shift
    "$conform" "$area" ${data:+--data "$data"} --jobs "$jobs" --out build/glue "$@"
}

# draw PLOT JSON-FILE... - plots of results/ from the JSON files there, by the end of their names
draw() {
    plot=$1
    shift
    PYTHONPATH=bindings/python${PYTHONPATH:+:$PYTHONPATH} \
        "$(sh conformance/python.sh)" -m zfplugin.report "$@" --plots "$results" --only "$plot" ||
        echo "accuracy.sh: not drawn: the plots of $* are older than those files"
}

# insert NAME FILE - puts a file between the markers of the README
insert() {
    awk -v name="$1" -v file="$2" '
        $0 == "<!-- " name ":begin -->" {
            print
            while ((getline line < file) > 0)
                print line
            is_inside = 1
        }
        $0 == "<!-- " name ":end -->" { is_inside = 0 }
        !is_inside && $0 != "<!-- " name ":begin -->" { print }
    ' "$readme" >"$readme.part" && mv "$readme.part" "$readme"
}

# as_block TEXT-FILE - the file as a Markdown block of literal text
as_block() {
    echo '```'
    cat "$1"
    echo '```'
}

curves_part() {
    for rate in 1e-3 5e-4; do
        echo "== curves, peak rate $rate"
        train curves --plugin "$plugin" --lr $rate ${seeds:+--seeds "$seeds"} --readme "$readme" || status=1
        cp "build/glue/curves-$rate.json" "$results/"
        draw loss "$results/curves-$rate.json"
    done
}

glue_part() {
    echo "== glue"
    train glue --plugin "$plugin" ${seeds:+--seeds "$seeds"} >build/glue/glue.out || status=1
    grep -v '^build/glue/' build/glue/glue.out >"$results/glue.txt"
    cat "$results/glue.txt"
    cp build/glue/glue.json "$results/"
    draw loss "$results/glue.json"
    as_block "$results/glue.txt" >build/glue/block
    insert glue build/glue/block
}

faults_part() {
    echo "== glue on planted faults"
    {
        echo "| plugin built with the fault | exit status | points against AdamW | metric | start | last quarter |"
        echo "|---|---|---|---|---|---|"
        for fault in "$plugin" build/release/faults/*.so; do
            name=$(basename "$fault" .so)
            [ "$fault" != "$plugin" ] || name='(none)'
            train glue --plugin "$fault" --set zenflow.topk_ratio=0.01 --seeds 4 --sync-seeds 1 --steps 800 \
                >build/glue/fault.out
            rc=$?
            sed -n '/^ZenFlow against/,$p' build/glue/fault.out >build/glue/fault.zenflow
            points=$(sed -n 's/^  metric .* = \([-+0-9.]*\) points.*/\1/p' build/glue/fault.zenflow)
            metric=$(sed -n 's/^  metric  *\([A-Z]*\):.*/\1/p' build/glue/fault.zenflow)
            start=$(sed -n 's/^  start  *\([A-Z]*\):.*/\1/p' build/glue/fault.zenflow)
            quarter=$(sed -n 's/^  last quarter .*: \([-+0-9.]* %\)$/\1/p' build/glue/fault.zenflow)
            echo "| $name | $rc | $points | $metric | $start | $quarter |"
            case $name in
            wrong_bias_correction | deferred_dropped) [ "$rc" -eq 1 ] || echo missed >build/glue/missed ;;
            esac
        done
    } >build/glue/block
    cat build/glue/block
    [ ! -e build/glue/missed ] || {
        rm build/glue/missed
        echo "a fault that must be caught was not"
        status=1
    }
    insert faults build/glue/block
}

perf_part() {
    echo "== perf"
    "$conform" perf --plugin "$plugin" --out "$results/perf.json" >"$results/perf.txt" || status=1
    cat "$results/perf.txt"
    as_block "$results/perf.txt" >build/glue/block
    insert perf build/glue/block
}

ablation_part() {
    echo "== ablation"
    train ablation --plugin "$plugin" --steps 1000 ${seeds:+--seeds "$seeds"} --readme "$readme" || status=1
    cp build/glue/ablation.json build/glue/ablation.md "$results/"
    draw 1e-3,5e-4 "$results/ablation.json"
}

report_part() {
    mkdir -p build/report.html.results
    cp "$results"/*.json build/report.html.results
    "$conform" --report build/report.html --plugin "$plugin" abi exact --cases 400 || status=1
}

for part in curves glue faults perf ablation report; do
    ! wants $part || ${part}_part
done
exit $status
