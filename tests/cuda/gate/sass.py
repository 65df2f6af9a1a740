# SPDX-License-Identifier: Apache-2.0
"""sass.py - machine code as cuobjdump prints it: instructions, the innermost loops of a function, what they load.

A loop is a natural one: the blocks from which the source of a back edge of a walk in depth is reached without its header. What a call in a
loop runs counts as part of the loop. Constants of the launch (LDC, ULDC) are not loads.
"""
import re

LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
LOAD, ACCESS = re.compile(r"(LDG|LD|LDL)(\.|$)"), re.compile(r"(LDG|STG)\.")
GENERIC = re.compile(r"(LD|ST|ATOM|RED)(\.|$)")
DIVISION = re.compile(r"I2F\b.*\.RP")


class Instruction:
    def __init__(self, at, guard, opcode, operands):
        self.at, self.guard, self.opcode, self.operands = at, guard, opcode, operands

    def target(self):
        found = re.search(r"0x([0-9a-f]+)\s*$", self.operands.strip())
        return int(found[1], 16) if found else None


def functions(text):
    """name -> instructions."""
    found = {}
    for part in re.split(r"Function : ", text)[1:]:
        found[part.split()[0]] = [Instruction(int(m[1], 16), m[2], m[3], m[4]) for m in LINE.finditer(part)]
    return found


class Flow:
    """The blocks of a function: code[b] its instructions, after[b] its successors, calls[b] the blocks that it calls."""

    def __init__(self, instructions):
        starts = {instructions[0].at}
        for i, one in enumerate(instructions):
            head = one.opcode.split(".")[0]
            if head in ("BRA", "CALL", "EXIT", "RET", "BRX"):
                starts |= {one.target()} if head in ("BRA", "CALL") and one.target() is not None else set()
                starts |= {instructions[i + 1].at} if i + 1 < len(instructions) else set()
        self.code, self.after, self.calls = {}, {}, {}
        for one in instructions:
            if one.at in starts:
                block = one.at
                self.code[block] = []
            self.code[block].append(one)
        order = sorted(self.code)
        for block, following in zip(order, order[1:] + [None]):
            self.join(block, following)
        self.join_tables(order)

    def join(self, block, following):
        last = self.code[block][-1]
        head = last.opcode.split(".")[0]
        self.calls[block] = [last.target()] if head == "CALL" else []
        self.after[block] = [last.target()] if head == "BRA" and last.target() in self.code else []
        may_go_on = last.guard or ".DIV" in last.opcode or "P" in last.operands.split(",")[0]
        if following is not None and (may_go_on or head not in ("BRA", "EXIT", "RET", "BRX")):
            self.after[block].append(following)

    def join_tables(self, order):
        """Where a branch by table (BRX) leads is not in its text: to any block that nothing else leads to."""
        known = {order[0]}.union(*self.after.values(), *self.calls.values())
        for block in order:
            if self.code[block][-1].opcode.startswith("BRX"):
                self.after[block] += [b for b in order if b not in known]

    def walk(self, first):
        """Blocks in the order of a walk in depth, backwards; its back edges, as source and header of a loop."""
        seen, order, back, stack = {first}, [], [], [(first, iter(self.after[first]))]
        while stack:
            block, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                order.append(stack.pop()[0])
            elif following not in seen:
                seen.add(following)
                stack.append((following, iter(self.after[following])))
            elif following in (one for one, _ in stack):
                back.append((block, following))
        return order[::-1], back

    def loops(self):
        """header -> blocks, of the innermost loops."""
        order, back = self.walk(min(self.code))
        before = {block: [p for p in order if block in self.after[p]] for block in order}
        found = {}
        for block, header in back:
            body, stack = found.setdefault(header, {header}), [block]
            while stack:
                one = stack.pop()
                if one not in body:
                    body.add(one)
                    stack += before[one]
        return {h: body for h, body in found.items() if not any(o != h and o in body for o in found)}

    def run_by(self, blocks):
        """Instructions of blocks and of what they call."""
        seen, stack = set(), list(blocks)
        while stack:
            block = stack.pop()
            if block in seen or block not in self.code:
                continue
            seen.add(block)
            for called in self.calls[block]:
                stack += self.walk(called)[0] if called in self.code else []
        return [one for block in sorted(seen) for one in self.code[block]]

    def most_loads(self, header, body):
        """Loads on the way through a loop that has most of them."""
        most = {}

        def below(block):
            if block not in most:
                most[block] = 0
                most[block] = loads_of(self.code[block]) + max([below(b) for b in self.after[block] if b in body and b != header],
                                                               default=0)
            return most[block]

        return below(header)

    def unreached(self):
        """Instructions that nothing leads to, but for what fills the end."""
        seen = set(self.walk(min(self.code))[0])
        for called in [c for calls in self.calls.values() for c in calls]:
            seen |= set(self.walk(called)[0])
        return sum(one.opcode not in ("BRA", "NOP") for b in self.code if b not in seen for one in self.code[b])


def loads_of(instructions):
    """Of two that a predicate chooses between one counts."""
    guards = {}
    for one in instructions:
        if LOAD.match(one.opcode):
            guards[one.guard] = guards.get(one.guard, 0) + 1
    names = {guard.lstrip("!") for guard in guards if guard}
    return guards.get(None, 0) + sum(max(guards.get(name, 0), guards.get("!" + name, 0)) for name in names)


def measure(instructions):
    """Of a function: most loads in an innermost loop with accesses of 16 bytes, and in one without; generic accesses; innermost
    loops that divide integers; instructions that were not understood."""
    flow, loads, divides = Flow(instructions), [0, 0], 0
    for header, body in flow.loops().items():
        code = flow.run_by(body)
        single = not any(ACCESS.match(one.opcode) and ".128" in one.opcode for one in code)
        loads[single] = max(loads[single], flow.most_loads(header, body))
        divides += any(DIVISION.match(one.opcode) for one in code)
    generic = sum(bool(GENERIC.match(one.opcode)) for one in instructions)
    return loads[0], loads[1], generic, divides, flow.unreached()
