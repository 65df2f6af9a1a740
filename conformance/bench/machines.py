#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `mode = exact` and windows of two steps cost on eight machines and three models, as `zf plan` says:
conformance/bench/machines.py BUILD [TOKENS]

Printed is the speed relative to training without offload at TOKENS per rank and step (16384), and the state on the device with which exact waits
for 3 % of a step. A machine is given by the figures of its data sheet; 0.4 of a device's peak and 0.6 of a memory's are what training and replays
reach. docs/tools.md shows the table."""
import json
import os
import subprocess
import sys
import tempfile

TOKENS, MEMORY_SHARE = int(sys.argv[2]) if len(sys.argv) > 2 else 16384, 0.6
# name, device's bf16 TFLOP/s, link GB/s each way, memory GB/s of the host, ranks on it
MACHINES = [
    ("laptop, 16 GB card, 2 x DDR5", 60, 12, 90, 1),
    ("desktop, 24 GB card, 2 x DDR5", 165, 25, 90, 1),
    ("workstation, 48 GB card, 8 x DDR5", 180, 50, 300, 1),
    ("server, one A100 80 GB, 8 x DDR4", 312, 25, 200, 1),
    ("server, one H100 80 GB, 8 x DDR5", 990, 50, 300, 1),
    ("GH200", 990, 200, 500, 1),
    ("server, 8 x A100 80 GB, 16 x DDR4", 312, 25, 400, 8),
    ("server, 8 x H100 80 GB, 24 x DDR5", 990, 50, 900, 8),
]
LLAMA = {"model_type": "llama", "vocab_size": 32000}
MODELS = {
    "1.5 G": {"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
              "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "7.2 G": {**LLAMA, "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8},
    "13 G": {**LLAMA, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40},
}


def speeds(zf, model, machine):
    """Of exact, and of windows of two steps, each with lag 0; and MiB of state on the device with which exact waits for little."""
    _, tflops, link, memory, n_ranks = machine
    ranks = ["--ranks", str(n_ranks), "--local-ranks", str(n_ranks), "--stage", "1", "--net", "300"] if n_ranks > 1 else []
    done = subprocess.run([*zf, "plan", model, "--json", "--tokens", str(TOKENS), "--tflops", str(tflops), "--link", str(link),
                           "--host", str(MEMORY_SHARE * memory), *ranks], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    by_setting = {(row["update_interval"], row["publish_lag"]): row["compute_s"] / row["step_s"] for row in found["choices"]}
    return by_setting[1, 0], by_setting[2, 0], found["exact_state_mib"]


def main():
    build = sys.argv[1]
    zf = [os.path.join(build, "bindings", "cli", "zf"), "--plugin", os.path.join(build, "plugin", "libzfplugin.so.1")]
    print("| machine | " + " | ".join(f"{name}: exact, S = 2" for name in MODELS) + " |\n|---" + "|---" * len(MODELS) + "|")
    with tempfile.TemporaryDirectory() as folder:
        models = []
        for name, config in MODELS.items():
            models.append(os.path.join(folder, f"{name}.json"))
            with open(models[-1], "w", encoding="utf-8") as file:
                json.dump(config, file)
        for machine in MACHINES:
            cells = []
            for model in models:
                exact, windows, mib = speeds(zf, model, machine)
                cells.append(f"{exact:.2f}, {windows:.2f}" + (f"; {mib / 1024:.0f} GiB" if mib else ""))
            print(f"| {machine[0]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
