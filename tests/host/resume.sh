#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# resume.sh ZF_HOST [PLUGIN] - a run that is killed with SIGKILL again and again, and resumed each time in a new process,
# ends with the uninterrupted run's losses, score and weights, for AdamW and for the plugin at S = 4.
set -u
host=$1
plugin=${2:-}
folder=$(mktemp -d /tmp/zf_test_resume_XXXXXX) || exit 2
child=
start=
trap '[ -z "$child" ] || kill -9 "$child" 2>/dev/null; rm -rf "$folder"' EXIT
trap 'exit 2' INT TERM
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

# train OUT OPTION... - with the options of all runs
train() {
    out=$1
    shift
    ${start:-} "$host" --synthetic "$folder/data" --max-tokens 32 --hidden 32 --ffn 64 --batch 8 --steps 90 --dropout 0.1 --quiet \
        --out "$out" "$@"
}

# all that a report says of the run itself, not of the process
result() {
    sed -n '/"metric"/p; /"scores"/p; /"losses"/,$p' "$1"
}

newest() {
    ls "$1" 2>/dev/null | sed -n 's/^checkpoint-\([0-9]*\)$/\1/p' | sort -n | tail -n 1
}

# compare NAME - the run of NAME against NAME-whole
compare() {
    result "$folder/$1-whole.json" >"$folder/a"
    result "$folder/$1.json" >"$folder/b"
    [ "$(grep -c losses "$folder/a")" -eq 1 ] || fail "$1: the report has no losses"
    cmp "$folder/a" "$folder/b" || fail "$1: losses or scores differ from the uninterrupted run's"
    cmp "$folder/$1-whole/checkpoint-90/model.safetensors" "$folder/$1/checkpoint-90/model.safetensors" ||
        fail "$1: final weights differ"
    grep -q '"resumed_after_step": 0,' "$folder/$1.json" && fail "$1: the last process did not resume"
    [ "$(ls "$folder/$1")" = checkpoint-90 ] || fail "$1: left behind: $(ls "$folder/$1")"
}

# kill_once NAME OPTION... - starts or resumes, lets it save some checkpoints, kills it
kill_once() {
    name=$1
    shift
    before=$(newest "$folder/$name")
    resume=${before:+--resume $folder/$name}
    (start=exec && train "$folder/$name.json" --save "$folder/$name" --save-every 1 $resume "$@") &
    child=$!
    tries=0
    while [ $(($(newest "$folder/$name")+0)) -lt $((${before:-0} + 9)) ] && [ $tries -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -9 "$child" 2>/dev/null || fail "$name: was over before it was killed"
    wait "$child" 2>/dev/null
    child=
    [ -n "$(newest "$folder/$name")" ] || fail "$name: no checkpoint after a kill"
}

# interrupted NAME OPTION...
interrupted() {
    name=$1
    shift
    train "$folder/$name-whole.json" --save "$folder/$name-whole" "$@" || fail "$name: uninterrupted run"
    for i in 1 2 3; do
        kill_once "$name" "$@"
    done
    mkdir -p "$folder/$name/checkpoint-77.part/plugin" # what a kill in the midst of a save leaves
    echo half >"$folder/$name/checkpoint-77.part/plugin/w.safetensors"
    train "$folder/$name.json" --save "$folder/$name" --save-every 20 --resume "$folder/$name" "$@" ||
        fail "$name: last resume"
    compare "$name"
}

"$host" --help | grep -q -- --resume || fail "--help does not name --resume"
interrupted adamw
[ -z "$plugin" ] || interrupted plugin --optimizer plugin --plugin "$plugin" --set zenflow.full_warm_up_rounds=5
[ $failed -eq 0 ] && echo "resumed runs equal uninterrupted ones"
exit $failed
