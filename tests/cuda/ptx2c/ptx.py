# SPDX-License-Identifier: Apache-2.0
"""ptx.py - reads the PTX text that nvcc emits.

Only what nvcc emits for kernels without calls, stack frames, textures, variables of the module and tables of branches is read;
everything else raises PtxError with the line, in a kernel counted from its first. The result is kernels, each with parameters, shared arrays, registers and a flat
list of statements.
"""
import re
from bisect import bisect_left
from dataclasses import dataclass, field

BITS = {"b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "b32": 32, "u32": 32, "s32": 32,
        "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64}


class PtxError(Exception):
    """A form that the translator does not know, or one that it must not accept."""

    def __init__(self, line, what):
        super().__init__(f"PTX line {line}: {what}")

    def of(self, kernel):
        self.args = (f"{kernel}, {self}",)
        return self


@dataclass
class Instruction:
    line: int
    opcode: str            # "add.rn.f32"
    operands: list         # ["%f1", "%f2", "[%rd1+4]", "{%r1, %r2}"]
    guard: str = ""        # register of "@%p", with a leading "!" for "@!%p"


@dataclass
class Label:
    line: int
    name: str


@dataclass
class Place:
    """Of a parameter among the parameters, or of a shared array in shared memory."""
    name: str
    nbytes: int
    offset: int


@dataclass
class Kernel:
    name: str
    params: list = field(default_factory=list)
    shared: list = field(default_factory=list)
    registers: dict = field(default_factory=dict)      # name -> bits, 1 for a predicate
    body: list = field(default_factory=list)           # Instruction and Label
    max_threads: int = 1024


def end_of(places):
    return max((p.offset + p.nbytes for p in places), default=0)


def without_comments(text):
    """Comments become blanks, so that lines keep their numbers."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def split_list(text):
    """Splits at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return parts + [last] if last else parts


def aligned(offset, align):
    return (offset + align - 1) // align * align


SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?$")


def read_shared(kernel, text, line):
    """Arrays stand one after the other."""
    m = SHARED.match(text)
    if m is None or m[2] not in BITS:
        raise PtxError(line, f"variable not understood: {text[:60]}")
    offset = aligned(end_of(kernel.shared), max(int(m[1]), 16))
    kernel.shared.append(Place(m[3], BITS[m[2]] // 8 * int(m[4] or 1), offset))


PARAM = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr(?:\s+\.(?:global|const|shared|generic))?"
                   r"(?:\s+\.align\s+\d+)?)?\s+(\w+)(?:\[(\d+)\])?$")


def read_params(text, line):
    params, offset = [], 0
    for item in split_list(text):
        m = PARAM.match(item)
        if m is None:
            raise PtxError(line, f"parameter not understood: {item}")
        size = BITS[m[2]] // 8
        nbytes = size * int(m[4] or 1)
        offset = aligned(offset, int(m[1] or size))
        params.append(Place(m[3], nbytes, offset))
        offset += nbytes
    return params


STATEMENT = re.compile(r"\s*(?:(?P<label>[\w$]+)\s*:(?!:)|(?P<text>[^;:]*(?:\{[^{}]*\}[^;:]*)*(?:::[^;:]*)*);)", re.S)
INSTRUCTION = re.compile(r"(?:@(?P<guard>!?%\w+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)$", re.S)


def read_directive(kernel, text, line):
    if m := re.match(r"\.reg\s+\.(\w+)\s+(.*)$", text, re.S):
        bits = 1 if m[1] == "pred" else BITS.get(m[1])
        if bits is None:
            raise PtxError(line, f"register type {m[1]}")
        for item in split_list(m[2]):
            if n := re.match(r"%(\w+)<(\d+)>$", item):
                kernel.registers.update({f"{n[1]}{i}": bits for i in range(int(n[2]))})
            else:
                kernel.registers[item.lstrip("%")] = bits
    elif text.startswith(".shared"):
        read_shared(kernel, text, line)
    elif re.match(r"\.(loc|pragma)\b", text):
        pass
    else:
        raise PtxError(line, f"directive not understood: {text[:60]}")


def read_body(kernel, text, line):
    """Fills kernel.body from the text between the braces, which starts at `line`."""
    # A block in the body gives names a scope: its registers get names of their own.
    brace = re.compile(r"\s*([{}])")
    pos, n_blocks, scopes = 0, 0, []
    ends = [i for i, c in enumerate(text) if c == "\n"]
    while m := brace.match(text, pos) or STATEMENT.match(text, pos):
        pos = m.end()
        if m.re is brace:
            n_blocks += m[1] == "{"
            scopes = scopes + [{}] if m[1] == "{" else scopes[:-1]
            continue
        if m["label"] is not None:
            kernel.body.append(Label(line + bisect_left(ends, m.end("label")), m["label"]))
            continue
        words = m["text"].strip()
        if scopes and words.startswith(".reg"):
            scopes[-1].update({name: f"{name}_block{n_blocks}" for name in re.findall(r"%(\w+)", words)})
        if scopes:
            words = re.sub(r"%(\w+)", lambda m: "%" + next((s[m[1]] for s in reversed(scopes) if m[1] in s), m[1]), words)
        at = line + bisect_left(ends, pos)
        if not words:
            continue
        if words.startswith("."):
            read_directive(kernel, words, at)
            continue
        i = INSTRUCTION.match(words)
        if i is None:
            raise PtxError(at, f"not understood: {words[:60]}")
        guard = (i["guard"] or "").replace("%", "")
        kernel.body.append(Instruction(at, i["opcode"], split_list(i["operands"]), guard))
    if text[pos:].strip():
        raise PtxError(line + text.count("\n", 0, pos), f"not understood: {text[pos:].strip()[:60]}")


ENTRY = re.compile(r"(?:\.visible\s+|\.weak\s+)?\.entry\s+(\w+)\s*(?:\(([^)]*)\))?([^{;]*)\{", re.S)


def closing_brace(text, start):
    depth = 1
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
    raise PtxError(text.count("\n", 0, start) + 1, "a kernel without its closing brace")


def read_kernel(text):
    """Of its own text; lines count from the first of that."""
    match = ENTRY.match(text)
    kernel = Kernel(match[1])
    try:
        kernel.params = read_params(match[2] or "", 1)
        if m := re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", match[3]):
            kernel.max_threads = int(m[1]) * int(m[2] or 1) * int(m[3] or 1)
        read_body(kernel, text[match.end():-1], text.count("\n", 0, match.end()) + 1)
    except PtxError as e:
        raise e.of(kernel.name)
    return kernel


def split_kernels(text):
    """Names and texts of the kernels of a module."""
    text = without_comments(text)
    if not re.search(r"\.target\s+\w+", text) or ".address_size 64" not in text:
        raise PtxError(1, "no .target, or not 64 bit addresses")
    kernels, pos = [], 0
    while m := ENTRY.search(text, pos):
        check_between(text[pos:m.start()], text.count("\n", 0, pos) + 1)
        pos = closing_brace(text, m.end()) + 1
        kernels.append((m[1], text[m.start():pos]))
    check_between(text[pos:], text.count("\n", 0, pos) + 1)
    return kernels


def check_between(text, line):
    """Between kernels stands nothing: they have to inline every function, and have no variables of the module."""
    for i, rest in enumerate(text.split("\n")):
        if rest.strip() and not re.match(r"\s*\.(version|target|address_size)\b", rest):
            raise PtxError(line + i, f"not a kernel: {rest.strip()[:60]}")
