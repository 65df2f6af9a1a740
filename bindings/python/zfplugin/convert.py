# SPDX-License-Identifier: Apache-2.0
"""python -m zfplugin.convert OLD NEW - a checkpoint of version 1 as one of version 2 (abi/CHECKPOINT.md). Its windows must be closed, for
the plugin alone can do that. It keeps no selection, so windows begin with a warm-up; mode = exact goes on as it was."""
import json
import math
import os
import sys
import zlib

NAMES = ("AdamW", "Adam", "SGD", "SGD with Nesterov's momentum", "Lion", "")
KINDS, FILE = {"w": "F32", "m": "F32", "v": "F32", "n": "U32"}, "zf_state-00001.safetensors"
dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def convert(folder, target):
    with open(os.path.join(folder, "zf_state.json"), encoding="utf-8") as file:
        old = json.load(file)
    if old["version"] != 1 or any(name.split(".")[0] in ("slot", "publish") for param in old["params"] for name in param["tensors"]):
        sys.exit(f"{folder}: windows are open in it, or it is not of version 1: load it with the plugin that wrote it and save it compact")
    rules = [{"rule": at, "name": rule.get("name", NAMES[at]), "moments": rule.get("moments", 1 + (at < 2))} for rule in old["rules"] for at in [rule["rule"]]]
    params, parts, header, at = [], [], {"__metadata__": {"format": "zf.state"}}, 0
    for param in old["params"]:
        tensors, n_batch = {}, math.prod(param["shape"][:param["n_batch_axes"]])
        for array in ["w", *"mv"[:rules[param["group"]]["moments"]], "n"]:
            place = param["tensors"][array]
            tensors[array], end = [at, place["nbytes"], place["crc32"]], at + place["nbytes"]
            header[f"{array}/{param['name']}"] = {"dtype": KINDS[array], "shape": [place["nbytes"] // 4] if array == "n" else param["shape"],
                                                  "data_offsets": [at, end]}
            parts, at = [*parts, (old["files"][place["file"]]["name"], place["offset"], place["nbytes"])], end
        params.append({**{key: param[key] for key in ("name", "id", "group", "dtype", "shape")}, "batch_axes": param["n_batch_axes"],
                       "channels": param["channels"], "blocks": len(param["matrices"]) // n_batch, "file": 0, "tensors": tensors})
    text, clocks = dumps(header).encode(), old["clocks"]
    head = (len(text) + -len(text) % 8).to_bytes(8, "little") + text + b" " * (-len(text) % 8)
    for place in (place for param in params for place in param["tensors"].values()):
        place[0] += len(head)
    line = dumps({**{key: old[key] for key in ("plugin", "note", "part", "config") if key in old}, "step": 0,
                  "submitted": clocks["step"] + clocks["steps_before"], "applied": clocks["steps_applied"], "skipped": clocks["steps_skipped"],
                  "epoch_end": 0, "last_choice": [0], "is_mean": old["is_mean"], "rules": rules, "files": [{"name": FILE, "nbytes": len(head) + at, "header_nbytes": len(head), "header_crc32": zlib.crc32(head)}], "params": params})[1:].encode()
    os.mkdir(target)
    with open(os.path.join(target, FILE), "wb") as out, open(os.path.join(target, "zf_state.json"), "wb") as index:
        out.write(head)
        for name, first, nbytes in parts:
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(first)
                out.write(file.read(nbytes))
        index.write(b'{"format":"zf.state","version":2,"crc32":"%08x",\n' % zlib.crc32(line) + line + b"\n")


if __name__ == "__main__":
    convert(*sys.argv[1:])
