# SPDX-License-Identifier: Apache-2.0
"""flow.py - which registers may be read before they are written, and which are read after a meeting.

Forward analysis over the statements: the set of registers that every path from the kernel's start has written. What a guarded
instruction writes does not count. The compiler knows more than this: conditions that exclude each other, and that a result of
what was never written is not used. So what is found here is watched when the kernel runs, until it matters."""
from ptx import Instruction, Label, PtxError


def successors(kernel, statements):
    """For each statement the indices of those that may follow it."""
    at = {s.name: i for i, s in enumerate(statements) if isinstance(s, Label)}

    def place(i, name):
        if name not in at:
            raise PtxError(statements[i].line, f"no label {name}")
        return at[name]

    result = []
    for i, s in enumerate(statements):
        following = [i + 1] if i + 1 < len(statements) else []
        if not isinstance(s, Instruction):
            result.append(following)
        elif s.opcode in ("bra", "bra.uni"):
            result.append([place(i, s.operands[0])] + (following if s.guard else []))
        elif s.opcode in ("brx.idx", "brx.idx.uni"):
            targets = kernel.branch_targets.get(s.operands[1])
            if targets is None:
                raise PtxError(s.line, f"no branch targets {s.operands[1]}")
            result.append([place(i, t) for t in targets])
        elif s.opcode in ("ret", "exit", "trap"):
            result.append(following if s.guard else [])
        else:
            result.append(following)
    return result


def unsure_reads(kernel, statements, reads, writes):
    """reads[i], writes[i]: register names of statement i. Returns for each statement those it reads and that some path to
    it has not written."""
    index = {name: k for k, name in enumerate(kernel.registers)}
    mask = lambda names: sum(1 << index[n] for n in names)
    reads, writes = [mask(r) for r in reads], [mask(w) for w in writes]
    after = successors(kernel, statements)
    everything = (1 << len(index)) - 1
    before = [everything] * len(statements)
    reached = [False] * len(statements)
    pending = []
    if statements:
        before[0], reached[0] = 0, True
        pending.append(0)
    while pending:
        i = pending.pop()
        is_guarded = isinstance(statements[i], Instruction) and bool(statements[i].guard)
        known = before[i] | (0 if is_guarded else writes[i])
        for j in after[i]:
            if not reached[j] or before[j] & ~known:
                before[j] &= known
                reached[j] = True
                pending.append(j)
    unsure = []
    for i in range(len(statements)):
        missing = reads[i] & ~before[i] if reached[i] else 0
        unsure.append({name for name, k in index.items() if missing >> k & 1} if missing else set())
    return unsure


def live_after(kernel, statements, reads, writes, meetings):
    """Registers that were written before one of `meetings`, indices of statements, and may be read after it."""
    index = {name: k for k, name in enumerate(kernel.registers)}
    mask = lambda names: sum(1 << index[n] for n in names)
    reads = [mask(r) for r in reads]
    kept = [~(0 if getattr(s, "guard", "") else mask(w)) for s, w in zip(statements, writes)]
    after = successors(kernel, statements)
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
    live = 0
    for i in meetings:
        for j in after[i]:
            live |= before[j] & kept[i]
    return {name for name, k in index.items() if live >> k & 1}


def watched(unsure, reads, writes):
    """Registers whose contents may come from one that was never written: the unsure ones and all that is made of them."""
    names = set().union(*unsure) if unsure else set()
    size = -1
    while size != len(names):
        size = len(names)
        for r, w in zip(reads, writes):
            if r & names:
                names |= w
    return names
