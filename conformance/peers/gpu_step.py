#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_step.py torch|deepspeed - a step of the same encoder by torch's AdamW, or by DeepSpeed's ZeRO-Offload, on a GPU.

    python3 conformance/peers/gpu_step.py deepspeed [--layers 24] [--hidden 2048] [--heads 16] [--batch 64] [--tokens 64] ...

One line of JSON: the median step of the last half. Random tokens, random weights. An optional tool (pip install torch
transformers deepspeed); without a GPU it runs on the CPU, which shows only that it works.
"""
import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != HERE]  # a file there has DeepSpeed's name


def make_model(o, torch):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=4096, hidden_size=o.hidden, num_hidden_layers=o.layers, num_attention_heads=o.heads,
                        intermediate_size=4 * o.hidden, max_position_embeddings=max(o.tokens, 8), num_labels=2,
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("arm", choices=("torch", "deepspeed"))
    for name, default in (("layers", 24), ("hidden", 2048), ("heads", 16), ("batch", 64), ("tokens", 64), ("steps", 40)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    o = parser.parse_args()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    step, name = (torch_steps if o.arm == "torch" else deepspeed_steps)(o, torch, device)
    times = []
    for _ in range(o.steps):
        ids = torch.randint(4, 4096, (o.batch, o.tokens), device=device)
        labels = torch.randint(0, 2, (o.batch,), device=device)
        begin = time.perf_counter()
        step(ids, labels)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    half = sorted(times[len(times) // 2:])
    print(json.dumps({"name": name, "step_ms": 1e3 * half[len(half) // 2]}))


if __name__ == "__main__":
    main()
