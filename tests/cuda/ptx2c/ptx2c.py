# SPDX-License-Identifier: Apache-2.0
"""ptx2c.py NAME FILE.ptx OUT.c - translates the PTX that nvcc emitted into C for the emulator (../emulator/emu.h).

A kernel becomes one function of a thread. It returns at every rendezvous (barrier, shuffle, vote) and goes on from there when
it is called again. So registers that are read after one are a struct; the others are variables of the function. Arithmetic is
that of the PTX, instruction by instruction.
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


# What a value does when it matters: it is stored, is an address, decides a branch, goes to other threads.
MATTERS = re.compile(r"(st|ld|atom|red|bra|brx|bar|barrier|shfl|vote)\b.*")


def is_known(s, operands, watched):
    """A C expression: the result comes from registers that were written."""
    has = lambda name: f"r->has_{name}" if name in watched else "1"
    register = lambda i: s.operands[i].lstrip("!%")
    if s.opcode.startswith("selp"):  # only the value that is chosen counts
        sides = [has(register(i)) if register(i) in operands.reads else "1" for i in (1, 2)]
        return f"({has(register(3))} & (r->{register(3)} ? {sides[0]} : {sides[1]}))"
    if s.opcode in ("and.pred", "or.pred") and all(register(i) in operands.reads for i in (1, 2)):  # one side may decide
        a, b = register(1), register(2)
        decides = "!" if s.opcode == "and.pred" else ""
        return f"(({has(a)} & {has(b)}) | ({has(a)} & {decides}r->{a}) | ({has(b)} & {decides}r->{b}))"
    return " & ".join(sorted(has(name) for name in operands.reads if name in watched)) or "1"


def noted(code, guard, s, operands, watched):
    """The statement with what it does to the notes of registers that may not have been written."""
    known = is_known(s, operands, watched)
    checks = [f"r->has_{g}" for g in [s.guard.lstrip("!")] if g in watched]
    if MATTERS.fullmatch(s.opcode) and known != "1":
        checks.append(known)
        known = "1"
    check = f"if (!({' & '.join(checks)})) emu_unwritten(x, {s.line}); " if checks else ""
    targets = sorted(operands.writes & watched)
    before = ""
    if targets and known != "1":  # taken before the registers change
        before, known = f"uint8_t known = {known}; ", "known"
    return f"    {{ {check}{guard}{{ {before}{code}" + "".join(f" r->has_{t} = {known};" for t in targets) + " } }"


def translate_kernel(kernel, constants, used):
    """Lines of C, the registers for which it is noted at run time whether they were written, and those that stay between calls."""
    parts, site = [], 0
    for s in kernel.body:
        operands = forms.Operands(kernel, constants, s.line, getattr(s, "operands", []))
        if isinstance(s, Instruction):
            used[s.opcode] += 1
            site += forms.is_meeting(s.opcode)
            parts.append((code_of(s, operands, kernel, site), guard_of(s, forms.Operands(kernel, constants, s.line, [])), operands))
        else:
            parts.append((f"{label_of(s.name)}:;", "", operands))
    reads = [operands.reads | {s.guard.lstrip("!")} if getattr(s, "guard", "") else operands.reads
             for s, (_, _, operands) in zip(kernel.body, parts)]
    writes = [operands.writes for _, _, operands in parts]
    watched = flow.watched(flow.unsure_reads(kernel, kernel.body, reads, writes), reads, writes)
    lines = [noted(code, guard, s, operands, watched) if isinstance(s, Instruction) else code
             for s, (code, guard, operands) in zip(kernel.body, parts)]
    meetings = [i for i, s in enumerate(kernel.body) if isinstance(s, Instruction) and forms.is_meeting(s.opcode)]
    stay = watched | flow.live_after(kernel, kernel.body, reads, writes, meetings)
    is_struct = lambda name: name in stay or name not in kernel.registers
    return [re.sub(r"\br->(\w+)", lambda m: m[0] if is_struct(m[1]) else "v_" + m[1], line) for line in lines], watched, stay


def c_registers(kernel, names, prefix=""):
    kinds = {1: "uint8_t", 8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "uint64_t"}
    order = sorted(names, key=lambda n: (-kernel.registers[n], n))
    return "".join(f"    {kinds[kernel.registers[n]]} {prefix}{n};\n" for n in order)


def c_array(kind, name, values):
    return f"static const {kind} {name}[] = {{{', '.join(map(str, values)) or '0'}}};\n"


def c_kernel(kernel, constants, used):
    lines, watched, stay = translate_kernel(kernel, constants, used)
    name, body = kernel.name, "\n".join(lines)
    has = "".join(f"    uint8_t has_{n};\n" for n in sorted(watched))
    return (f"typedef struct {{\n{c_registers(kernel, stay)}    int pc;\n{has}}} {name}_registers;\n"
            f"static int {name}_run(void *registers, emu_thread_t *x) {{\n    {name}_registers *r = registers;\n"
            f"{c_registers(kernel, set(kernel.registers) - stay, 'v_')}"
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
