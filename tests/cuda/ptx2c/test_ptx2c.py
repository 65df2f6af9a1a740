# SPDX-License-Identifier: Apache-2.0
"""test_ptx2c.py FILE.ptx... - what the translator refuses, and that every form it knows stands in the PTX files given, which
the tests of opcodes and of the double run."""
import sys
import unittest
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import forms
import ptx
import ptx2c

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def kernel(*body, declarations=""):
    lines = "".join(f"\t{line}\n" for line in body)
    return (HEAD + declarations + ".visible .entry k(\n\t.param .u64 k_param_0,\n\t.param .align 8 .b8 k_param_1[20]\n)\n{\n"
            "\t.reg .pred %p<4>;\n\t.reg .b16 %rs<4>;\n\t.reg .f32 %f<8>;\n\t.reg .b32 %r<8>;\n\t.reg .f64 %fd<4>;\n"
            "\t.reg .b64 %rd<8>;\n\n" + lines + "\tret;\n}\n")


def translated(*body, **more):
    return ptx2c.translate("m", [text for _, text in ptx.split_kernels(kernel(*body, **more))], Counter())


class Refused(unittest.TestCase):
    def check(self, why, *body):
        with self.assertRaisesRegex(ptx.PtxError, why):
            translated(*body)

    def test_what_has_no_one_result(self):
        for line, why in {
            "add.f32 %f1, %f1, %f1;": "contracted",
            "mul.f64 %fd1, %fd1, %fd1;": "contracted",
            "add.rn.ftz.f32 %f1, %f1, %f1;": "denormals",
            "fma.rn.ftz.f32 %f1, %f1, %f1, %f1;": "denormals",
            "sqrt.approx.f32 %f1, %f1;": "not correctly rounded",
            "div.full.f32 %f1, %f1, %f1;": "not correctly rounded",
            "rcp.approx.ftz.f64 %fd1, %fd1;": "denormals|not correctly",
            "add.rz.f32 %f1, %f1, %f1;": "rounds otherwise",
            "fma.rm.f64 %fd1, %fd1, %fd1, %fd1;": "rounds otherwise",
            "atom.global.add.f32 %f1, [%rd1], %f1;": "order is not defined",
            "red.global.add.f64 [%rd1], %fd1;": "order is not defined",
            "ld.local.u32 %r1, [%rd1];": "local memory",
            "call.uni (%r1), f, (%r2);": "inlined",
        }.items():
            with self.subTest(line):
                self.check(why, line)

    def test_unknown(self):
        self.check("not known", "ex2.rn.f32 %f1, %f1;")
        self.check("not known", "add.sat.u32 %r1, %r1, %r1;")
        self.check("not declared", "mov.u32 %r1, %q7;")
        self.check("not declared", "mov.u32 %r1, %clock;")
        self.check("operand not understood", "mov.u32 %r1, nowhere;")
        self.check("only barrier 0", "bar.sync 1;")
        self.check("with a guard", "setp.eq.s32 %p1, 0, 0;", "@%p1 bar.sync 0;")
        self.check("no label", "bra nowhere;")
        self.check("directive", ".local .align 4 .b8 depot[16];")

    def test_functions(self):
        for text in (".func f()\n{\n\tret;\n}\n", ".const .align 4 .u32 t[3] = {1, 2};\n"):
            with self.assertRaisesRegex(ptx.PtxError, "line 4: not a kernel"):
                ptx.split_kernels(HEAD + text + kernel()[len(HEAD):])


class Reading(unittest.TestCase):
    def test_params_and_shared(self):
        arrays = "\t.shared .align 4 .b8 one[40];\n\t.shared .align 8 .b8 other[8];\n"
        (_, text), = ptx.split_kernels(kernel("mov.u32 %r1, one;").replace("\t.reg .pred", arrays + "\t.reg .pred"))
        k = ptx.read_kernel(text)
        self.assertEqual([(p.offset, p.nbytes) for p in k.params], [(0, 8), (8, 20)])
        self.assertEqual([(v.name, v.offset, v.nbytes) for v in k.shared], [("one", 0, 40), ("other", 48, 8)])

    def test_scopes_labels_and_guards(self):
        out = translated("setp.eq.s32 %p1, 1, 1;", "$L__BB0_1: { .reg .b32 inner; mov.u32 inner, 3; mov.u32 %r1, inner; }",
                         "@!%p1 bra $L__BB0_1;")
        self.assertIn("L__L__BB0_1:;", out)
        self.assertIn("if (!(v_p1 != 0)) { goto L__L__BB0_1; }", out)

    def test_a_block_hides_names(self):
        out = translated("mov.u32 %r1, 5;", "{ .reg .b32 %r1; mov.u32 %r1, 3; { .reg .b32 %r1; mov.u32 %r1, 2; } mov.u32 %r2, %r1; }",
                         "mov.u32 %r3, %r1;")
        for to, value in (("r1", "0x5ull"), ("r1_block1", "0x3ull"), ("r1_block2", "0x2ull"), ("r2", "v_r1_block1"), ("r3", "v_r1")):
            self.assertIn(f"v_{to} = (uint32_t)(((uint32_t){value}));", out)

    def test_line_numbers(self):
        with self.assertRaisesRegex(ptx.PtxError, "PTX line 16:"):
            translated("mov.u32 %r1, 0; // ex2 {", "/* two\n lines */", "ex2.rn.f32 %f1, %f1;")


class Stays(unittest.TestCase):
    """Registers that are read after a meeting, or before they are written, are kept between calls; others are variables."""

    def test_meetings(self):
        loop = ["mov.u32 %r1, 0;", "mov.u32 %r2, 1;", "$L1:", "mov.u32 %r3, 2;", "add.s32 %r1, %r1, %r3;", "bar.sync 0;",
                "setp.eq.s32 %p1, %r2, 1;", "@%p1 bra $L1;"]
        out = translated(*loop)
        for name, stays in (("r1", True), ("r2", True), ("r3", False), ("p1", False)):
            self.assertEqual(f"r->{name} = " in out, stays, name)
            self.assertEqual(f"v_{name} = " in out, not stays, name)

    def test_a_guarded_write_keeps_what_was(self):
        out = translated("setp.eq.s32 %p1, 1, 1;", "mov.u32 %r1, 3;", "bar.sync 0;", "@%p1 mov.u32 %r1, 4;", "st.global.u32 [%rd1], %r1;")
        self.assertIn("r->r1 = ", out)
        self.assertIn("r->p1 = ", out)

    def test_what_may_be_unwritten(self):
        body = ["setp.eq.s32 %p1, 1, 2;", "@%p1 bra skip;", "mov.u32 %r1, 0;", "skip:", "add.s32 %r2, %r1, 1;"]
        self.assertIn("r->r1 = ", translated(*body))
        self.assertNotIn("r->", translated("mov.u32 %r1, 7;", *body).replace("r->pc", ""))


class Coverage(unittest.TestCase):
    files = []

    def test_every_form_is_run(self):
        used = Counter()
        for path in self.files:
            ptx2c.translate("m", [text for _, text in ptx.split_kernels(Path(path).read_text(encoding="utf-8"))], used)
        idle = [p.pattern for p, _ in forms.FORMS if not any(p.fullmatch(opcode) for opcode in used)]
        self.assertEqual(idle, [])


if __name__ == "__main__":
    Coverage.files, sys.argv[1:] = sys.argv[1:], []
    unittest.main(verbosity=1)
