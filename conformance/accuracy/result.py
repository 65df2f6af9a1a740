# SPDX-License-Identifier: Apache-2.0
"""The JSON file of one campaign: figures, verdicts, and of each arm the mean loss at every step."""

from __future__ import annotations

import json
import math
import statistics

from . import runs
from .text import VERDICTS, scores


def plain(value):
    """As JSON has it: 9 digits, and null for what is not finite."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def source(c: dict) -> dict:
    task, a, trainer, report = c["task"], c["options"], c["trainer"], c["runs"]["adamw"][0]
    out = {"area": "glue", "exit_status": c["exit_status"], "verdict": VERDICTS[c["exit_status"]], "trainer": trainer.name,
           "task": task.name, "metric": task.metrics[0], "is_synthetic": not a.data, "rows": report["rows"], "sha256": trainer.digests,
           "encoder_sha256": trainer.encoder[1] if trainer.encoder[1:] else "", "config_sha256": runs.digest(a.config) if a.config else "",
           "plugin": c["probes"]["zenflow"].version, "dtype": a.dtype, "products": a.products,
           "parameters": report["model"]["parameters"], "steps": a.steps, "batch": a.batch, "lr": float(a.lr), "margin": a.margin,
           "adamw_has_learned": not c["not_learned"]}
    if "device" in report:
        out["device"] = report["device"]
    return out


def judged(f: dict) -> dict:
    metric = f["metric"]
    return {"verdict": metric["verdict"], **{k: metric[k] for k in ("mean_difference", "lower", "upper", "seeds_needed")},
            "start": f["start"], "last_quarter_ratio": f["last_quarter"] / f["last_quarter_adamw"], "link_bytes_per_step": f["link"],
            "host_bytes_per_parameter": {k: v for k, v in f["memory"].items() if k != "device"},
            "device_bytes_per_parameter": f["memory"]["device"], "stall_us_per_step": f["stall_us"], "step_us": f["step_us"]}


def mean_losses(own) -> list:
    return [round(statistics.fmean(step), 6) for step in zip(*(r["losses"] for r in own))]


def curves(c: dict) -> dict:
    return {x.title: mean_losses(c["runs"][x.name]) for x in c["arms"]}


def arm(c: dict, x) -> dict:
    own = c["runs"][x.name]
    out = {"name": x.name, "title": x.title, "set": list(x.sets), "metric": scores(own, "metric"),
           "last_quarter_loss": [runs.last_quarter(r["losses"]) for r in own],
           "mean_losses": mean_losses(own)}
    if "dev_loss" in own[0]:
        out["dev_loss"] = [r["dev_loss"] for r in own]
    if "second" in own[0]:
        out["second_metric"] = scores(own, "second")
    return {**out, **(judged(c["figures"][x.name]) if x.name in c["figures"] else {})}


def write(c: dict, path: str) -> None:
    document = plain({**source(c), "arms": [arm(c, x) for x in c["arms"]]})
    members = []
    for name, value in document.items():  # a member to a line, an arm to a line: what changed is seen in a diff
        text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if name == "arms" else json.dumps(value)
        members.append(f" {json.dumps(name)}: {text}")
    runs.write(path, "{\n" + ",\n".join(members) + "\n}\n")
