#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_cli.sh ZF STATE_EXAMPLE PLUGIN - the command line: configuration keys, and a checkpoint inspected, verified and
# consolidated; what is damaged or called wrongly is refused. Where Python (ZF_PYTHON, or python3) has the safetensors
# package the files are also read by that library; where it has none the test skips, or fails if CI is set.
set -u
zf=$1
example=$2
plugin=$3
replaced=$4 # a plugin that another save overtakes while it reads
. "$(dirname "$0")/cli.sh"

expect 0 'update_interval = ' "$zf" --plugin "$plugin" config
"$zf" --plugin "$plugin" config >"$dir/all.ini"
printf '[zenflow]\nupdate_intervall = 4\n' >"$dir/bad.ini"
printf '[zenflow]\nupdate_interval = 4\n' >"$dir/good.ini"
expect 0 correct "$zf" --plugin "$plugin" config "$dir/good.ini"
expect 1 update_interval "$zf" --plugin "$plugin" config "$dir/bad.ini"
expect 1 'No such file' "$zf" --plugin "$plugin" config "$dir/none.ini"
expect 1 'no section before its key' "$zf" --plugin "$plugin" config "$dir/good.ini" topk_ratio=0.2
expect 1 'it has no "=" and no value' "$zf" --plugin "$plugin" config "$dir/good.ini" zenflow.topk_ratio
# called wrongly: the error and one line of usage
wrong() { # TEXT ARGUMENTS...
    want_text=$1
    shift
    expect 2 "$want_text" "$zf" "$@"
    "$zf" "$@" >"$dir/said" 2>&1 </dev/null
    { grep -q '^usage: ' "$dir/said" && [ "$(wc -l <"$dir/said")" -le 3 ]; } || { echo "FAIL: zf $*: $(cat "$dir/said")"; failed=1; }
}
wrong 'a command is missing'
wrong 'there is no command docter' docter
wrong 'ckpt: a command is missing' ckpt
wrong 'ckpt: there is no command verfy' ckpt verfy x
wrong 'ckpt verify: .*required: DIR' ckpt verify
wrong 'unrecognized arguments: --quik' doctor --quik
wrong 'MODEL is missing' plan
wrong 'required: --command' tune
expect 0 '^zf [0-9]*\.[0-9]*\.[0-9]*$' "$zf" --version
# without a path it finds the library that was built beside it
case $(dirname "$plugin") in
"$(cd "$(dirname "$zf")/../../plugin" && pwd)") expect 0 'update_interval = ' env -u ZFPLUGIN_PATH "$zf" config ;;
esac
expect 0 consolidate "$zf" --help
expect 0 '^usage: zf .* ckpt consolidate DIR FILE$' "$zf" ckpt --help
# what cannot be written is no success
for words in --help --version 'ckpt --help' 'doctor --help' config; do
    "$zf" --plugin "$plugin" $words >/dev/full 2>"$dir/said"
    { [ $? -eq 1 ] && grep -q 'stdout: not all of it could be written' "$dir/said"; } || { echo "FAIL: zf $words to a full disk: $(cat "$dir/said")"; failed=1; }
done

"$example" "$dir/ckpt" "$dir/weights.bin" || { echo "FAIL: no checkpoint was made"; exit 1; }
expect 0 'checkpoint, version 2' "$zf" ckpt inspect "$dir/ckpt"
expect 0 'encoder.bias \\xe9 ' env PYTHONIOENCODING=ascii "$zf" ckpt inspect "$dir/ckpt"
mkdir "$dir/part" && sed 's/"config":/"part":[1,4],"config":/' "$dir/ckpt/zf_state.json" >"$dir/part/zf_state.json"
expect 0 'part 1 of 4 of a model, from 0' "$zf" ckpt inspect "$dir/part"
expect 0 'sound; step' "$zf" --plugin "$plugin" ckpt verify "$dir/ckpt"
expect 0 float32 "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/all.safetensors"
shows "zf: verifying $dir/ckpt \.\.\. 0 s" "$zf" --plugin "$plugin" ckpt verify "$dir/ckpt"
shows "zf: writing weights of $dir/ckpt \.\.\. 0 s" "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/shown.safetensors"
# the data behind the header are the exported weights, one parameter after another
n=$(od -An -t u8 -N 8 "$dir/all.safetensors" | tr -d ' ')
tail -c +$((n + 9)) "$dir/all.safetensors" | cmp -s - "$dir/weights.bin" || { echo "FAIL: other weights"; failed=1; }

# what torch's AdamW goes on from
python=${ZF_PYTHON:-python3}
if "$python" -c 'import importlib.util as of, sys; sys.exit(of.find_spec("torch") is None)'; then
    ZF_PYTHON=$python expect 0 'moments of' "$zf" --plugin "$plugin" ckpt export "$dir/ckpt" "$dir/adamw.pt"
    "$python" - "$dir" <<'PY' || { echo "FAIL: export"; failed=1; }
import json, sys, torch
dir = sys.argv[1]
params = json.loads(open(dir + "/ckpt/zf_state.json").read())["params"]
saved = torch.load(dir + "/adamw.pt", weights_only=True)
groups = {}
for param in params:
    groups.setdefault(param["group"], []).append(torch.nn.Parameter(torch.zeros(param["shape"])))
optimizer = torch.optim.AdamW([{"params": groups[group]} for group in sorted(groups)])
optimizer.load_state_dict(saved)
entry = optimizer.state[groups[params[0]["group"]][0]]
raw = open(dir + "/ckpt/zf_state-00001.safetensors", "rb").read()
for array, member in (("m", "exp_avg"), ("v", "exp_avg_sq")):
    at, nbytes, _ = params[0]["tensors"][array]
    assert torch.equal(entry[member].flatten(), torch.frombuffer(bytearray(raw[at:at + nbytes]), dtype=torch.float32)), array
assert entry["step"] > 0
for group in optimizer.param_groups:
    for p in group["params"]:
        p.grad = torch.ones_like(p)
optimizer.step()
PY
fi

# a checkpoint that a trainer replaces while it is read: refused, and nothing is written
cp -r "$dir/ckpt" "$dir/moving"
sed '1s/"crc32":"[0-9a-f]*"/"crc32":"00000000"/' "$dir/ckpt/zf_state.json" >"$dir/later.json"
export ZF_MOCK=replaced
expect 0 float32 "$zf" --plugin "$replaced" ckpt consolidate "$dir/moving" "$dir/moving.safetensors"
rm "$dir/moving.safetensors"
export ZF_MOCK_INDEX="$dir/later.json"
expect 1 'was replaced while it was read' "$zf" --plugin "$replaced" ckpt consolidate "$dir/moving" "$dir/moving.safetensors"
unset ZF_MOCK_INDEX
cp -r "$dir/ckpt" "$dir/named" # a name that the format has for itself
sed 's/"head.\{0,1\}\/weight"/"__metadata__"/' "$dir/ckpt/zf_state.json" >"$dir/named/zf_state.json"
expect 1 'a parameter is named __metadata__' "$zf" --plugin "$replaced" ckpt consolidate "$dir/named" "$dir/moving.safetensors"
unset ZF_MOCK
[ "$(ls "$dir" | grep -c 'moving.safetensors')" -eq 0 ] || { echo "FAIL: weights of two steps were written"; failed=1; }

expect 1 'cannot open' "$zf" --plugin "$plugin" ckpt verify "$dir/none"
expect 1 . "$zf" ckpt inspect "$dir/none"
expect 1 . "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/none/file"

if "$python" -c 'import safetensors, numpy' 2>/dev/null; then
    "$python" - "$dir" <<'PY' || { echo "FAIL: the safetensors library"; failed=1; }
import json, sys, zlib
from safetensors import safe_open
dir = sys.argv[1]
lines = open(dir + "/ckpt/zf_state.json").read().split("\n", 1)
index = json.loads(lines[0] + lines[1])
assert index["crc32"] == "%08x" % zlib.crc32(lines[1][:-1].encode())
n = 0
for file in index["files"]:
    path = dir + "/ckpt/" + file["name"]
    raw = open(path, "rb").read()
    assert len(raw) == file["nbytes"]
    with safe_open(path, "np") as f:
        names = set(f.keys())
        for param in index["params"]:
            for key, t in param["tensors"].items():
                name = key + "/" + param["name"]
                if name not in names:
                    continue
                at, nbytes, crc = t
                assert zlib.crc32(raw[at:at + nbytes]) == crc, name
                if key in ("w", "m", "v"):
                    a = f.get_tensor(name)
                    assert list(a.shape) == param["shape"] and a.dtype == "float32", name
                    assert a.tobytes() == raw[at:at + nbytes], name
                n += 1
assert n == sum(len(p["tensors"]) for p in index["params"])
with safe_open(dir + "/all.safetensors", "np") as f:
    assert set(f.keys()) == {p["name"] for p in index["params"]}
PY
else
    echo "not read by the safetensors library: $python has no safetensors and numpy"
    skipped=1
    [ -z "${CI:-}" ] || failed=1
fi

expect 1 'No such file' "$zf" --plugin "$plugin" ckpt inspect "$dir/gone"

# a target that is no regular file is refused and stays what it is; a target that is one keeps its mode
printf 'kept' >"$dir/precious"
mkfifo "$dir/pipe.safetensors"
ln -s "$dir/precious" "$dir/away.safetensors"
mkdir "$dir/folder.safetensors"
for name in pipe away folder; do
    expect 1 "$name.safetensors: is not a regular file" timeout 20 "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/$name.safetensors"
done
{ [ -p "$dir/pipe.safetensors" ] && [ -L "$dir/away.safetensors" ] && [ "$(cat "$dir/precious")" = kept ]; } ||
    { echo "FAIL: something that is no regular file was replaced"; failed=1; }
chmod 600 "$dir/all.safetensors"
expect 0 float32 "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/all.safetensors"
[ "$(stat -c %a "$dir/all.safetensors")" = 600 ] || { echo "FAIL: the mode of a file was lost"; failed=1; }

# files that are none: refused at once
mkdir "$dir/fifo" "$dir/link"
mkfifo "$dir/fifo/zf_state.json"
ln -s "$dir/ckpt/zf_state.json" "$dir/link/zf_state.json"
expect 1 'not a regular file' timeout 20 "$zf" ckpt inspect "$dir/fifo"
expect 1 'not a regular file' timeout 20 "$zf" --plugin "$plugin" ckpt verify "$dir/fifo"
expect 1 'not a regular file' timeout 20 "$zf" --plugin "$plugin" ckpt consolidate "$dir/fifo" "$dir/again.safetensors"
expect 1 'symbolic link' "$zf" ckpt inspect "$dir/link"

# escapes of a terminal in names, values and broken JSON are shown, not sent: ESC, C1's CSI, DEL, a turned direction
mkdir "$dir/escapes" "$dir/broken"
printf '{"format":"zf.state","version":2,"plugin":"\\u009b31m","note":"a\\nb\\u007f","submitted":"\\u001b[31m","applied":1,"skipped":1,"step":1,"epoch_end":0,"last_choice":["\\u202eabc"],"config":{"\\u001b]0;x\\u0007":"\\u202eabc"},"rules":[{"name":"\\u001b"}],"files":[{"name":"\\u001bc","nbytes":1}],"params":[{"name":"\\u001b[2Jw\303\251","shape":[1],"dtype":"\\u001b","group":0,"tensors":{"\\u001bw":1}}]}' \
    >"$dir/escapes/zf_state.json"
printf '{"a":\033[31mred}' >"$dir/broken/zf_state.json"
expect 0 'x1b\[2Jwé' "$zf" ckpt inspect "$dir/escapes"
expect 0 '^note: a.x0ab.x7f$' "$zf" ckpt inspect "$dir/escapes"
expect 1 'zf_state.json' "$zf" ckpt inspect "$dir/broken"
for name in escapes broken; do
    "$zf" ckpt inspect "$dir/$name" >"$dir/shown" 2>&1
    if LC_ALL=C tr -d '\n' <"$dir/shown" | LC_ALL=C grep -q "$(printf '[\001-\037\177]\|\302[\200-\237]\|\342\200\256')"; then
        echo "FAIL: inspect sends control characters of a file to the terminal"
        failed=1
    fi
done

first=$(ls "$dir"/ckpt/*.safetensors)
printf '\377' | dd of="$first" bs=1 seek=4000 conv=notrunc 2>/dev/null
expect 1 damaged "$zf" --plugin "$plugin" ckpt verify "$dir/ckpt"
expect 1 damaged "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/again.safetensors"
[ ! -e "$dir/again.safetensors" ] || { echo "FAIL: a damaged checkpoint was consolidated"; failed=1; }
[ "$failed" -eq 0 ] || exit 1
[ "${skipped:-0}" -eq 0 ] || exit 77
