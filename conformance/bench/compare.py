#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare.py OLD.so NEW.so - what hooks and replays cost in two builds of the plugin, side by side in one run.

    conformance/bench/compare.py OLD.so NEW.so [--rounds 9] [--repeat 61] [--only grads|replay|step|process]
                                 [--config TEXT] [--new-config TEXT]

Each is measured by the zf-bench-hooks of its own build tree, since a plugin of another ABI is refused. A round runs it once with
each, and the order changes from round to round. What is compared is CPU time of the calling thread for hooks, of the workers for
replays, of the whole process for steps with all that comes of them; of each figure the median over all rounds, and beside it the least, which a busy machine spoils last. A step takes
one of two times, by where the threads that it wakes find a core, so few repetitions tell nothing about it. So does a replay: by whether two workers share a
core; of it the first quartile of a run is taken. Exit status 0:
measured, whatever the figures say.

Builds whose defaults differ do different work: --config gives both the same INI text ("\\n" ends a line), --new-config the new one
alone, for keys that the old one does not know."""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# what is measured: (what names a row, what is compared, unit, the section of zf-bench-hooks)
SECTIONS = {"grads": (("dtype", "mode", "tensors_per_call"), "cpu_ns", "ns per tensor", "grads"),
            "replay": (("tensors", "elems"), "q1_ns", "ns per element", "replay"),
            "step": (("tensors",), "cpu_ns", "ns per step", "step"),
            "process": (("tensors",), "process_cpu_ns", "ns per step", "step")}


def measure(bench, plugin, section, repeat, config):
    """{name of a row: figure} of one run of the benchmark; an older one may not have the figure."""
    names, figure, _, section = SECTIONS[section]
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([bench, "--plugin", plugin, "--only", section, "--repeat", str(repeat), "--json", out.name,
                        *(["--config", config.replace("\\n", "\n")] if config else [])],
                       check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(Path(out.name).read_text(encoding="utf-8"))[section]["rows"]
    return {" ".join(str(row[name]) for name in names): row[figure] for row in rows if figure in row}


def bench_of(plugin):
    """The benchmark in the build tree of a plugin: build/plugin/libzfplugin.so."""
    return Path(plugin).resolve().parent.parent / "conformance/bench/zf-bench-hooks"


def run(plugins, configs, section, rounds, repeat):
    """{name of a row: (figures of the old one, figures of the new one)}."""
    found = {}
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            for name, value in measure(bench_of(plugins[which]), plugins[which], section, repeat, configs[which]).items():
                found.setdefault(name, ([], []))[which].append(value)
        print(f"{section}: round {i + 1} of {rounds}", file=sys.stderr)
    return found


def summarise(found):
    """One dictionary a row."""
    out = []
    for name, (old, new) in found.items():
        if not old or not new:
            continue
        medians, least = (statistics.median(old), statistics.median(new)), (min(old), min(new))
        out.append({"row": name, "old": medians[0], "new": medians[1], "ratio": medians[1] / medians[0],
                    "old_least": least[0], "new_least": least[1], "ratio_least": least[1] / least[0]})
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeat", type=int, default=61)
    parser.add_argument("--only", choices=list(SECTIONS))
    parser.add_argument("--config")
    parser.add_argument("--new-config")
    args = parser.parse_args()
    for bench in map(bench_of, (args.old, args.new)):
        if not bench.is_file():
            parser.error(f"no benchmark at {bench}: build target zf-bench-hooks with -DZF_BENCH=ON")
    for section in [args.only] if args.only else SECTIONS:
        rows = summarise(run((args.old, args.new), (args.config, args.new_config or args.config), section, args.rounds, args.repeat))
        print(f"\n{section} ({SECTIONS[section][2]}), {args.rounds} rounds | {'old':>10} {'new':>10} {'new/old':>8} | of the least")
        for row in rows:
            print(f"  {row['row']:>40} | {row['old']:10.4g} {row['new']:10.4g} {row['ratio']:8.2f} | {row['ratio_least']:8.2f}")


if __name__ == "__main__":
    main()
