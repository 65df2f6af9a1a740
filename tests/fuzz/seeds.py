# SPDX-License-Identifier: Apache-2.0
"""seeds.py - writes the corpora config, hooks, safetensors and tsv: python3 tests/fuzz/seeds.py. (checkpoint: make_seeds.c.)

All by hand or from a fixed generator; nothing of a real data set.
"""
import json
import random
import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"

CONFIG = {
    "all-keys": "[zenflow]\ntopk_ratio = 0.25\nselect_strategy = step\nselect_interval = auto\n"
                "update_interval = 8\nfull_warm_up_rounds = 20\npublish_lag = 0\n"
                "mode = windows\npredict = auto\n[host]\nthreads = 3\naffinity = none\nmemory_limit_mib = 4096\n"
                "deadline_ms = 5000\nmoments_dtype = bfloat16\n[log]\nlevel = warn\n",
    "auto": "# comment\n[zenflow]\ntopk_ratio=.5 ; comment\nupdate_interval=auto\nselect_strategy=auto\n"
            "select_interval=auto\n",
    "mean": "[zenflow]\nmode = mean\npredict = auto\n",
    "gone": "[zenflow]\r\ndeferred = moments\r\naccumulate_on = device\r\n[host]\r\nmoments_dtype = bfloat16_stochastic\r\n",
    "wrong": "[zenflow]\ntopk_ratio = 2\nupdate_intervall = 4\nupdate_interval = 4\nupdate_interval = 5\n[nonsense]\na = b\n"
             "lr = 0.1\n[shard]\nx\n",
    "overrides": "[host]\nthreads = 0\n\0zenflow.update_interval=2\0host.threads=7\0log.level=debug\0zenflow.predict=off",
    "numbers": "[zenflow]\ntopk_ratio = 1e-3\nselect_strategy = auto\n[host]\nmemory_limit_mib = 1099511627776\n"
               "deadline_ms = 86400000\nlocal_rank = 4095/4096\n[trace]\nfile = a steps 7..9\n[audit]\nfile = a every 7\n",
}

# the task's number, then a file in its layout
TSV = {
    "cola": (1, "gj04\t1\t\tThe cat sat.\ngj04\t0\t*\tCat the sat.\n"),
    "sst2": (0, "sentence\tlabel\na fine \"film\"\t1\nno film at all\t0\n"),
    "mrpc": (2, "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t10\t11\tHe said so .\tSo he said .\n0\t1\t2\tOne\tTwo\n"),
    "stsb": (6, "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
                "0\tg\tf\t2012\t1\ts\ts\tA plane.\tA jet.\t5.000\n1\tg\tf\t2012\t1\ts\ts\tA man.\tA boy.\t0.25\n"),
    "qqp": (7, "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWhy?\tHow?\t0\n1\t3\t4\tcut\n2\t5\t6\tWho?\tWhom?\t1\n"),
    "mnli": (8, "index\ta\tb\tc\td\te\tf\tg\tsentence1\tsentence2\tlabel1\tgold_label\n"
                "0\t1\t2\t3\t4\t5\t6\t7\tIt rains.\tIt is wet.\tx\tentailment\n"),
    "qnli": (4, "index\tquestion\tsentence\tlabel\n0\tWhat?\tThis.\tentailment\n1\tWhere?\tThat.\tnot_entailment\n"),
    "rte": (3, "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tnot_entailment\n"),
    "wnli": (5, "\ufeffindex\tsentence1\tsentence2\tlabel\n0\tIt fell.\tThe ball fell.\t1"),
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
    for name, (task, text) in TSV.items():
        write("tsv", name, bytes([task]) + text.encode())
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
