#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# glue_smoke.sh ZF_CONFORM PLUGIN [FAULT_DIR] - "zf-conform glue" on the generated corpus, in small: what it prints and
# leaves, the same for a fine-tune, and that two plugins that train wrongly fail. (Kept runs and wrong command lines: test_runs.py; bad
# data and encoders: test_examples.py.)
set -u
. "$(dirname "$0")/../conformance/expect.sh"
needs_scipy
conform=$1
plugin=$2
faults=${3:-}

# glue NAME ARGUMENT... - runs it; standard output in $out/NAME, standard error in $out/NAME.err; its exit status
glue() {
    name=$1
    shift
    "$conform" glue "$@" >"$out/$name" 2>"$out/$name.err"
}

small="--seeds 2 --exact-seeds 1 --steps 200 --jobs 2"

# shellcheck disable=SC2086 # a list of words
glue first --plugin "$plugin" $small --out "$out/kept"
status=$?
[ "$status" -eq 0 ] || [ "$status" -eq 3 ] || fail "exit status $status: $(cat "$out/first" "$out/first.err")"
has "$out/first.err" 'SYNTHETIC' '6 of 6: '
[ -s "$out/kept/glue.txt" ] || fail "no glue.txt"
has "$out/first" 'SYNTHETIC corpus' '  seed  ' 'exact against AdamW' 'ZenFlow against AdamW' \
    'ran 1 seeds only' 'start         PASS' 'weights       PASS: 0 of [0-9]* differ from AdamW as documented after step 200' 'last quarter' '4M(1 + 1/S), S = 2' 'planned' 'stall'
has "$out/kept/glue.json" '"is_synthetic": true' '"last_quarter_ratio"' '"mean_losses"' '"adamw_has_learned": true'

# Without clipping, whose factor the plugin's sums may round another way, the exact mode's losses are those of the host's own AdamW
# to the last step, of either type of weights, where micro-batches are summed and where they are parts of a gradient.
for way in 'fp32 30 --accumulation 2' 'bf16 30' 'fp32 30 --accumulation 3 --parts'; do
    # shellcheck disable=SC2086
    set -- $way
    dtype=$1 steps=$2
    shift 2
    for optimizer in adamw plugin; do
        "$(dirname "$conform")/host/zf-host" --examples "$out"/kept/examples/sst2-*.safetensors --optimizer $optimizer --plugin "$plugin" \
            $([ $optimizer = adamw ] || echo --set zenflow.mode=exact) --dtype "$dtype" --seed 1 --steps "$steps" --clip 0 --quiet "$@" \
            --out "$out/$optimizer.json" || fail "zf-host --optimizer $optimizer"
        sed -n '/"losses"/,$p' "$out/$optimizer.json" | grep -o '[0-9]*\.[0-9]*' >"$out/$optimizer.losses"
    done
    [ "$(grep -c . "$out/adamw.losses")" -eq "$steps" ] || fail "$way: not $steps losses"
    cmp -s "$out/adamw.losses" "$out/plugin.losses" || fail "$way: the exact mode is not AdamW"
done

data=$out/kept/synthetic
# A fine-tune is kept under the encoder's contents: another encoder in the same place is another run.
if command -v python3 >/dev/null 2>&1; then
    mkdir "$out/few"
    for file in train.tsv dev.tsv; do
        head -n 400 "$data/$file" >"$out/few/$file"
    done
    cp "$data/vocab.txt" "$out/few"
    tuned="--model $out/encoder --data $out/few --seeds 1 --exact-seeds 1 --steps 5"
    python3 "$(dirname "$0")/../conformance/tiny_encoder.py" "$out/encoder" "$data/vocab.txt" 1
    # shellcheck disable=SC2086
    glue tuned --plugin "$plugin" $tuned --out "$out/kept"
    [ $? -eq 3 ] || fail "fine-tune: no exit status 3: $(cat "$out/tuned.err")"
    has "$out/tuned" "ZenFlow is set by zenflow.mode=windows"
    has "$out/tuned" 'pretrained encoder (sha256 ' '5 steps of 32 rows, peak rate 1e-4' 'start         PASS'
    has "$out/kept/glue.json" '"encoder_sha256": "[0-9a-f]'
    printf '; comment\n[zenflow]\npredict = off\n' >"$out/tuned.ini"
    # shellcheck disable=SC2086
    glue tuned --plugin "$plugin" $tuned --out "$out/kept" --config "$out/tuned.ini" --set zenflow.topk_ratio=0.2
    has "$out/tuned" 'ZenFlow is set by \[zenflow\], predict = off, zenflow.topk_ratio=0.2' 'start         PASS'
    has "$out/tuned.err" '3 of 4: '
    python3 "$(dirname "$0")/../conformance/tiny_encoder.py" "$out/encoder" "$data/vocab.txt" 2
    # shellcheck disable=SC2086
    glue tuned --plugin "$plugin" $tuned --out "$out/kept"
    has "$out/tuned.err" '4 of 4: '
else
    echo "no python3: fine-tuning not tried"
fi

# Plugins that train wrongly: one leaves AdamW's path at once, the other never updates what it defers.
if [ -n "$faults" ]; then
    glue bias --plugin "$faults/wrong_bias_correction.so" --set zenflow.topk_ratio=0.01 --seeds 2 --exact-seeds 1 \
        --steps 20 --out "$out/kept"
    [ $? -eq 1 ] || fail "wrong_bias_correction: exit status is not 1"
    has "$out/bias" 'start         FAIL'
    # shellcheck disable=SC2086
    glue dropped --plugin "$faults/deferred_dropped.so" --set zenflow.topk_ratio=0.01 $small --out "$out/kept"
    [ $? -eq 1 ] || fail "deferred_dropped: exit status is not 1"
    has "$out/dropped" 'metric        FAIL'
    grep -h '  metric  ' "$out/dropped" | tail -n 1
fi
exit $failed
