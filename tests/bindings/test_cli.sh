#!/bin/sh
# test_cli.sh ZF STATE_EXAMPLE PLUGIN - the command line: configuration keys, and a checkpoint inspected, verified and
# consolidated; what is damaged or called wrongly is refused. With python3 and its safetensors package the files are
# also read by that library.
set -u
zf=$1
example=$2
plugin=$3
failed=0
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

# expect STATUS TEXT COMMAND...: exit status, and a text in what is printed
expect() {
    want=$1
    text=$2
    shift 2
    out=$("$@" 2>&1)
    status=$?
    if [ "$status" -ne "$want" ] || ! echo "$out" | grep -q -- "$text"; then
        echo "FAIL: $*: exit status $status, want $want; no \"$text\" in: $out"
        failed=1
    fi
}

expect 0 'update_interval = ' "$zf" --plugin "$plugin" config
"$zf" --plugin "$plugin" config >"$dir/all.ini"
printf '[zenflow]\nupdate_intervall = 4\n' >"$dir/bad.ini"
printf '[zenflow]\nupdate_interval = 4\n' >"$dir/good.ini"
expect 0 correct "$zf" --plugin "$plugin" config "$dir/good.ini"
expect 1 update_interval "$zf" --plugin "$plugin" config "$dir/bad.ini"
expect 1 'No such file' "$zf" --plugin "$plugin" config "$dir/none.ini"
expect 2 usage "$zf"
expect 2 usage "$zf" ckpt
expect 2 usage "$zf" ckpt verify
expect 0 consolidate "$zf" --help

"$example" "$dir/ckpt" "$dir/weights.bin" || { echo "FAIL: no checkpoint was made"; exit 1; }
expect 0 'exact checkpoint' "$zf" ckpt inspect "$dir/ckpt"
expect 0 'sound; exact' "$zf" --plugin "$plugin" ckpt verify "$dir/ckpt"
expect 0 float32 "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/all.safetensors"
# the data behind the header are the exported weights, one parameter after another
n=$(od -An -t u8 -N 8 "$dir/all.safetensors" | tr -d ' ')
tail -c +$((n + 9)) "$dir/all.safetensors" | cmp -s - "$dir/weights.bin" || { echo "FAIL: other weights"; failed=1; }
expect 1 'cannot open' "$zf" --plugin "$plugin" ckpt verify "$dir/none"
expect 1 . "$zf" ckpt inspect "$dir/none"
expect 1 . "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/none/file"

if python3 -c 'import safetensors, numpy' 2>/dev/null; then
    python3 - "$dir" <<'PY' || { echo "FAIL: the safetensors library"; failed=1; }
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
                assert zlib.crc32(raw[t["offset"]:t["offset"] + t["nbytes"]]) == t["crc32"], name
                if key in ("w", "m", "v"):
                    a = f.get_tensor(name)
                    assert list(a.shape) == param["shape"] and a.dtype == "float32", name
                    assert a.tobytes() == raw[t["offset"]:t["offset"] + t["nbytes"]], name
                n += 1
assert n == sum(len(p["tensors"]) for p in index["params"])
with safe_open(dir + "/all.safetensors", "np") as f:
    assert set(f.keys()) == {p["name"] for p in index["params"]}
PY
else
    echo "not read by the safetensors library: python3 has no safetensors and numpy"
    skipped=1
fi

first=$(ls "$dir"/ckpt/*.safetensors)
printf '\377' | dd of="$first" bs=1 seek=4000 conv=notrunc 2>/dev/null
expect 1 damaged "$zf" --plugin "$plugin" ckpt verify "$dir/ckpt"
expect 1 damaged "$zf" --plugin "$plugin" ckpt consolidate "$dir/ckpt" "$dir/again.safetensors"
[ ! -e "$dir/again.safetensors" ] || { echo "FAIL: a damaged checkpoint was consolidated"; failed=1; }
[ "$failed" -eq 0 ] || exit 1
[ "${skipped:-0}" -eq 0 ] || exit 77
