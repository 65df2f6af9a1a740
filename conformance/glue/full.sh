#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# full.sh - the full verdicts on fine-tunes of a pretrained encoder:
#
#   sh conformance/glue/full.sh --data DIR --model DIR [--seeds N] [--sync-seeds N] [--tasks "sst2 cola mrpc"]
#                               [--steps "N..."] [--config FILE] [--lr X] [--products T] [--jobs N]
#                               [--results DIR]
#
#   --data DIR      official GLUE files (DIR/SST-2/train.tsv ...)
#   --model DIR     a BERT encoder in Hugging Face's layout: config.json, model.safetensors, vocab.txt
#   --seeds N       of AdamW and of the plugin as configured (default 8)
#   --sync-seeds N  of the plugin in its synchronous mode (default 1: it equals AdamW to the rounding)
#   --tasks "..."   default "sst2 cola mrpc"; any of the nine whose files are there
#   --steps "N..."  of a run: one number for all tasks, or one for each in their order (default: the task's own)
#   --products T    fp32 (default) or bf16: what the reference host's matrix products round their operands to; bf16 is
#                   faster on processors that have such products, and named in the results
#   --config FILE   the plugin's INI file (default none: the plugin's defaults)
#   --lr X          peak learning rate (default 5e-5)
#   --jobs N        runs at the same time, one thread of matrix products each (default 2)
#   --results DIR   where the results go (default conformance/results)
#
# Builds build/release and runs zf-conform glue on each task. Leaves fine-tune-TASK.json and .txt, the plot
# fine-tune-TASK.svg where python3 (or ZF_PYTHON) has matplotlib, and the table fine-tune.md. Resumable: a finished run is
# kept in build/glue and not repeated, so after an interruption the same command goes on where it
# was. Exit status: 1 if a task does not conform, else 2 if one could not run, else 3 if one is inconclusive, else 0.
set -u

caller=$(pwd)
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd) || exit 2
data=
model=
seeds=8
sync_seeds=1
tasks='sst2 cola mrpc'
steps=
config=
lr=5e-5
products=fp32
jobs=2
results=$root/conformance/results

stop() {
    echo "full.sh: $*" >&2
    exit 2
}

# Paths on the command line mean the caller's folder.
absolute() {
    case $1 in
    /*) echo "$1" ;;
    *) echo "$caller/$1" ;;
    esac
}

while [ $# -gt 0 ]; do
    case $1 in
    --help)
        sed -n '2,/^set -u/s/^# \{0,1\}//p' "$root/conformance/glue/full.sh" | sed '$d'
        exit 0
        ;;
    esac
    [ $# -gt 1 ] || stop "$1: nothing follows; --help lists the options"
    case $1 in
    --data) data=$(absolute "$2") ;;
    --model) model=$(absolute "$2") ;;
    --seeds) seeds=$2 ;;
    --sync-seeds) sync_seeds=$2 ;;
    --tasks) tasks=$2 ;;
    --steps) steps=$2 ;;
    --config)
        config=
        [ "$2" = none ] || config=$(absolute "$2")
        ;;
    --lr) lr=$2 ;;
    --products) products=$2 ;;
    --jobs) jobs=$2 ;;
    --results) results=$(absolute "$2") ;;
    *) stop "found \"$1\"; --help lists the options" ;;
    esac
    shift 2
done
[ -n "$data" ] || stop "--data DIR is needed: the official GLUE files"
[ -n "$model" ] || stop "--model DIR is needed: a folder with config.json, model.safetensors and vocab.txt"

# Every task beside its number of steps.
set -- $steps
n_steps=$#
set -- $tasks
[ "$n_steps" -le 1 ] || [ "$n_steps" -eq $# ] ||
    stop "--steps: found $n_steps numbers for $# tasks; one, or one for each of \"$tasks\", is needed"

# steps_of K - of the K-th task; nothing where the task's own number holds
steps_of() {
    k=$1
    set -- $steps
    [ $# -le 1 ] || shift $((k - 1))
    echo "${1:-}"
}

cd "$root" || exit 2
sh conformance/run.sh --build-only || exit 2
conform=build/release/conformance/zf-conform
plugin=build/release/plugin/libzfplugin.so
out=build/glue
mkdir -p "$results" "$out" || exit 2

# between TEXT-FILE ARM EXPRESSION - one figure from the lines under "ARM against AdamW"
between() {
    sed -n "/^$2 against AdamW/,/^\$/p" "$1" | sed -n "$3"
}

# table_row TASK STATUS - from the text that zf-conform printed
table_row() {
    text=$results/fine-tune-$1.txt
    name=$(sed -n 's/^\([a-z0-9]*\) x 100 on the dev set$/\1/p' "$text")
    means=$(sed -n 's/^  mean  *\([-0-9.]*\)  *\([-0-9.]*\)  *\([-0-9.]*\)  *[-+0-9.]*$/\1 | \2 | \3/p' "$text")
    difference=$(between "$text" ZenFlow \
        's/^  metric .*plugin - AdamW = \([-+0-9.]*\) points.*bounds \([-+a-z0-9.]*\) and \([-+a-z0-9.]*\),.*/\1 (\2 .. \3)/p')
    quarter=$(between "$text" ZenFlow 's/^  last quarter .*: \([-+0-9.]* %\)$/\1/p')
    case $2 in
    0) verdict=PASS ;;
    1) verdict=FAIL ;;
    *) verdict=INCONCLUSIVE ;;
    esac
    n_steps=$(sed -n 's/^reference host: .*; \([0-9]*\) steps of.*/\1/p' "$text")
    echo "| $1 | $name | $n_steps | $seeds | $means | $difference | $quarter | $verdict |"
}

table=$results/fine-tune.md
{
    echo "| task | metric | steps | seeds | AdamW | synchronous (seeds: $sync_seeds) | ZenFlow | ZenFlow - AdamW, points (95 % bounds) | loss, last quarter | verdict |"
    echo '|---|---|---|---|---|---|---|---|---|---|'
} >"$table.part"
has_failed=0
could_not_run=0
is_inconclusive=0
k=0
for task in $tasks; do
    k=$((k + 1))
    task_steps=$(steps_of $k)
    echo "== $task"
    text=$results/fine-tune-$task.txt
    "$conform" glue --plugin "$plugin" --task "$task" --data "$data" --model "$model" --seeds "$seeds" \
        --sync-seeds "$sync_seeds" --jobs "$jobs" --out "$out" ${task_steps:+--steps "$task_steps"} \
        ${config:+--config "$config"} --lr "$lr" --products "$products" >"$out/fine-tune.out"
    status=$?
    grep -v "^$out/" "$out/fine-tune.out"
    case $status in
    0) ;;
    1) has_failed=1 ;;
    3) is_inconclusive=1 ;;
    *) could_not_run=1 ;;
    esac
    grep -q '^ZenFlow against AdamW' "$out/fine-tune.out" || continue
    grep -v "^$out/" "$out/fine-tune.out" >"$text"
    cp "$out/glue.json" "$results/fine-tune-$task.json"
    PYTHONPATH=bindings/python${PYTHONPATH:+:$PYTHONPATH} \
        "${ZF_PYTHON:-python3}" -m zfplugin.report "$results/fine-tune-$task.json" --plots "$results" --only loss ||
        echo "full.sh: no plot was drawn of $results/fine-tune-$task.json"
    table_row "$task" "$status" >>"$table.part"
done
mv "$table.part" "$table"
echo
cat "$table"
[ "$has_failed" -eq 0 ] || exit 1
[ "$could_not_run" -eq 0 ] || exit 2
[ "$is_inconclusive" -eq 0 ] || exit 3
exit 0
