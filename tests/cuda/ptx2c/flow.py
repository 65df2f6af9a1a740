# SPDX-License-Identifier: Apache-2.0
"""flow.py - which registers have to stay between two calls of a kernel's function.

Backward analysis over the statements: what may be read before it is written again. What a guarded instruction writes does not
count as written."""
from ptx import Instruction, Label, PtxError


def successors(statements):
    """For each statement the indices of those that may follow it."""
    at = {s.name: i for i, s in enumerate(statements) if isinstance(s, Label)}
    result = []
    for i, s in enumerate(statements):
        following = [i + 1] if i + 1 < len(statements) else []
        if isinstance(s, Instruction) and s.opcode in ("bra", "bra.uni"):
            if s.operands[0] not in at:
                raise PtxError(s.line, f"no label {s.operands[0]}")
            result.append([at[s.operands[0]]] + (following if s.guard else []))
        elif isinstance(s, Instruction) and s.opcode in ("ret", "exit"):
            result.append(following if s.guard else [])
        else:
            result.append(following)
    return result


def stay(registers, statements, reads, writes, meetings):
    """Names of registers that may be read before the kernel has written them, or after one of `meetings`, indices of statements,
    though they were written before it. reads[i], writes[i]: names of statement i."""
    index = {name: k for k, name in enumerate(registers)}
    mask = lambda names: sum(1 << index[n] for n in names)
    reads = [mask(r) for r in reads]
    kept = [~(0 if getattr(s, "guard", "") else mask(w)) for s, w in zip(statements, writes)]
    after = successors(statements)
    before = [0] * len(statements)
    has_changed = True
    while has_changed:
        has_changed = False
        for i in range(len(statements) - 1, -1, -1):
            live = 0
            for j in after[i]:
                live |= before[j]
            live = live & kept[i] | reads[i]
            has_changed |= live != before[i]
            before[i] = live
    live = before[0] if before else 0
    for i in meetings:
        for j in after[i]:
            live |= before[j] & kept[i]
    return {name for name, k in index.items() if live >> k & 1}
