# SPDX-License-Identifier: Apache-2.0
"""python -m zfplugin.report without a picture: what is read and refused, how numbers and text are written."""
import copy
import json
import math
import os
import unittest
import xml.dom.minidom

import support
from report_samples import HOSTILE, SAMPLES, Folder, places, put, section

from zfplugin.report import accuracy, blocks, shapes
from zfplugin.report.__main__ import SECTIONS
from zfplugin.report.page import escape
from zfplugin.report.results import ResultError, read


class Refused(Folder):
    def refused(self, text, *places_):
        with self.assertRaises(ResultError) as caught:
            read([str(p) for p in places_ or (self.folder,)])
        self.assertEqual(str(caught.exception).count("\n"), 0)
        self.assertIn(text, str(caught.exception))

    def test_files_that_end_early(self):
        for area, sample in SAMPLES.items():
            whole = json.dumps(sample, indent=1)
            for n in range(1, len(whole) - 1, 7):
                (self.folder / f"{area}.json").write_text(whole[:n])
                line = whole[:n].count("\n") + 1
                with self.assertRaisesRegex(ResultError, rf"{area}\.json:[0-9]+:[0-9]+: .*; the file is damaged or cut") as caught:
                    read([str(self.folder)])
                self.assertLessEqual(int(str(caught.exception).split(":")[1]), line)
            (self.folder / f"{area}.json").unlink()

    def test_any_value_in_any_place(self):
        """Either it fits, and a section is made, or the place is named. Nothing else escapes."""
        n_refused = 0
        for area, sample in SAMPLES.items():
            for path in places(sample):
                for value in (None, -1, 1e300, HOSTILE, [], {"x": []}, True):
                    data = copy.deepcopy(sample)
                    put(data, path, value)
                    try:
                        section(area, data)
                    except shapes.Unfit as error:
                        n_refused += 1
                        self.assertRegex(str(error), r"^.+: found .+; .+ is needed$")
                        names = [str(key) for key in path if isinstance(key, str)]
                        self.assertTrue(any(name in str(error) for name in names) or value in ({"x": []}, []), (path, str(error)))
        self.assertGreater(n_refused, 500)

    def test_numbers_and_lists_that_cannot_be_drawn(self):
        for area, path, value, said in (
                ("glue", ("margin",), True, "margin: found True; a number below 10^15, or null is needed"),
                ("glue", ("margin",), 1e300, "margin: found 1e+300; a number"),
                ("glue", ("margin",), math.inf, "margin: found inf; a number"),
                ("glue", ("arms",), [], "arms: found a list of 0; AdamW's arm")):
            data = copy.deepcopy(SAMPLES[area])
            put(data, path, value)
            with self.assertRaises(shapes.Unfit) as caught:
                section(area, data)
            self.assertTrue(str(caught.exception).startswith(said), str(caught.exception))

    def test_files_of_one_area_in_the_place_of_another(self):
        for area in SAMPLES:
            for other in SAMPLES:
                data = {**SAMPLES[other], "area": area}
                if area != other:
                    with self.assertRaises(shapes.Unfit):
                        section(area, data)

    def test_what_is_wrong_is_said_with_file_and_place(self):
        self.keep("glue", {**SAMPLES["glue"], "margin": "one"})
        self.refused("glue.json: margin: found 'one'; a number below 10^15, or null is needed")
        self.keep("glue", {**SAMPLES["glue"], "arms": [{"name": "adamw", "mean_losses": []}]})
        self.refused('glue.json: arms[0]: found an object of 2; the member "metric" is needed')
        (self.folder / "glue.json").write_text('{"area": "glue",\n "lr": NaN}')
        self.refused("glue.json: found NaN; a JSON number is needed; the file is damaged")
        (self.folder / "glue.json").write_text('{"area": "glue", "lr": 1e999}')
        self.refused("glue.json: ")
        (self.folder / "glue.json").write_bytes(b'{"area": "\xff"}')
        self.refused("glue.json: byte 10: found 0xff; UTF-8 is needed")
        (self.folder / "glue.json").write_text("[" * 100000)
        self.refused("glue.json: ")
        (self.folder / "glue.json").write_text("[1]")
        self.refused("glue.json: the document: found a list of 1; an object is needed")
        (self.folder / "glue.json").unlink()
        self.refused("no results of an area (AREA.json) in ")
        self.refused("no such file or folder", self.folder / "nowhere")
        self.refused('no "area" that the report knows', self.keep("x", {"area": "x"}))

    def test_a_missing_matplotlib_is_named_with_what_installs_it(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError('hidden by the test')\n")
        self.keep("abi")
        path = os.pathsep.join((str(self.folder), str(support.HERE.parent)))
        done = self.start(".", "--page", "x.html", PYTHONPATH=path)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "zfplugin.report: matplotlib is missing (hidden by the test); apt-get install python3-matplotlib, or: "
                                      "python3 -m pip install matplotlib\n")


class Kept(unittest.TestCase):
    def test_the_results_of_this_repository_can_be_read(self):
        folder = support.ROOT / "conformance" / "results"
        results = read([str(folder)])
        self.assertEqual({r.area for r in results}, {"glue", "defaults", "perf"})
        for result in results:
            self.assertTrue(SECTIONS[result.area](result.data).summary)


class Written(unittest.TestCase):
    def test_text_is_escaped_as_xml_needs_it(self):
        odd = "".join(map(chr, [*range(0x20), 0x7f, 0x85, 0xd800, 0xfffe, 0x20ac, 0x1f600])) + "<&\">'"
        back = xml.dom.minidom.parseString(f'<a b="{escape(odd)}">{escape(odd)}</a>'.encode()).documentElement.firstChild.data
        self.assertEqual(back, "?" * 9 + "\t\n" + "?" * 25 + "€😀<&\">'")

    def test_numbers_are_for_readers(self):
        for given, text in ((0.27112345, "0.2711"), (12.345, "12.35"), (1.23e-7, "1.23e-07"), (None, "-"), (math.nan, "-"), (4, "4"),
                            (4346275.0, "4\u202f346\u202f275")):
            self.assertEqual(blocks.number(given), text)
        self.assertEqual([blocks.fixed(x, 1) for x in (-12345.55, 1234.0, None)], ["-12\u202f345.5", "1234.0", "-"])
        self.assertEqual([blocks.percent(x) for x in (1.023, 0.9, None)], ["+2.3 %", "-10.0 %", "-"])

    def test_intervals_are_student_s(self):
        for n, quantile in ((1, 12.7062), (15, 2.1314), (30, 2.0423), (31, 2.0395), (60, 2.0003), (120, 1.9799)):
            self.assertAlmostEqual(accuracy.student(n), quantile, delta=1e-4)
        mean, low, high = accuracy.interval([1.0, 2.0, 3.0])
        self.assertAlmostEqual(mean, 2.0)
        self.assertAlmostEqual(high - mean, 4.3027 / math.sqrt(3), places=4)
        self.assertAlmostEqual(mean - low, high - mean)
        self.assertTrue(math.isnan(accuracy.interval([1.0])[1]) and math.isnan(accuracy.interval([])[0]))

    def test_curves_are_smoothed_once(self):
        self.assertEqual(accuracy.smooth([1, 2, 6, 4, 5], 1), [1.5, 3, 4, 5, 4.5])
        x, y = accuracy.losses({"mean_losses": [float(i) for i in range(2000)]})
        self.assertEqual((x[:2], x[-1], len(x), y[100]), ([5, 10], 2000, 400, 504.0))


if __name__ == "__main__":
    unittest.main()
