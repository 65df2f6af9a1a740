# SPDX-License-Identifier: Apache-2.0
"""What is trained: the cells (a task at one learning rate) and the settings of the plugin, by their names."""

from __future__ import annotations

import dataclasses
import re

from ..runs import CannotRun

# Short runs with the default warm-up of 50 synchronous steps would hide what late values cost.
WARM_UP = 5


LANGUAGE = ("gpt", "llama")  # language models in PyTorch


@dataclasses.dataclass(frozen=True)
class Cell:
    """One task at one peak rate. AdamW, its schedule (linear rise over a tenth of the steps, linear fall to zero), decay 0.01 of matrices
    and the clip norm 1 are the same everywhere."""

    name: str
    what: str  # one line for readers
    task: str  # GLUE's, or a family of LANGUAGE
    steps: int
    batch: int
    lr: float
    is_pretrained: bool = False
    dtype: str = "fp32"  # of parameters and gradients; AdamW and the plugin keep fp32 master weights
    more: tuple[str, ...] = ()  # further options of zf-host

    def arguments(self) -> list[str]:
        """Options that zf-host and the language models' program (language.py) both know, then the cell's own."""
        out = ["--steps", str(self.steps), "--batch", str(self.batch), "--lr", f"{self.lr:g}"]
        return ["--family", self.task, *out] if self.task in LANGUAGE else [*out, "--dtype", self.dtype, *self.more]


CELLS = {c.name: c for c in (
    Cell("sst2-scratch", "SST-2, encoder from scratch", "sst2", 600, 32, 1e-3),
    Cell("sst2-scratch-2e-3", "the same at twice the rate", "sst2", 600, 32, 2e-3),
    Cell("sst2-scratch-2000", "the same at 1e-3, 2000 steps", "sst2", 2000, 32, 1e-3),
    Cell("sst2-scratch-bf16", "SST-2 from scratch, parameters and gradients in bf16", "sst2", 600, 32, 1e-3, dtype="bf16"),
    Cell("overlap-scratch", "regression (words that two sentences share), 4 layers from scratch", "stsb", 300, 16, 1e-3,
         more=("--layers", "4")),
    Cell("gpt", "language model (bytes of sentences), GPT-2, from scratch", "gpt", 300, 8, 1e-3),
    Cell("llama", "the same, Llama", "llama", 300, 8, 1e-3),
    Cell("gpt-4e-3", "GPT-2 at four times the rate", "gpt", 300, 8, 4e-3),
    Cell("cola-tune", "CoLA, pretrained encoder", "cola", 150, 8, 1e-4, is_pretrained=True),
    Cell("cola-tune-3e-4", "the same at three times the rate", "cola", 150, 8, 3e-4, is_pretrained=True),
    Cell("overlap-tune", "regression (shared words), pretrained encoder", "stsb", 120, 8, 1e-4, is_pretrained=True),
    Cell("sst2-tune-bf16", "SST-2, pretrained encoder, bf16", "sst2", 60, 8, 2e-4, is_pretrained=True, dtype="bf16"),
)}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A configuration of the plugin, AdamW at another rate, or an optimizer of another library."""

    name: str
    overrides: tuple[str, ...] = ()  # "section.key=value"
    rate_factor: float = 1.0  # AdamW alone: on the peak rate
    optimizer: str = "plugin"  # one of language.OPTIMIZERS

    @property
    def is_plugin(self) -> bool:
        return self.optimizer == "plugin"

    def trains(self, cell: Cell) -> bool:
        return cell.task in LANGUAGE or self.optimizer in ("plugin", "adamw")


MOMENTS, OTHERS = ("bfloat16_stochastic", "int8_bfloat16", "int8"), ("bitsandbytes", "torchao")
ADAMW = Setting("adamw", optimizer="adamw")
OWN = {s.name: s for s in (ADAMW, *(Setting(mode, (f"zenflow.mode={mode}",)) for mode in ("exact", "windows")),
                           *(Setting(m, (f"host.moments_dtype={m}",)) for m in MOMENTS), *(Setting(o, optimizer=o) for o in OTHERS))}

GRAMMAR = f"s<S>-lag<0|1>-<0|auto>[-k<topk_ratio>][-w<full_warm_up_rounds>], adamw-x<factor on the rate>, {', '.join(OWN)}"

GROUPS = {
    "core": ("s4-lag0-auto", "s2-lag0-auto", "s4-lag1-auto", "s2-lag1-auto", "s1-lag1-auto", "s4-lag1-0"),
    "noise": ("adamw-x1.003",),
    "moments": (*MOMENTS, *OTHERS),
}


def setting(name: str) -> Setting:
    """The setting that a name describes (GRAMMAR); CannotRun where it describes none."""
    if name in OWN:
        return OWN[name]
    if found := re.fullmatch(r"adamw-x(\d+(?:\.\d+)?)", name):
        return Setting(name, rate_factor=float(found[1]), optimizer="adamw")
    found = re.fullmatch(r"s(\d+)-lag([01])-(auto|0)(?:-k(\d+(?:\.\d+)?))?(?:-w(\d+))?", name)
    if not found:
        raise CannotRun(f"setting {name!r}: need {GRAMMAR}, or a group: {', '.join(GROUPS)}")
    interval, lag, predict, topk, warm_up = found.groups()
    keys = {"update_interval": interval, "publish_lag": lag, "predict": "auto" if predict == "auto" else "off", "topk_ratio": topk,
            "full_warm_up_rounds": warm_up or WARM_UP}
    return Setting(name, tuple(f"zenflow.{k}={v}" for k, v in keys.items() if v is not None))


def settings(text: str) -> list[Setting]:
    """Of a comma-separated list of names and groups, each once, in its order."""
    names = [n for part in text.split(",") for n in GROUPS.get(part, (part,))]
    return [setting(n) for n in dict.fromkeys(names)]


def cells(text: str) -> list[Cell]:
    """Of a comma-separated list of names; "all" is every cell."""
    names = list(CELLS) if text == "all" else text.split(",")
    if unknown := [n for n in names if n not in CELLS]:
        raise CannotRun(f"task {unknown[0]!r}: need some of {', '.join(CELLS)}")
    return [CELLS[n] for n in dict.fromkeys(names)]
