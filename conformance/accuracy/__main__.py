# SPDX-License-Identifier: Apache-2.0
"""python3 -m zfplugin.accuracy glue|ablation [options]. Exit status: 0 conforms, 1 does not, 2 could not run, 3 inconclusive."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback

from .runs import CannotRun, PluginFailed

COMMANDS = {"glue": ".glue", "ablation": ".ablation.command", "examples": ".examples"}


def need_scipy() -> None:
    try:
        importlib.import_module("scipy.special")
    except ImportError:
        raise CannotRun(f"scipy is not installed for {sys.executable}: apt-get install python3-scipy, or pip install "
                        "scipy, or set ZF_PYTHON to a Python that has it") from None


def main(argv=None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in COMMANDS:
        print("accuracy: glue, ablation or examples is needed first; each has --help", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that runs under way are ended, too
    try:
        if "--help" not in argv and (argv[0] != "examples" or any(word.startswith("--model") for word in argv)):
            need_scipy()
        command = importlib.import_module(COMMANDS[argv[0]], __package__)
        return command.main(argv[1:])
    except (CannotRun, PluginFailed) as problem:
        sys.stdout.flush()
        print(f"zf-conform {argv[0]}: {problem}", file=sys.stderr)
        return 1 if isinstance(problem, PluginFailed) else 2
    except KeyboardInterrupt:
        print(f"zf-conform {argv[0]}: stopped; finished runs are kept, the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except Exception:  # Python's own exit status would be 1, which says that the plugin does not conform
        traceback.print_exc()
        return 2


if __name__ == "__main__":
    sys.exit(main())
