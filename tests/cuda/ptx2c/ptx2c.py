# SPDX-License-Identifier: Apache-2.0
"""ptx2c.py NAME FILE.ptx OUT.c - translates the PTX that nvcc emitted into C for the emulator (../emulator/emu.h).

A kernel becomes one function of a thread. Its registers are a struct, so that it can return at every rendezvous (barrier,
shuffle, vote) and go on from there when it is called again. Arithmetic is that of the PTX, instruction by instruction.
What is not known, or has no one result, is an error: see forms.py.

`ptx2c.py --forms FILE.ptx...` lists the opcodes that the files use, with how often.
"""
import re
import sys
from collections import Counter

import flow
import forms
from ptx import Instruction, Label, PtxError, read_module


def hash_of(text):
    """FNV-1a of the PTX text up to its first NUL, without blanks at its end: how the double recognises a module."""
    h = 0xcbf29ce484222325
    for byte in text.encode().split(b"\0")[0].rstrip():
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def label_of(name):
    return "L_" + re.sub(r"\W", "_", name)


def code_of(s, operands, kernel, site):
    """C for one instruction without its guard."""
    if s.opcode in ("bra", "bra.uni"):
        return f"goto {label_of(s.operands[0])};"
    if s.opcode in ("brx.idx", "brx.idx.uni"):
        cases = " ".join(f"case {i}: goto {label_of(t)};" for i, t in enumerate(kernel.branch_targets[s.operands[1]]))
        return f"switch ({operands.read(0, 'u32')}) {{ {cases} default: emu_trap(x, {s.line}); return EMU_ENDS; }}"
    if s.opcode in ("ret", "exit"):
        return "return EMU_ENDS;"
    if s.opcode == "trap":
        return f"emu_trap(x, {s.line}); return EMU_ENDS;"
    return forms.translate(s.opcode, operands, site)


def guard_of(s, operands):
    if not s.guard:
        return ""
    if forms.is_meeting(s.opcode):
        raise PtxError(s.line, f"{s.opcode} with a guard")
    return f"if ({operands.value(('!%' if s.guard[0] == '!' else '%') + s.guard.lstrip('!'), 'pred')}) "


def checked(code, s, unsure, written):
    """`code` with a test of registers that may not be there yet, and a note of those that now are."""
    before = "".join(f"if (!r->has_{name}) emu_unwritten(x, {s.line}); " for name in sorted(unsure))
    after = "".join(f" r->has_{name} = 1;" for name in sorted(written))
    return before, code + after


def translate_kernel(kernel, constants, used):
    """Lines of C, and the registers for which it is noted at run time whether they are written."""
    parts, reads, writes, site = [], [], [], 0
    for s in kernel.body:
        operands = forms.Operands(kernel, constants, s.line, getattr(s, "operands", []))
        if isinstance(s, Instruction):
            used[s.opcode] += 1
            site += forms.is_meeting(s.opcode)
            parts.append((code_of(s, operands, kernel, site), guard_of(s, operands)))
        else:
            parts.append((f"{label_of(s.name)}:;", ""))
        reads.append(operands.reads)
        writes.append(operands.writes)
    unsure = flow.unsure_reads(kernel, kernel.body, reads, writes)
    noted = set().union(*unsure) if unsure else set()
    lines = []
    for s, (code, guard), missing, written in zip(kernel.body, parts, unsure, writes):
        before, code = checked(code, s, missing, written & noted)
        lines.append(f"    {before}{guard}{{ {code} }}" if isinstance(s, Instruction) else code)
    return lines, noted


def c_registers(kernel, noted):
    kinds = {1: "uint8_t", 8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "uint64_t"}
    order = sorted(kernel.registers, key=lambda n: -kernel.registers[n])
    values = "".join(f"    {kinds[kernel.registers[n]]} {n};\n" for n in order)
    return values + "    int pc;\n" + "".join(f"    uint8_t has_{n};\n" for n in sorted(noted))


def c_array(kind, name, values):
    return f"static const {kind} {name}[] = {{{', '.join(map(str, values)) or '0'}}};\n"


def c_kernel(kernel, constants, used):
    lines, noted = translate_kernel(kernel, constants, used)
    name, body = kernel.name, "\n".join(lines)
    return (f"typedef struct {{\n{c_registers(kernel, noted)}}} {name}_registers;\n"
            f"static int {name}_run(void *registers, emu_thread_t *x) {{\n    {name}_registers *r = registers;\n"
            f"    switch (r->pc) {{\n    default:;\n{body}\n    }}\n    return EMU_ENDS;\n}}\n"
            + c_array("uint32_t", f"{name}_sizes", [p.nbytes for p in kernel.params])
            + c_array("uint32_t", f"{name}_offsets", [p.offset for p in kernel.params]))


def c_row(kernel):
    n = kernel.name
    return (f'    {{.name = "{n}", .run = {n}_run, .registers_nbytes = sizeof({n}_registers), .pc_offset = offsetof({n}_registers, pc), '
            f".params_nbytes = {kernel.params_nbytes}, .shared_nbytes = {kernel.shared_nbytes}, .max_threads = {kernel.max_threads}, "
            f".n_params = {len(kernel.params)}, .param_nbytes = {n}_sizes, .param_offset = {n}_offsets}},\n")


def translate(name, text, used):
    module = read_module(text)
    constants = {v.name: f"{v.name}_bytes" for v in module.constants}
    out = f'/* Made by ptx2c from the PTX of {name}: do not edit. */\n#include "emu.h"\n\n'
    for v in module.constants:
        out += f"static unsigned char {v.name}_bytes[] __attribute__((aligned({max(v.align, 16)}))) = {{{', '.join(map(str, v.data))}}};\n"
    out += "\n".join(c_kernel(k, constants, used) for k in module.kernels)
    out += "static const emu_variable_t variables[] = {\n"
    out += "".join(f'    {{"{v.name}", {v.name}_bytes, {v.nbytes}}},\n' for v in module.constants) + "    {NULL, NULL, 0}};\n"
    out += "static const emu_kernel_t kernels[] = {\n" + "".join(c_row(k) for k in module.kernels) + "};\n"
    out += (f'static const emu_module_t module = {{"{name}", {hash_of(text):#x}ull, kernels, {len(module.kernels)}, variables}};\n'
            "__attribute__((constructor)) static void add_module(void) { emu_add_module(&module); }\n")
    return out


def main(args):
    used = Counter()
    try:
        if args[:1] == ["--forms"]:
            for path in args[1:]:
                translate(path, open(path, encoding="utf-8").read(), used)
            for opcode, n in sorted(used.items()):
                print(f"{n:6} {opcode}")
            return 0
        if len(args) != 3:
            print(__doc__, file=sys.stderr)
            return 2
        text = open(args[1], encoding="utf-8").read()
        out = translate(args[0], text, used)
    except PtxError as e:
        print(f"ptx2c: {args[1]}: {e}", file=sys.stderr)
        return 1
    with open(args[2], "w", encoding="utf-8") as f:
        f.write(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
