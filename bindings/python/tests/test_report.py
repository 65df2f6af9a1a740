# SPDX-License-Identifier: Apache-2.0
"""python -m zfplugin.report: what is read and refused, and every picture."""
import copy
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom
from pathlib import Path

import support

from zfplugin.report import draw, figures, results

HOSTILE = '</td><script>alert(1)</script>&"<$x$\x01\x7f'
LINK = {"down": 100e4, "publish": 20e4, "enter": 3e4, "down_formula": 100e4, "publish_formula": 25e4}
LOSSES = [0.7 - 0.01 * i for i in range(40)]


def ablation(name, bar, mean):
    return {"name": name, "bar": bar, "mean": mean, "cells": [{"mean": mean}]}


def tuned(interval, lag, verdict, step_s, stall_share, lateness):
    return {"update_interval": interval, "publish_lag": lag, "has_run": True, "verdict": verdict, "step_s": step_s,
            "stall_share": stall_share, "lateness": lateness}


SAMPLES = {
    "glue": {"area": "glue", "task": "sst2", "metric": "accuracy", "is_synthetic": True, "parameters": 853442, "batch": 32, "lr": 1e-3,
             "margin": 1, "arms": [
                 {"name": "adamw", "title": "AdamW", "metric": [80, 81], "mean_losses": LOSSES},
                 {"name": "zenflow", "title": HOSTILE, "metric": [80.5, 81], "mean_difference": 0.25, "lower": -1.2, "upper": None,
                  "link_bytes_per_step": LINK, "stall_us_per_step": 12, "mean_losses": [x + 0.01 for x in LOSSES]}]},
    "defaults": {"area": "defaults", "bars": {"fetches": {"worst": 0.02}, "does not fetch": {"worst": 0.04}},
                 "settings": [ablation("s4-lag0-auto", "fetches", 0.001), ablation("s8-lag1-0", "does not fetch", None),
                              ablation("adamw-x2", "", 0.3)]},
    "tune": {"area": "tune", "max_stall": 0.03, "settings": [
        tuned(1, 0, "stalls too long", 0.022263, 0.049, 0), tuned(2, 1, "chosen", 0.016068, 0.006, 0.00057),
        tuned(1, 1, "later, or slower", 0.017029, 0.012, 0.000991),
        {"update_interval": 8, "publish_lag": 0, "has_run": False, "verdict": HOSTILE}]},
}


def places(value, path=()):
    """The path of every value in a document, the document's own members first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def at(data, path):
    for key in path:
        data = data[key]
    return data


def put(data, path, value):
    at(data, path[:-1])[path[-1]] = value


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


class Refused(Folder):
    def refused(self, text, *places_):
        with self.assertRaises(results.ResultError) as caught:
            results.read([str(p) for p in places_ or (self.folder,)])
        self.assertEqual(str(caught.exception).count("\n"), 0)
        self.assertIn(text, str(caught.exception))

    def test_files_that_end_early(self):
        for area, sample in SAMPLES.items():
            whole = json.dumps(sample, indent=1)
            for n in range(1, len(whole) - 1, 7):
                (self.folder / f"{area}.json").write_text(whole[:n])
                with self.assertRaisesRegex(results.ResultError, rf"{area}\.json:[0-9]+:[0-9]+: .*; the file is damaged or cut"):
                    results.read([str(self.folder)])
            (self.folder / f"{area}.json").unlink()

    def test_any_value_in_any_place(self):
        """Either it is drawn, or the file is named. Nothing else escapes."""
        n_refused = 0
        for area, sample in SAMPLES.items():
            for path in places(sample):
                for value in (None, HOSTILE, [], {"x": []}):
                    data = copy.deepcopy(sample)
                    put(data, path, value)
                    try:
                        figures.figures_of(area, data)
                    except figures.UNFIT:
                        n_refused += 1
        self.assertGreater(n_refused, 100)

    def test_what_is_wrong_is_said_with_file_and_place(self):
        for text, said in ((b'{"area": "glue",\n "lr": NaN}', "found NaN; a JSON number is needed; the file is damaged"),
                           (b'{"area": "\xff"}', "byte 10: found 0xff; UTF-8 is needed"),
                           (b"[" * 100000, "")):
            (self.folder / "glue.json").write_bytes(text)
            self.refused("glue.json: " + said)
        (self.folder / "glue.json").unlink()
        self.refused("no results of an area (AREA.json) in ")
        self.refused("no such file or folder", self.folder / "nowhere")
        self.refused('no "area" that has pictures', self.keep("x", {"area": "x"}))

    def test_the_command_ends_with_status_2_and_one_line(self):
        self.keep("glue")
        self.keep("tune", {**SAMPLES["tune"], "settings": 3}, "tune-3")
        for arguments in (["tune-3.json", "--plots", "out"], ["nowhere", "--plots", "x"], ["glue.json", "--plots", "glue.json/x"], ["glue.json", "--plots", "out", "--only", "nonsense"]):
            done = self.start(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertRegex(done.stderr, r"^zfplugin\.report: [^\n]+\n$")
        self.assertIn("no plot nonsense", done.stderr)
        self.assertEqual(self.start(".").returncode, 2)

    def test_a_missing_matplotlib_is_named_with_what_installs_it(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError('hidden by the test')\n")
        done = self.start(".", "--plots", "x", PYTHONPATH=os.pathsep.join((str(self.folder), str(support.HERE.parent))))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "zfplugin.report: matplotlib is missing (hidden by the test); apt-get install python3-matplotlib, or: "
                                      "python3 -m pip install matplotlib\n")


class Numbers(unittest.TestCase):
    def test_intervals_are_student_s(self):
        mean, low, high = figures.interval([1.0, 2.0, 3.0])
        self.assertAlmostEqual(mean, 2.0)
        self.assertAlmostEqual(high - mean, 4.3027 / math.sqrt(3), places=4)
        self.assertAlmostEqual(mean - low, high - mean)
        self.assertTrue(math.isnan(figures.interval([1.0])[1]) and math.isnan(figures.interval([])[0]))

class Pictures(Folder):
    def test_every_picture_is_labelled_and_the_same_each_time(self):
        names = []
        for area, sample in SAMPLES.items():
            for figure in figures.figures_of(area, sample):
                names.append(f"{area} {figure.name}".strip())
                svg = draw.rendered(figure.draw)
                self.assertEqual(svg, draw.rendered(figure.draw), names[-1])
                xml.dom.minidom.parseString(svg)
                axes = [axes for axes in figure.draw().axes if axes.axison][-1]
                self.assertTrue(axes.get_xlabel(), names[-1])
                self.assertTrue(axes.get_ylabel() or any(t.get_text() for t in axes.get_yticklabels()), names[-1])
        self.assertEqual(names, ["glue", "glue relative", "glue scores", "glue differences", "glue link", "glue stall", "defaults fetching",
                                 "defaults not-fetching", "defaults other", "tune"])

    def test_the_choice_of_tune_is_marked(self):
        """Three runs of four settings: hollow where it stalls too long, a ring around the one that was chosen."""
        axes = figures.figures_of("tune", SAMPLES["tune"])[0].draw().axes[0]
        at_ = [tuple(round(float(x), 6) for x in c.get_offsets()[0]) for c in axes.collections]
        self.assertEqual(at_, [(22.263, 0.0), (16.068, 0.00057), (16.068, 0.00057), (17.029, 0.000991)])
        self.assertEqual([len(c.get_facecolor()) for c in axes.collections], [0, 1, 0, 1])
        self.assertEqual([t.get_text() for t in axes.get_legend().get_texts()],
                         ["S = 1, lag 0: stalls too long", "S = 2, lag 1: chosen", "S = 1, lag 1: later, or slower"])
        self.assertIn("loss", axes.get_ylabel())
        unmeasured = copy.deepcopy(SAMPLES["tune"])
        unmeasured["settings"][1]["lateness"] = None
        axes = figures.figures_of("tune", unmeasured)[0].draw().axes[0]
        self.assertIn("age", axes.get_ylabel())
        self.assertEqual([float(c.get_offsets()[0][1]) for c in axes.collections], [0, 2, 2, 1])

    def test_files_are_named_after_their_results(self):
        self.keep("glue", name="fine-tune-cola")
        self.keep("defaults")
        done = self.start(".", "--plots", "out", "--only", "loss,fetching")
        self.assertEqual((done.returncode, done.stdout), (0, "out/defaults-fetching.svg\nout/fine-tune-cola.svg\n"), done.stderr)
        done = self.start("fine-tune-cola.json", "--plots", "png", "--only", "scores", "--format", "png")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.folder / "png" / "fine-tune-cola-scores.png").read_bytes()[:4], b"\x89PNG")


if __name__ == "__main__":
    unittest.main()
