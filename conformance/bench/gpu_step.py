#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_step.py - what a training step costs on a GPU: the reference host with the state on the device, synchronous, and ZenFlow.

    python3 conformance/bench/gpu_step.py KIT [--layers 24] [--hidden 2048] [--heads 16] [--batch 64] [--steps 40]
        [--max-tokens 64] [--dtype bf16] [--link] [--peers PYTHON] [--json FILE]

KIT is the folder of the unpacked gpu-kit, whose session.sh calls this. The default is an encoder of 1.2 billion parameters, random weights, on the generated corpus; each arm is one
zf-host of its own, one after the other. A step is the median of the last half of the run, by the host's clock, which waits for the
device once per step. Beside it: what the plugin counted (stall, bytes over the link), the bytes per parameter that it keeps on
device and host, and with --link the time that the link needs for these bytes by itself, at the rate that `zf ask link` measures. The state
on the device (state_mib = all) is the limit in time: the same step without any offloading. --peers: an interpreter with torch and
deepspeed, in which the same shape is trained by torch's fused AdamW and DeepSpeed's ZeRO-Offload: random tokens, random weights. Without
a GPU they run on the CPU, which shows only that they work.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

SHAPE = ("layers", "hidden", "heads", "batch", "steps", "max_tokens", "dtype")
ARMS = [("state on the device", ["device.state_mib=all"]),
        ("synchronous offload", ["zenflow.update_interval=1", "zenflow.publish_lag=0", "zenflow.predict=off"]),
        ("ZenFlow, defaults", []),
        ("ZenFlow, S = 4", ["zenflow.update_interval=4", "zenflow.full_warm_up_rounds=4"])]


def train(o, folder, sets):
    report = os.path.join(folder, "report.json")
    command = [os.path.join(o.kit, "bin/zf-host"), "--examples", os.path.join(folder, "examples"), "--device", "cuda",
               "--optimizer", "plugin", "--plugin", os.path.join(o.kit, "plugin/libzfplugin.so.0"), "--quiet", "--out", report]
    for name in ("layers", "hidden", "heads", "batch", "steps", "dtype"):
        command += ["--" + name, str(getattr(o, name))]
    command += ["--products", o.dtype] + [word for key in sets for word in ("--set", key)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return {"failure": done.stderr.strip().split("\n")[-1]}
    with open(report) as file:
        data = json.load(file)
    counted = data["counters"]
    return {"step_ms": 1e3 * data["step_seconds"], "stall_ms": 1e-3 * counted["stall_us_per_step"],
            "link_gbytes": 1e-9 * counted["link_bytes_per_step"], "device_bytes_per_param": counted["device_bytes_per_param"],
            "host_bytes_per_param": counted["host_bytes_per_param"], "device": data["device"], "parameters": data["model"]["parameters"],
            "loss": data["losses"][-1]}


def link_rate(kit):
    """Bytes per second of both directions together; None where it cannot be measured."""
    done = subprocess.run([os.path.join(kit, "bin/zf"), "ask", "link", "0"], stdout=subprocess.PIPE, text=True)
    return 1e9 * json.loads(done.stdout or "{}").get("both_gb_per_s", 0) or None


def show(rows, rate):
    first = next((r for _, r in rows if "step_ms" in r), None)
    if first is None:
        return
    print(f"{first['device']}; {first['parameters'] / 1e6:.1f} M parameters")
    print(f"{'':34s} {'step':>9s} {'of the':>7s} {'stall':>9s} {'link':>9s} {'link by':>9s} {'bytes per parameter':>21s}")
    print(f"{'':34s} {'ms':>9s} {'first':>7s} {'ms':>9s} {'GB/step':>9s} {'itself ms':>9s} {'device':>10s} {'host':>10s}")
    for name, r in rows:
        if "failure" in r:
            print(f"{name:34s} FAILED: {r['failure']}")
            continue
        alone = f"{1e3 * r['link_gbytes'] * 1e9 / rate:9.1f}" if rate and "link_gbytes" in r else f"{'-':>9s}"
        cell = lambda key, width, digits: f"{r[key]:{width}.{digits}f}" if key in r else f"{'-':>{width}s}"  # noqa: E731
        print(f"{name:34s} {r['step_ms']:9.1f} {r['step_ms'] / first['step_ms']:7.2f} {cell('stall_ms', 9, 1)} "
              f"{cell('link_gbytes', 9, 3)} {alone} {cell('device_bytes_per_param', 10, 2)} {cell('host_bytes_per_param', 10, 2)}")


def peers(o):
    rows = []
    for arm in ("torch", "deepspeed"):
        command = [o.peers, __file__, "-", "--arm", arm] + [f"--{name.replace('_', '-')}={getattr(o, name)}" for name in SHAPE]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = [line for line in done.stdout.split("\n") if line.startswith("{")]
        failure = (done.stderr.strip().split("\n") or [""])[-1]
        row = json.loads(lines[-1]) if done.returncode == 0 and lines else {"failure": failure}
        rows.append((row.pop("name", arm), row))
    return rows


# ---- peers, in an interpreter of theirs

def make_model(o, torch):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=4096, hidden_size=o.hidden, num_hidden_layers=o.layers, num_attention_heads=o.heads,
                        intermediate_size=4 * o.hidden, max_position_embeddings=max(o.max_tokens, 8), num_labels=2,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForSequenceClassification(config).to(torch.bfloat16 if o.dtype == "bf16" else torch.float32)


def torch_steps(o, torch, device):
    model = make_model(o, torch).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(ids, labels):
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, "torch AdamW fused, on the device"


def deepspeed_steps(o, torch, device):
    if device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29577")
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": o.batch, "steps_per_print": 10**9, "gradient_clipping": 1.0,
              "bf16": {"enabled": o.dtype == "bf16"},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
              "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": device != "cpu"}}}
    deepspeed.init_distributed("gloo" if device == "cpu" else "nccl")
    model = make_model(o, torch)
    engine, _, _, _ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())

    def step(ids, labels):
        engine.backward(engine(input_ids=ids, labels=labels).loss)
        engine.step()

    return step, f"DeepSpeed {deepspeed.__version__} ZeRO-Offload"


def peer(o):
    """One line of JSON: the median step of the last half."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    step, name = (torch_steps if o.arm == "torch" else deepspeed_steps)(o, torch, device)
    times = []
    for _ in range(o.steps):
        ids = torch.randint(4, 4096, (o.batch, o.max_tokens), device=device)
        labels = torch.randint(0, 2, (o.batch,), device=device)
        begin = time.perf_counter()
        step(ids, labels)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    half = sorted(times[len(times) // 2:])
    print(json.dumps({"name": name, "step_ms": 1e3 * half[len(half) // 2]}))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kit")
    for name, default in (("layers", 24), ("hidden", 2048), ("heads", 16), ("batch", 64), ("steps", 40), ("max-tokens", 64)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--link", action="store_true")
    parser.add_argument("--peers")
    parser.add_argument("--json")
    parser.add_argument("--arm", choices=("torch", "deepspeed"), help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.arm:
        return peer(o)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        words = ["--synthetic", os.path.join(folder, "corpus"), "--max-tokens", str(o.max_tokens), "--out", os.path.join(folder, "examples")]
        subprocess.run([sys.executable, "-m", "zfplugin.accuracy", "examples", *words], check=True)
        for name, sets in ARMS:
            print(f"  {name} ...", file=sys.stderr, flush=True)
            rows.append((name, train(o, folder, sets)))
    rows += peers(o) if o.peers else []
    show(rows, link_rate(o.kit) if o.link else None)
    if o.json:
        with open(o.json, "w") as file:
            json.dump({"shape": vars(o), "rows": [dict(r, name=name) for name, r in rows]}, file, indent=1)
    return 1 if any("failure" in r for _, r in rows[:len(ARMS)]) else 0


if __name__ == "__main__":
    sys.exit(main())
