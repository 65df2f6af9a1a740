#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# glue.sh BUILD - the GLUE area with host and plugin on the driver's double.
#
# zf-host trains the same steps on the processor and on the device, by its AdamW and through the plugin in windows: the
# curves are one curve but for rounding. Then zf-conform glue --device cuda in small, what it says, and what is refused.
set -u
build=$1
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/../../conformance/expect.sh"
needs_scipy
host=$build/conformance/host/zf-host
conform=$build/conformance/zf-conform
plugin=$build/plugin/libzfplugin.so.0
double=$build/tests/cuda/double

# there COMMAND... - with the doubles of driver and cuBLAS
there() { env LD_LIBRARY_PATH="$double" "$@"; }

"$conform" examples --synthetic "$out/all" --out "$out/from-scratch" || fail "no corpus"
mkdir "$out/data"
cp "$out/all/vocab.txt" "$out/data"
head -n 401 "$out/all/train.tsv" >"$out/data/train.tsv"
head -n 33 "$out/all/dev.tsv" >"$out/data/dev.tsv"
python3 "$here/../../conformance/tiny_encoder.py" "$out/encoder" "$out/all/vocab.txt" 1 || exit 77
"$conform" examples --data "$out/data" --model "$out/encoder" --max-tokens 10 --out "$out/examples" || fail "no examples"

small="--examples $out/examples --steps 10 --batch 6 --quiet"
rate="--lr 3e-3"
windows="--optimizer plugin --plugin $plugin --set zenflow.full_warm_up_rounds=3 --set zenflow.update_interval=3 --set zenflow.topk_ratio=0.1"

# shellcheck disable=SC2086 # lists of words
for dtype in fp32 bf16; do
    for how in adamw plugin; do
        [ $dtype = fp32 ] || [ $how = plugin ] || continue
        optimizer=
        [ $how = adamw ] || optimizer=$windows
        "$host" $small $rate --dtype $dtype --dropout 0.1 $optimizer --out "$out/cpu-$dtype-$how.json" || fail "$dtype $how on the processor"
        there "$host" $small $rate --dtype $dtype --dropout 0.1 $optimizer --device cuda --out "$out/device-$dtype-$how.json" ||
            fail "$dtype $how on the device"
    done
done
# shellcheck disable=SC2086
there "$host" $small $rate $windows --accumulation 2 --parts --device cuda --out "$out/parts.json" || fail "parts"
# shellcheck disable=SC2086
"$host" $small $rate $windows --accumulation 2 --parts --out "$out/cpu-parts.json" || fail "parts on the processor"

# Rates of nothing, and late values, move the curve by far more than the bound: what is compared is there.
# shellcheck disable=SC2086
"$host" $small --dropout 0.1 --lr 1e-9 --out "$out/untrained.json" || fail "untrained"
python3 - "$out" <<'EOF' || fail "curves"
import json, sys
out = sys.argv[1]
def losses(name):
    return json.load(open(f"{out}/{name}.json"))["losses"]
def largest(a, b):
    return max(abs(x - y) for x, y in zip(a, b))
for one, other, bound in [("cpu-fp32-adamw", "device-fp32-adamw", 2e-6), ("cpu-fp32-plugin", "device-fp32-plugin", 2e-6),
                          ("cpu-parts", "parts", 2e-6), ("cpu-bf16-plugin", "device-bf16-plugin", 2e-5)]:
    a, b = losses(one), losses(other)
    gap = largest(a, b)
    print(f"{one}, {other}: largest gap {gap:.2g} of {len(a)} steps")
    if not (len(a) == len(b) == 10 and gap <= bound):
        sys.exit(f"{one}, {other}: gap {gap}, bound {bound}")
for one, other, least in [("cpu-fp32-adamw", "untrained", 2e-3), ("cpu-fp32-adamw", "cpu-fp32-plugin", 1e-4)]:
    moved = largest(losses(one), losses(other))
    print(f"{one}, {other}: {moved:.2g} apart")
    if moved < least:
        sys.exit(f"{one}, {other}: {moved} apart, which is too little to compare")
EOF

# shellcheck disable=SC2086
there "$conform" glue --plugin "$plugin" --device cuda --data "$out/data" --model "$out/encoder" --seeds 1 --exact-seeds 1 --steps 3 \
    --batch 4 --max-tokens 10 --jobs 1 --out "$out/kept" >"$out/glue" 2>"$out/glue.err"
[ $? -eq 3 ] || fail "glue: exit status is not 3: $(cat "$out/glue.err")"
has "$out/glue" '^trained on .*products by cuBLAS' 'start         PASS' 'on the device'
has "$out/kept/glue.json" '"device": '

# shellcheck disable=SC2086
"$host" $small --products bf16 2>"$out/products.err" && fail "bf16 products of the processor"
has "$out/products.err" 'is for --device cuda'
# shellcheck disable=SC2086
FAKECUBLAS_FAIL=1 there "$host" $small --device cuda 2>"$out/start.err" && fail "cuBLAS that does not start"
has "$out/start.err" 'does not start: status 1'
# shellcheck disable=SC2086
env LD_LIBRARY_PATH=/nonexistent "$host" $small --device cuda 2>"$out/driver.err" && fail "no driver"
has "$out/driver.err" 'libcuda.so.1 cannot be opened.*is NVIDIA.s driver installed?'
# shellcheck disable=SC2086
FAKECUDA_DEVICE_BYTES=300000 there "$host" $small --device cuda 2>"$out/memory.err" && fail "a small device"
has "$out/memory.err" 'out of memory'
exit "$failed"
