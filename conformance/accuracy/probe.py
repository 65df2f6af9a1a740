# SPDX-License-Identifier: Apache-2.0
"""What a plugin makes of a configuration, asked before hours of training are spent on it."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import zfplugin
from zfplugin import errors

from .runs import CannotRun

SILENT = logging.Logger("silent", logging.CRITICAL)


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
    try:
        library = zfplugin.load(plugin)
        with zfplugin.Instance([*filter(None, [config]), *overrides], fetch=True, lib=library, log=SILENT) as instance:
            return Probe(library.describe()["version"], instance.config())
    except errors.ZfError as error:
        raise CannotRun(" ".join(str(error).split())) from None
