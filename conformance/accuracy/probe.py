# SPDX-License-Identifier: Apache-2.0
"""What a plugin makes of a configuration, asked in a process of its own before hours of training are spent on it.

``python3 -m zfplugin.accuracy.probe PLUGIN CONFIG|- [SECTION.KEY=VALUE...]`` prints {"version": ..., "values": {"section.key": text}}.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import zfplugin
from zfplugin import errors

from .runs import CannotRun, last_line

DEADLINE_S = 60


@dataclasses.dataclass(frozen=True)
class Probe:
    version: str
    values: dict  # "section.key" to text; empty where the plugin does not say

    def number(self, key: str, fallback: float) -> float:
        """The effective value as a number ("true" = 1)."""
        text = self.values.get(key, "")
        if text in ("true", "false"):
            return float(text == "true")
        try:
            return float(text)
        except ValueError:
            return fallback


def python_path() -> tuple:
    """(name, value) of the variable with which a process of this Python finds this package."""
    own = str(Path(zfplugin.__file__).parent.parent)
    return ("PYTHONPATH", os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])]))


def ask(plugin: str, config: str | None, overrides) -> Probe:
    """Raises CannotRun with the plugin's or the loader's own words."""
    command = [sys.executable, "-m", __name__, plugin, config or "-", *overrides]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                              env={**os.environ, **dict([python_path()])})
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{plugin}: creating an instance took over {DEADLINE_S} s") from None
    if done.returncode < 0:
        raise CannotRun(f"{plugin}: creating an instance ended the process (signal {-done.returncode})")
    if done.returncode != 0:
        raise CannotRun(last_line(done.stderr))
    return Probe(**json.loads(last_line(done.stdout)))


def main(argv) -> int:
    plugin, config, overrides = argv[0], None if argv[1] == "-" else argv[1], argv[2:]
    logging.disable(logging.CRITICAL)
    try:
        library = zfplugin.load(plugin)
        with zfplugin.Instance(config, overrides, fetch=True, lib=library) as instance:
            print(json.dumps({"version": library.describe()["version"], "values": instance.config()}))
    except errors.ZfError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
