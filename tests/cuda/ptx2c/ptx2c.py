# SPDX-License-Identifier: Apache-2.0
"""ptx2c.py NAME FILE.ptx OUT.c OUT_PART.c... - translates the PTX that nvcc emitted into C for the emulator (../emulator/emu.h).

OUT is the module; its kernels are dealt out to the parts, of which only those are written whose kernels have changed.

A kernel becomes one function of a thread. It returns at every rendezvous (barrier, shuffle, vote) and goes on from there when
it is called again. So registers that are read after one are a struct; the others are variables of the function. A register that
may be read though nothing was written there is in the struct, too, which begins with other garbage at each launch. Arithmetic is
that of the PTX, instruction by instruction. What is not known, or has no one result, is an error: see forms.py.
"""
import hashlib
import re
import sys
from collections import Counter
from pathlib import Path

import flow
import forms
from ptx import Instruction, PtxError, end_of, read_kernel, split_kernels

TRANSLATOR = "".join(p.read_text(encoding="utf-8") for p in sorted(Path(__file__).parent.glob("*.py")))


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


def c_kernel(module, kernel, used):
    try:
        lines, stay = translate_kernel(kernel, used)
    except PtxError as e:
        raise e.of(kernel.name)
    n, body = kernel.name, "\n".join(lines)
    return (f"typedef struct {{\n{c_registers(kernel, stay)}    int pc;\n}} {n}_registers;\n"
            f"static int {n}_run(void *registers, emu_thread_t *x) {{\n    {n}_registers *r = registers;\n"
            f"{c_registers(kernel, set(kernel.registers) - stay, 'v_')}"
            f"    switch (r->pc) {{\n    default:;\n{body}\n    }}\n    return EMU_ENDS;\n}}\n"
            + c_array("uint32_t", f"{n}_sizes", [p.nbytes for p in kernel.params])
            + c_array("uint32_t", f"{n}_offsets", [p.offset for p in kernel.params]) +
            f"const emu_kernel_t {module}_{n} = {{\n"
            f'    .name = "{n}", .run = {n}_run, .registers_nbytes = sizeof({n}_registers), .pc_offset = offsetof({n}_registers, pc),\n'
            f"    .params_nbytes = {end_of(kernel.params)}, .shared_nbytes = {end_of(kernel.shared)}, .max_threads = {kernel.max_threads},\n"
            f"    .n_params = {len(kernel.params)}, .param_nbytes = {n}_sizes, .param_offset = {n}_offsets}};\n")


def translate(module, texts, used):
    """C of these kernels of a module, each with its row there."""
    return '#include "emu.h"\n\n' + "\n".join(c_kernel(module, read_kernel(text), used) for text in texts)


def c_module(text, rows):
    return ('#include "emu.h"\n\n' + "".join(f"extern const emu_kernel_t {row};\n" for row in rows) +
            f"static const emu_kernel_t *const kernels[] = {{{', '.join(f'&{row}' for row in rows)}}};\n"
            f"static emu_module_t module = {{{hash_of(text):#x}ull, kernels, {len(rows)}, NULL}};\n"
            "__attribute__((constructor)) static void add_module(void) { emu_add_module(&module); }\n")


def write(path, name, source, make):
    """Writes make() where the path's text is not of this source and this translator."""
    made_of = hashlib.sha1((TRANSLATOR + source).encode()).hexdigest()
    head = f"/* Made by ptx2c from the PTX of {name}, {made_of}: do not edit. */\n"
    if not path.exists() or not path.read_text(encoding="utf-8").startswith(head):
        path.write_text(head + make(), encoding="utf-8")


def main(name, source, target, *parts):
    try:
        text = Path(source).read_text(encoding="utf-8")
        kernels = split_kernels(text)
        for i, part in enumerate(parts):
            texts = [t for _, t in kernels[i::len(parts)]]
            write(Path(part), name, "".join(texts), lambda: translate(name, texts, Counter()))
        write(Path(target), name, text, lambda: c_module(text, [f"{name}_{n}" for n, _ in kernels]))
    except PtxError as e:
        print(f"ptx2c: {source}: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
