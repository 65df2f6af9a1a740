# SPDX-License-Identifier: Apache-2.0
"""seeds.py FOLDER - writes the corpora config, hooks and safetensors. (checkpoint: make_seeds.c.)

All by hand or from a fixed generator; nothing of a real data set.
"""
import json
import random
import struct
import sys
from pathlib import Path

CORPUS = Path(sys.argv[1])

CONFIG = {
    "all-keys": "[zenflow]\ntopk_ratio = 0.25\nselect_strategy = step\nselect_interval = auto\n"
                "update_interval = 8\nfull_warm_up_rounds = 20\npublish_lag = 0\n"
                "mode = windows\npredict = auto\n[host]\nthreads = 3\nmemory_limit_mib = 4096\n"
                "deadline_ms = 5000\nmoments_dtype = bfloat16\n[shard]\nstage = 1\n",
    "auto": "# comment\n[zenflow]\ntopk_ratio=.5 ; comment\nupdate_interval=auto\nselect_strategy=auto\n"
            "select_interval=auto\n",
    "mean": "[zenflow]\nmode = mean\npredict = auto\n",
    "gone": "[zenflow]\r\ndeferred = moments\r\naccumulate_on = device\r\n[host]\r\nmoments_dtype = bfloat16_stochastic\r\n",
    "wrong": "[zenflow]\ntopk_ratio = 2\nupdate_intervall = 4\nupdate_interval = 4\nupdate_interval = 5\n[nonsense]\na = b\n"
             "lr = 0.1\n[shard]\nx\n",
    "overrides": "[host]\nthreads = 0\n\0zenflow.update_interval=2\0host.threads=7\0shard.stage=1\0zenflow.predict=off",
    "numbers": "[zenflow]\ntopk_ratio = 1e-3\nselect_strategy = auto\n[host]\nmemory_limit_mib = 1099511627776\n"
               "deadline_ms = 86400000\n[trace]\nfile = a steps 7..9\n[audit]\nfile = a every 7\n",
    "long": f"[trace]\nfile = {'a' * 191}\n[audit]\nfile = {'b' * 64} every 2\n",
}


def safetensors(tensors, tail=b""):
    header, at = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    return json.dumps(header, separators=(",", ":")).encode(), bytes(range(at)) + tail


def write(folder, name, data):
    (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    (CORPUS / folder / name).write_bytes(data)


def main():
    for name, text in CONFIG.items():
        write("config", name, text.encode())
    files = {"two": {"a": ("F32", [2, 3], 24), "b": ("BF16", [4], 8)}, "words": {"w": ("I64", [2], 16), "a": ("F16", [], 2)},
             "empty": {}, "zero": {"a": ("F32", [0, 7], 0)}}
    for name, tensors in files.items():
        header, data = safetensors(tensors)
        write("safetensors", name, bytes([len(data)]) + header + data)
    header, data = safetensors(files["two"])
    write("safetensors", "raw", bytes([255]) + struct.pack("<Q", len(header)) + header + data)
    meta = b'{"__metadata__":{"format":"pt","\\u00e9":"x"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   '
    write("safetensors", "metadata", bytes([4]) + meta + bytes(4))
    rng = random.Random(1)
    for number in range(12):
        write("hooks", f"random{number}", bytes(rng.randrange(256) for _ in range(150 + 60 * number)))
        # few seldom cases: bytes whose remainders are small
        write("hooks", f"plain{number}", bytes(rng.choice((0, 1, 2, 3, 16, 17, 64, 96)) + rng.randrange(3)
                                               for _ in range(150 + 60 * number)))


if __name__ == "__main__":
    main()
