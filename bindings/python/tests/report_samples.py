# SPDX-License-Identifier: Apache-2.0
"""What the tests of the report share: a small result of every area, and a folder to keep them in."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

from zfplugin.report import shapes
from zfplugin.report.__main__ import SECTIONS

HOSTILE = '</td><script>alert(1)</script>&"<$x$\x01\x7f'
SOURCE = {"plugin": "0.1.0", "task": "sst2", "metric": "accuracy", "is_synthetic": True, "dtype": "fp32", "parameters": 853442, "steps": 40,
          "batch": 32, "lr": 1e-3, "sha256": {"train": "48eac263"}}
LINK = {"down": 100e4, "publish": 20e4, "enter": 3e4, "down_formula": 100e4, "publish_formula": 25e4}
LOSSES = [0.7 - 0.01 * i for i in range(40)]
SAMPLES = {
    "abi": {"area": "abi", "exit_status": 1, "summary": "1 rule broken", "unit": "checks", "checks": [
        {"group": "proof 5", "name": "null", "verdict": "PASS", "text": "refused", "count": 86, "details": []},
        {"group": "proof 5", "name": HOSTILE, "verdict": "FAIL", "text": HOSTILE, "details": [HOSTILE, "line\nbreak"]}]},
    "glue": {"area": "glue", **SOURCE, "exit_status": 3, "margin": 1, "arms": [
        {"name": "adamw", "title": "AdamW", "metric": [80, 81], "mean_losses": LOSSES},
        {"name": "zenflow", "title": "ZenFlow", "metric": [80.5, 81], "verdict": "INCONCLUSIVE", "mean_difference": 0.25, "lower": -1.2,
         "upper": None, "start": {"conforms": True}, "last_quarter_ratio": 1.02, "link_bytes_per_step": LINK, "stall_us_per_step": 12,
         "step_us": 7000, "host_bytes_per_parameter": {"mapped": 28.6}, "mean_losses": [x + 0.01 for x in LOSSES]}]},
    "defaults": {"area": "defaults", "plugin": "0.1.0", "exit_status": 0,
                 "bars": {"fetches": {"mean": 0.005, "worst": 0.02}, "does not fetch": {"mean": 0.01, "worst": 0.04}},
                 "cells": [{"name": "gpt", "what": HOSTILE, "trained_by": "PyTorch", "dtype": "fp32", "steps": 300, "batch": 8, "lr": 1e-3,
                            "seeds": 2, "first_loss": 5.0, "adamw_loss": None}],
                 "settings": [
                     {"name": "s4-lag0-auto", "bar": "fetches", "mean": 0.001, "worst": 0.004, "worst_cell": "gpt", "verdict": "held",
                      "cells": [{"cell": "gpt", "gaps": [0.001, 0.002], "mean": 0.0015, "error": 0.0005}]},
                     {"name": "s8-lag1-0", "bar": "does not fetch", "mean": None, "worst": None, "worst_cell": "gpt", "verdict": "MISSED",
                      "cells": [{"cell": "gpt", "gaps": [None], "mean": None, "error": None}]},
                     {"name": "adamw-x2", "bar": "", "mean": 0.3, "worst": 0.3, "worst_cell": "gpt", "verdict": "-",
                      "cells": [{"cell": "gpt", "gaps": [0.3], "mean": 0.3, "error": None}]}]},
    "perf": {"area": "perf", "exit_status": 0, "rows": [
        {"gradient": "bf16", "interval": 4, "down_formula": 2, "up_formula": 0.5, "host_formula": 19.5, "faults": "",
         "measured": {"n_elems": 5e6, "down": 2, "up": 0.5, "records": 0.01, "enter": 0.02, "state": 12, "slots": 7, "publish": 0.5,
                      "planned": 19.7, "mapped": 19.7, "device_mapped": 1.5, "outside": 22, "hook_allocations": 0, "stall_us": 100,
                      "step_us": 9000}}]},
    "tune": {"area": "tune", "max_stall": 0.03, "settings": [
        {"update_interval": 1, "publish_lag": 0, "has_run": True, "verdict": "stalls too long", "steps": 142, "step_s": 0.022263,
         "stall_share": 0.049, "lateness": 0},
        {"update_interval": 2, "publish_lag": 1, "has_run": True, "verdict": "chosen", "steps": 142, "step_s": 0.016068,
         "stall_share": 0.006, "lateness": 0.00057},
        {"update_interval": 1, "publish_lag": 1, "has_run": True, "verdict": "later, or slower", "steps": 142, "step_s": 0.017029,
         "stall_share": 0.012, "lateness": 0.000991},
        {"update_interval": 8, "publish_lag": 0, "has_run": False, "verdict": HOSTILE}]},
}


def section(area, data):
    shapes.check_area(area, data)
    return SECTIONS[area](data)


def places(value, path=()):
    """The path of every value in a document, the document's own members first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def put(data, path, value):
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def keep(self, area, data=None, name=None):
        path = self.folder / f"{name or area}.json"
        path.write_text(json.dumps(data or SAMPLES[area]))
        return path

    def start(self, *arguments, **environment):
        return subprocess.run([sys.executable, "-m", "zfplugin.report", *map(str, arguments)], capture_output=True, text=True, check=False,
                              cwd=self.folder, env={**os.environ, "PYTHONPATH": str(support.HERE.parent), **environment})
