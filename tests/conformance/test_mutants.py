# SPDX-License-Identifier: Apache-2.0
"""test_mutants.py - the mutants that conformance/mutants.py finds in a small source, and what it must leave alone."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))
import mutants  # noqa: E402

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


if __name__ == "__main__":
    unittest.main()
