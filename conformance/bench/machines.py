#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What fits eight machines of three models, and what `mode = exact` and windows of two steps cost there, as `zf plan` says:
conformance/bench/machines.py BUILD [TOKENS]

The table of docs/tools.md, in Markdown, at TOKENS per rank and step (16384). A machine is given by the figures of its data sheet; 0.4 of a
device's peak and 0.6 of a memory's are what training and replays reach, and the latter is named beside each."""
import json
import os
import subprocess
import sys
import tempfile

MEMORY_SHARE = 0.6
# name, device's bf16 TFLOP/s, GiB of the card and of the host, link GB/s each way, memory GB/s of the host, ranks on it
MACHINES = [
    ("laptop, 2 x DDR5", 60, 16, 64, 12, 90, 1),
    ("desktop, 2 x DDR5", 165, 24, 128, 25, 90, 1),
    ("workstation, 8 x DDR5", 180, 48, 256, 50, 300, 1),
    ("server, one A100, 8 x DDR4", 312, 80, 512, 25, 200, 1),
    ("server, one H100, 8 x DDR5", 990, 80, 512, 50, 300, 1),
    ("GH200", 990, 96, 480, 200, 500, 1),
    ("server, 8 x A100, 16 x DDR4", 312, 80, 1024, 25, 400, 8),
    ("server, 8 x H100, 24 x DDR5", 990, 80, 2048, 50, 900, 8),
]
WAYS = {"kept": "", "released": " r", "streamed": " s"}
LLAMA = {"model_type": "llama", "vocab_size": 32000}
MODELS = {
    "1.5 G": {"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
              "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "7.2 G": {**LLAMA, "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8},
    "13 G": {**LLAMA, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40},
}


def plan(zf, model, machine, tokens):
    """What `zf plan --json` says; also where nothing fits."""
    _, tflops, gpu, ram, link, memory, n_ranks = machine
    ranks = ["--ranks", str(n_ranks), "--local-ranks", str(n_ranks), "--stage", "1", "--net", "300"] if n_ranks > 1 else []
    done = subprocess.run([*zf, "plan", model, "--json", "--tokens", str(tokens), "--tflops", str(tflops), "--link", str(link), "--gpu", str(gpu),
                           "--ram", str(ram), "--host", f"{MEMORY_SHARE * memory:g}", *ranks], capture_output=True, text=True, check=False)
    if done.returncode > 1 or not done.stdout:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def cell(found):
    """Speeds of exact and of windows of two steps, each with lag 0; what else is said of the way that fits, or what the one needs that lacks least."""
    if not found["does_fit"]:
        way = min(found["ways"], key=lambda way: max(way["card_nbytes"] - found["card_room_nbytes"], 0) + max(way["host_nbytes"] - found["room_nbytes"], 0))
        return f"no: needs {way['card_nbytes'] / 2**30 + 1:.0f}, {way['host_nbytes'] / 2**30 + 4:.0f}"
    way, mib = found["taken"], found["exact_state_mib"]
    steps = {(row["update_interval"], row["publish_lag"]): f"{found['plain_s'] / row['step_s']:.2f}" for row in found["choices"] if row["does_fit"]}
    return (f"{steps[1, 0]}, {steps.get((2, 0), '-')}{WAYS[way['way']]}" + " b" * (way["moments_dtype"] != "float32") + " c" * way["recompute"]
            + (f"; {max(mib / 1024, 0.1):.1f} GiB" if mib else "") + (f"; {way['state_mib'] / 1024:.0f} GiB held" if way["state_mib"] else ""))


def row(zf, machine, tokens=16384):
    """A machine's row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for config in MODELS.values():
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            found.append(plan(zf, file.name, machine, tokens))
    count = f"{machine[6]} x " if machine[6] > 1 else ""
    return f"| {machine[0]} | {count}{machine[2]}, {machine[3]} | {MEMORY_SHARE * machine[5]:.0f} | {' | '.join(map(cell, found))} |"


def main():
    build, *tokens = sys.argv[1:]
    zf = [os.path.join(build, "bindings", "cli", "zf"), "--plugin", os.path.join(build, "plugin", "libzfplugin.so.0")]
    print("| machine | card, host GiB | host GB/s | " + " | ".join(MODELS) + " |\n|---|---|---" + "|---" * len(MODELS) + "|")
    for machine in MACHINES:
        print(row(zf, machine, *map(int, tokens)), flush=True)


if __name__ == "__main__":
    main()
