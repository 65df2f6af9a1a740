# SPDX-License-Identifier: Apache-2.0
"""The version, which CMakeLists.txt alone holds: read there in a checkout; of an installed package its metadata says it."""
import re
from importlib import metadata
from pathlib import Path


def _find():
    project = Path(__file__).resolve().parents[3] / "CMakeLists.txt"
    found = project.is_file() and re.search(r"^project\(zfplugin VERSION (\S+)", project.read_text(encoding="utf-8"), re.MULTILINE)
    try:
        return found.group(1) if found else metadata.version("zfplugin")
    except metadata.PackageNotFoundError:  # copied without either, as zf-conform's packages do
        return "unknown"


VERSION = _find()
