# SPDX-License-Identifier: Apache-2.0
"""A small language model trained once (a program; options as zf-host's): python3 -m zfplugin.accuracy.ablation.language --help.

Bytes of a text, contexts of 64, two layers of width 128 by transformers: GPT-2 (Radford et al. 2019; LayerNorm, GELU, tied embeddings) or
Llama (arXiv 2302.13971; RMSNorm, SwiGLU, rotary places, two heads of keys for four of queries). Seed: initial weights and the places of
the contexts. Writes {"losses": [...], "seconds": s, "model": {"parameters": n}}; a loss that is not finite ends it with exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
import transformers

from ..pytorch.train import Settings, Stepper, descend, groups, make_zenflow

CONTEXT, WIDTH, HEADS, LAYERS = 64, 128, 4, 2
FAMILIES = {
    "gpt": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, max_position_embeddings=CONTEXT, hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=2,
        num_hidden_layers=LAYERS, intermediate_size=344, bos_token_id=0, eos_token_id=0)),
}


def bitsandbytes(own, lr: float):
    import bitsandbytes.optim

    return bitsandbytes.optim.AdamW8bit(own, lr=lr)


def torchao(own, lr: float):
    import torchao.optim

    return torchao.optim.AdamW8bit(own, lr=lr)


OPTIMIZERS = {"adamw": torch.optim.AdamW, "bitsandbytes": bitsandbytes, "torchao": torchao}


def make_optimizer(args, model, s: Settings):
    make = OPTIMIZERS.get(args.optimizer)
    return make(groups(model, s.weight_decay), lr=s.lr) if make else make_zenflow(model, s, args.plugin, args.set)


def train(args) -> dict:
    with open(args.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    s = Settings("", lr=args.lr, batch=args.batch, steps=args.steps)
    torch.manual_seed(args.seed)
    model = FAMILIES[args.family]().train()
    stepper = Stepper(model, make_optimizer(args, model, s), s)
    draw = torch.Generator().manual_seed(1000 + args.seed)

    def loss_of_next():
        places = torch.randint(len(text) - CONTEXT, (s.batch, 1), generator=draw)
        ids = text[places + torch.arange(CONTEXT)]
        return model(input_ids=ids, labels=ids).loss

    losses, seconds = descend(stepper, (loss_of_next() for _ in range(s.steps)))
    stepper.finish()
    return {"losses": losses, "seconds": seconds, "model": {"parameters": sum(p.numel() for p in model.parameters())}}


def main(argv=None) -> int:
    p = argparse.ArgumentParser(prog="python3 -m zfplugin.accuracy.ablation.language", description=__doc__.split("\n")[0])
    p.add_argument("--family", choices=FAMILIES, default="gpt")
    p.add_argument("--data", required=True, help="a text file")
    p.add_argument("--optimizer", choices=("plugin", *OPTIMIZERS), default="adamw")
    p.add_argument("--plugin", help="libzfplugin.so")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--out", required=True, help="JSON file")
    args = p.parse_args(argv)
    torch.set_num_threads(1)
    try:
        result = train(args)
    except FloatingPointError as problem:
        print(f"language: {problem}", file=sys.stderr)
        return 1
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
