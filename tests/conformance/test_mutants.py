# SPDX-License-Identifier: Apache-2.0
"""test_mutants.py - the mutants that conformance/mutants.py finds in a small source, and what it must leave alone; and
in which order they are judged."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))
import mutant_bench  # noqa: E402
import mutants  # noqa: E402
import mutate  # noqa: E402

SOURCE = '''/* a < b + 1 */
#define TWO (1 + 1)
enum { MOST = 7 };
static int f(int a, int *b) {
    int c = -a; // 3 + 4
    const char *text = "5 + 6 < 7";
    if (a < 3 && *b != '+') {
        store(b, text);
        *b += 2;
    }
    return c;
}
'''


class Mutants(unittest.TestCase):
    def setUp(self):
        self.found = list(mutants.find("f.c", SOURCE))

    def after(self, kind):
        return sorted(m.after for m in self.found if m.kind == kind)

    def test_kinds(self):
        self.assertEqual(self.after("constant"), ["*b += 3;", "enum { MOST = 8 };", "if (a < 4 && *b != '+') {"])
        self.assertEqual(self.after("compare"), ["if (a < 3 && *b == '+') {", "if (a <= 3 && *b != '+') {"])
        self.assertEqual(self.after("logic"), ["if (a < 3 || *b != '+') {"])
        self.assertEqual(self.after("condition"), ["if (!(a < 3 && *b != '+')) {"])
        self.assertEqual(self.after("arithmetic"), ["*b -= 2;"])
        self.assertEqual([m.before for m in self.found if m.kind == "statement"], ["store(b, text);", "*b += 2;"])

    def test_text_preprocessor_and_comments_stay(self):
        self.assertEqual({m.line for m in self.found}, {3, 7, 8, 9})

    def test_a_mutant_is_one_line(self):
        for mutant in self.found:
            self.assertEqual(SOURCE.split("\n")[mutant.line - 1].strip(), mutant.before)
            self.assertNotEqual(mutant.before, mutant.after)
            self.assertNotIn("\n", mutant.text)

    def test_names_are_unique_and_know_no_line_number(self):
        doubled = list(mutants.find("f.c", SOURCE + SOURCE))
        self.assertEqual(len({m.name for m in doubled}), len(doubled))
        self.assertEqual({m.name for m in self.found}, {m.name for m in mutants.find("f.c", "\n\n" + SOURCE)})


class Judges(unittest.TestCase):
    def some(self):
        return [mutant_bench.CheckTest(name, name, [], {}, "", seconds) for name, seconds in
                (("test_slow", 9), ("test_quick", 1), ("test_load", 5), ("cuda_exact", 30))]

    def order(self, file, costs):
        return [t.name for t in mutant_bench.check_order(self.some(), file, costs)]

    def test_every_check_program_judges_and_the_likely_ones_come_first(self):
        costs = mutant_bench.Costs()
        self.assertEqual(self.order("plugin/state/load.c", costs), ["test_load", "test_quick", "test_slow", "cuda_exact"])
        costs.kills["plugin/state", "test_slow"] = 1
        self.assertEqual(self.order("plugin/state/load.c", costs), ["test_load", "test_slow", "test_quick", "cuda_exact"])
        self.assertEqual(self.order("plugin/plan/plan.c", costs), ["test_quick", "test_load", "test_slow", "cuda_exact"])

    def test_the_double_comes_first_for_the_cuda_backend(self):
        self.assertEqual(self.order("plugin/device/cuda/stream.c", mutant_bench.Costs())[0], "cuda_exact")

    def test_a_failure_must_come_twice(self):
        bench = mutant_bench.Bench.__new__(mutant_bench.Bench)
        bench.costs = mutant_bench.Costs()
        build = mutant_bench.Build.__new__(mutant_bench.Build)
        for statuses, is_killed in (([0], False), ([77], False), ([1, 0], False), ([1, 1], True), ([None], True)):
            left = list(statuses)
            build.run_test = lambda test, limit_s: (left.pop(0), "")
            self.assertEqual(bench.judge_by_tests(build, self.some()[:1], "f.c")[0], is_killed, statuses)
            self.assertEqual(left, [])

    def test_equivalent_mutants_are_not_counted(self):
        equal = [{"name": "a | b | c | 0", "killed_by": "check", "why": "test_load"}, {"name": "a | b | d | 0", "killed_by": "", "why": "survived"}]
        by, judged, share = mutate.count(equal, {})
        self.assertEqual((by["check"], by["survived"], judged, share), (1, 1, 2, 50.0))
        self.assertEqual(mutate.count(equal, {"a | b | d | 0": "why"})[1:], (1, 100.0))


if __name__ == "__main__":
    unittest.main()
