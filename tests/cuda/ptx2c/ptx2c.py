# SPDX-License-Identifier: Apache-2.0
"""ptx2c.py NAME FILE.ptx OUT.c - translates the PTX that nvcc emitted into C for the emulator (../emulator/emu.h).

A kernel becomes one function of a thread. It returns at every rendezvous (barrier, shuffle, vote) and goes on from there when
it is called again. So registers that are read after one are a struct; the others are variables of the function. A register that
may be read though nothing was written there is in the struct, too, which begins with other garbage at each launch. Arithmetic is
that of the PTX, instruction by instruction. What is not known, or has no one result, is an error: see forms.py.
"""
import re
import sys
from collections import Counter
from pathlib import Path

import flow
import forms
from ptx import Instruction, PtxError, end_of, read_kernels


def hash_of(text):
    """FNV-1a of the PTX text up to its first NUL, without blanks at its end: how the double recognises a module."""
    h = 0xcbf29ce484222325
    for byte in text.encode().split(b"\0")[0].rstrip():
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def label_of(name):
    return "L_" + re.sub(r"\W", "_", name)


def code_of(s, operands, site):
    """C for one instruction without its guard."""
    if s.opcode in ("bra", "bra.uni"):
        return f"goto {label_of(s.operands[0])};"
    if s.opcode in ("ret", "exit"):
        return "return EMU_ENDS;"
    return forms.translate(s.opcode, operands, site)


def guard_of(s, operands):
    if not s.guard:
        return ""
    if forms.is_meeting(s.opcode):
        raise PtxError(s.line, f"{s.opcode} with a guard")
    return f"if ({operands.value(('!%' if s.guard[0] == '!' else '%') + s.guard.lstrip('!'), 'pred')}) "


def translate_kernel(kernel, used):
    """Lines of C, and the registers that stay between calls."""
    lines, reads, writes, meetings = [], [], [], []
    for i, s in enumerate(kernel.body):
        operands = forms.Operands(kernel, s.line, getattr(s, "operands", []))
        if isinstance(s, Instruction):
            used[s.opcode] += 1
            meetings += [i] if forms.is_meeting(s.opcode) else []
            code = code_of(s, operands, len(meetings))
            guard = guard_of(s, operands)
            lines.append(f"    {guard}{{ {code} }}")
        else:
            lines.append(f"{label_of(s.name)}:;")
        reads.append(operands.reads)
        writes.append(operands.writes)
    stay = flow.stay(kernel.registers, kernel.body, reads, writes, meetings)
    is_struct = lambda name: name in stay or name not in kernel.registers
    return [re.sub(r"\br->(\w+)", lambda m: m[0] if is_struct(m[1]) else "v_" + m[1], line) for line in lines], stay


def c_registers(kernel, names, prefix=""):
    kinds = {1: "uint8_t", 8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "uint64_t"}
    order = sorted(names, key=lambda n: (-kernel.registers[n], n))
    return "".join(f"    {kinds[kernel.registers[n]]} {prefix}{n};\n" for n in order)


def c_array(kind, name, values):
    return f"static const {kind} {name}[] = {{{', '.join(map(str, values)) or '0'}}};\n"


def c_kernel(kernel, used):
    lines, stay = translate_kernel(kernel, used)
    name, body = kernel.name, "\n".join(lines)
    return (f"typedef struct {{\n{c_registers(kernel, stay)}    int pc;\n}} {name}_registers;\n"
            f"static int {name}_run(void *registers, emu_thread_t *x) {{\n    {name}_registers *r = registers;\n"
            f"{c_registers(kernel, set(kernel.registers) - stay, 'v_')}"
            f"    switch (r->pc) {{\n    default:;\n{body}\n    }}\n    return EMU_ENDS;\n}}\n"
            + c_array("uint32_t", f"{name}_sizes", [p.nbytes for p in kernel.params])
            + c_array("uint32_t", f"{name}_offsets", [p.offset for p in kernel.params]))


def c_row(kernel):
    n = kernel.name
    return (f'    {{.name = "{n}", .run = {n}_run, .registers_nbytes = sizeof({n}_registers), .pc_offset = offsetof({n}_registers, pc), '
            f".params_nbytes = {end_of(kernel.params)}, .shared_nbytes = {end_of(kernel.shared)}, .max_threads = {kernel.max_threads}, "
            f".n_params = {len(kernel.params)}, .param_nbytes = {n}_sizes, .param_offset = {n}_offsets}},\n")


def translate(name, text, used):
    kernels = read_kernels(text)
    out = f'/* Made by ptx2c from the PTX of {name}: do not edit. */\n#include "emu.h"\n\n'
    out += "\n".join(c_kernel(k, used) for k in kernels)
    out += "static const emu_kernel_t kernels[] = {\n" + "".join(c_row(k) for k in kernels) + "};\n"
    out += (f'static emu_module_t module = {{{hash_of(text):#x}ull, kernels, {len(kernels)}, NULL}};\n'
            "__attribute__((constructor)) static void add_module(void) { emu_add_module(&module); }\n")
    return out


def main(name, source, target):
    try:
        out = translate(name, Path(source).read_text(encoding="utf-8"), Counter())
    except PtxError as e:
        print(f"ptx2c: {source}: {e}", file=sys.stderr)
        return 1
    Path(target).write_text(out, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
