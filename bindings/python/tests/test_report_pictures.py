# SPDX-License-Identifier: Apache-2.0
"""python -m zfplugin.report with matplotlib: the page and every picture."""
import copy
import re
import unittest
import xml.dom.minidom

from report_samples import SAMPLES, Folder, places, put, section

from zfplugin.report import blocks, draw, shapes
from zfplugin.report.page import page
from zfplugin.report.results import Result

try:
    import matplotlib
except ImportError:
    matplotlib = None


def text_boxes(make):
    """[(text, its place)] of all text of a figure: titles, labels, ticks, legends."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    with matplotlib.rc_context(draw.STYLE):
        drawn = make()
        canvas = FigureCanvasAgg(drawn)
        canvas.draw()
        hidden = set()
        for axis in [axis for axes in drawn.axes for axis in (axes.xaxis, axes.yaxis)]:
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                hidden |= {id(tick.label2)} if low <= tick.get_loc() <= high else {id(tick.label1), id(tick.label2)}
        found = [t for t in drawn.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in hidden]
        return [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in found]


@unittest.skipUnless(matplotlib, "matplotlib is not installed")
class Page(Folder):
    def test_every_section_stands_in_a_well_formed_page(self):
        for area in SAMPLES:
            self.keep(area)
        self.keep("glue", {**SAMPLES["glue"], "task": "cola"}, "glue-cola")
        self.keep("report", {"area": "report", "ran": [{"area": "abi", "exit_status": 1, "seconds": 12.3},
                                                       {"area": "exact", "exit_status": 139, "seconds": 1}]})
        done = self.start(".", "--page", "page.html")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "page.html\n", ""))
        text = (self.folder / "page.html").read_text()
        xml.dom.minidom.parseString(text.encode())
        self.assertNotIn("<script", text)
        self.assertFalse(re.findall(r'(?:src|href)="(?!data:image/svg|#)', text))
        self.assertNotIn("url(", text)
        for needed in ("1 rule broken", "Score of every seed", "Difference of every seed", "MISSED", "INCONCLUSIVE", "SYNTHETIC",
                       "Bytes over the link against the formula", "Host memory against the formula", "Stall",
                       "left no results; exit status 139", "Not run.", "publish_lag", "Training loss relative to AdamW&#x27;s", "cola: ",
                       '<td class="n">12</td>', "&lt;/td&gt;&lt;script&gt;alert(1)"):
            self.assertIn(needed, text)
        for area in shapes.AREAS:
            self.assertEqual(text.count(f'<section id="{area}">'), area != "report", area)

    def test_the_command_ends_with_status_2_and_one_line(self):
        self.keep("abi")
        for arguments in (["nowhere", "--page", "x.html"], [".", "--page", "no/folder/x.html"], [".", "--plots", "abi.json/x"]):
            done = self.start(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertRegex(done.stderr, r"^zfplugin\.report: [^\n]+\n$")
        self.assertFalse(list(self.folder.glob("*.html*")))
        self.assertEqual(self.start(".").returncode, 2)


@unittest.skipUnless(matplotlib, "matplotlib is not installed")
class Pictures(Folder):
    def test_every_picture_is_labelled_and_the_same_each_time(self):
        names = []
        for area, sample in SAMPLES.items():
            for figure in section(area, sample).figures():
                names.append(f"{area} {figure.name}".strip())
                svg = draw.rendered(figure.draw)
                self.assertEqual(svg, draw.rendered(figure.draw), names[-1])
                xml.dom.minidom.parseString(svg)
                drawn = figure.draw()
                shown = [axes for axes in drawn.axes if axes.axison]
                self.assertTrue(shown[-1].get_xlabel(), names[-1])
                for axes in shown:
                    labels = [t.get_text() for t in axes.get_yticklabels()]
                    self.assertTrue(axes.get_ylabel() or any(labels), names[-1])
        self.assertEqual(names, ["glue scores", "glue differences", "glue link", "glue stall", "glue", "glue relative", "defaults fetching", "defaults not-fetching", "defaults other",
                                 "perf link", "perf memory", "perf stall", "tune"])

    def test_the_choice_of_tune_is_marked(self):
        """Three runs of four settings: hollow where it stalls too long, a ring around the one that was chosen."""
        drawn = section("tune", SAMPLES["tune"]).figures()[0].draw()
        axes = drawn.axes[0]
        at = [tuple(round(float(x), 6) for x in c.get_offsets()[0]) for c in axes.collections]
        self.assertEqual(at, [(22.263, 0.0), (16.068, 0.00057), (16.068, 0.00057), (17.029, 0.000991)])
        self.assertEqual([len(c.get_facecolor()) for c in axes.collections], [0, 1, 0, 1])
        self.assertEqual([t.get_text() for t in axes.get_legend().get_texts()],
                         ["S = 1, lag 0: stalls too long", "S = 2, lag 1: chosen", "S = 1, lag 1: later, or slower"])
        self.assertIn("loss", axes.get_ylabel())
        unmeasured = copy.deepcopy(SAMPLES["tune"])
        unmeasured["settings"][1]["lateness"] = None
        axes = section("tune", unmeasured).figures()[0].draw().axes[0]
        self.assertIn("age", axes.get_ylabel())
        self.assertEqual([float(c.get_offsets()[0][1]) for c in axes.collections], [0, 2, 2, 1])

    def test_no_text_lies_over_another(self):
        data = copy.deepcopy(SAMPLES)
        data["glue"]["arms"][1]["title"] = "a very long name of an arm that somebody chose"
        data["defaults"]["settings"][0]["name"] = "a very long name of a setting"
        for area, sample in data.items():
            for figure in section(area, sample).figures():
                boxes = text_boxes(figure.draw)
                self.assertGreater(len(boxes), 2)
                for i, (text, box) in enumerate(boxes):
                    for other, other_box in boxes[:i]:
                        self.assertFalse(box.overlaps(other_box), f"{area} {figure.name}: {text!r} over {other!r}")

    def test_files_are_named_after_their_results(self):
        self.keep("glue", name="fine-tune-cola")
        self.keep("defaults")
        done = self.start(".", "--plots", "out", "--only", "loss,fetching")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(p.name for p in (self.folder / "out").iterdir()), ["defaults-fetching.svg", "fine-tune-cola.svg"])
        done = self.start("fine-tune-cola.json", "--plots", "png", "--only", "scores", "--format", "png")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.folder / "png" / "fine-tune-cola-scores.png").read_bytes()[:4], b"\x89PNG")
        self.assertIn("no plot nonsense", self.start(".", "--plots", "out", "--only", "nonsense").stderr)

    def test_numbers_that_are_not_there_are_left_out(self):
        for area, sample in SAMPLES.items():
            data = copy.deepcopy(sample)
            for path in list(places(data)):
                value = data
                for key in path:
                    value = value[key]
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    put(data, path, None)
            made = section(area, data)
            for figure in made.figures():
                self.assertIn(b"</svg>", draw.rendered(figure.draw), figure.title)
            self.assertNotIn("nan", page([Result(area, area, data, None)], [blocks.Section(made.summary, [
                b for b in made.blocks if not isinstance(b, blocks.Figure)])]))


if __name__ == "__main__":
    unittest.main()
