# SPDX-License-Identifier: Apache-2.0
"""torch.optim.AdamW(fused=True) beside the plugin's replay, per window of S updates of the same number of parameters.

usage: peer_adamw.py PATH_OF_zf-bench-host

The peer makes S optimizer steps on fp32 gradients: 28 bytes of memory traffic per parameter and step. The replay makes the
same S updates in one pass: 24 bytes of state, S bf16 gradients, 2 bytes of visible value. Both use all cores. The two
alternate; medians. Weights are identical only up to rounding (other order of operations).
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time

import torch

N_PARAMS = 16 << 20
WINDOWS = (1, 2, 4, 8, 16)
REPEATS = 5


def new_optimizer():
    """One flat parameter with a gradient, and its optimizer after a first step (state allocated)."""
    weight = torch.nn.Parameter(torch.full((N_PARAMS,), 0.02))
    weight.grad = torch.randn(N_PARAMS) * 1e-2
    optimizer = torch.optim.AdamW([weight], lr=1e-5, weight_decay=0.01, fused=True)
    optimizer.step()
    return optimizer


def peer_window_seconds(optimizer, n_updates):
    begin = time.perf_counter()
    for _ in range(n_updates):
        optimizer.step()
    return time.perf_counter() - begin


def replay_window_seconds(bench):
    """{S: seconds} of the best instruction set, bf16 gradients, all cores."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        subprocess.run(
            [bench, "--elems", str(N_PARAMS >> 20), "--repeat", "3", "--json", report.name],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows = json.load(report)["rows"]
    n_threads = max(row["threads"] for row in rows)
    seconds = {}
    for row in rows:
        if row["threads"] == n_threads and row["grad_dtype"] == "bf16":
            took = N_PARAMS / row["params_per_s"]
            seconds[row["slots"]] = min(took, seconds.get(row["slots"], took))
    return seconds


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    optimizer = new_optimizer()
    ours = {n: [] for n in WINDOWS}
    peer = {n: [] for n in WINDOWS}
    for _ in range(REPEATS):
        for n, seconds in replay_window_seconds(sys.argv[1]).items():
            ours[n].append(seconds)
        for n in WINDOWS:
            peer[n].append(peer_window_seconds(optimizer, n))
    print(f"peer: torch {torch.__version__} AdamW(fused=True), {torch.get_num_threads()} threads, {N_PARAMS >> 20} Mi parameters")
    print(f"{'S':>3} | {'replay ms':>10} | {'peer ms':>10} | {'peer / replay':>13}")
    for n in WINDOWS:
        a, b = statistics.median(ours[n]), statistics.median(peer[n])
        print(f"{n:>3} | {1e3 * a:>10.2f} | {1e3 * b:>10.2f} | {b / a:>13.2f}")


if __name__ == "__main__":
    main()
