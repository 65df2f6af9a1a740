# SPDX-License-Identifier: Apache-2.0
"""A stand-in for zf-host: writes a report at once, and notes in $STAND_IN/started what it was asked for.

Files in $STAND_IN say what else it does: "wrong" the plugin's losses leave AdamW's; "fails" a run of the plugin ends with this exit
status; "stops" the run whose seed and optimizer it names waits until somebody has written to the pipe $STAND_IN/pipe; "cut" reports lack a loss."""
import array
import json
import os
import sys

folder = os.environ["STAND_IN"]
words = [w for w in sys.argv[1:] if w != "--quiet"]
told = {words[i]: words[i + 1] for i in range(0, len(words), 2)}


def said(name):
    try:
        with open(f"{folder}/{name}", encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def write(path, text, mode="w"):
    with open(path, mode, encoding="utf-8") as file:
        file.write(text)


who = f"{told['--seed']} {told['--optimizer']}"
write(f"{folder}/started", who + "\n", "a")
if said("stops") == who:
    write(f"{folder}/waits", str(os.getpid()))
    said("pipe")
is_plugin = told["--optimizer"] == "plugin"
if is_plugin and said("fails"):
    print("zf-host: the plugin gave up", file=sys.stderr)
    sys.exit(int(said("fails")))
with open(told["--examples"], "rb") as examples:
    data = examples.read()
n_header = int.from_bytes(data[:8], "little")
first, end = json.loads(data[8:8 + n_header])["dev.targets"]["data_offsets"]
answers = array.array("d", data[8 + n_header + first:8 + n_header + end])
n, seed = int(told["--steps"]), int(told["--seed"])
losses = [0.7 - 0.5 * i / n + 0.001 * seed + (1e-3 if is_plugin and said("wrong") and i == 5 else 0.0) for i in range(n)]
n_right = len(answers) * (80 + seed) // 100
report = {"losses": losses[1:] if said("cut") else losses, "seconds": 1.0,
          "predictions": [[x if i < n_right else 1 - x for i, x in enumerate(answers)]],
          "model": {"parameters": 1000}, "rows": {"train": 2, "dev": 2, "second_dev": 0, "skipped": 0}, "peak_rss_bytes": 1e6, "counters": {}}
write(told["--out"], json.dumps(report))
