# SPDX-License-Identifier: Apache-2.0
"""ptx.py - reads the PTX text that nvcc emits.

Only what nvcc emits for kernels without calls, stack frames and textures is read; everything else raises PtxError with the line.
The result is a Module: its kernels, each with parameters, shared arrays, registers and a flat list of statements.
"""
import re
from dataclasses import dataclass, field

BITS = {"b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "b32": 32, "u32": 32, "s32": 32,
        "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64}


class PtxError(Exception):
    """A form that the translator does not know, or one that it must not accept."""

    def __init__(self, line, what):
        super().__init__(f"PTX line {line}: {what}")


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
class Variable:
    """A shared array, or a constant or global one with its bytes."""
    name: str
    nbytes: int
    align: int
    offset: int = 0
    data: bytes = b""
    is_dynamic: bool = False


@dataclass
class Param:
    name: str
    nbytes: int
    offset: int


@dataclass
class Kernel:
    name: str
    line: int
    params: list = field(default_factory=list)
    shared: list = field(default_factory=list)
    registers: dict = field(default_factory=dict)      # name -> bits, 1 for a predicate
    body: list = field(default_factory=list)           # Instruction and Label
    branch_targets: dict = field(default_factory=dict)  # name -> labels
    max_threads: int = 1024

    @property
    def params_nbytes(self):
        return max((p.offset + p.nbytes for p in self.params), default=0)

    @property
    def shared_nbytes(self):
        return max((v.offset + v.nbytes for v in self.shared), default=0)


@dataclass
class Module:
    target: str
    kernels: list = field(default_factory=list)
    constants: list = field(default_factory=list)


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


VARIABLE = re.compile(r"(?:\.visible\s+|\.extern\s+|\.weak\s+)?\.(?P<space>shared|const|global)\s+(?:\.align\s+(?P<align>\d+)\s+)?"
                      r"\.(?P<type>\w+)\s+(?P<name>[\w$]+)(?:\[(?P<n>\d*)\])?\s*(?:=\s*(?P<value>.*))?$", re.S)


def read_variable(text, line):
    m = VARIABLE.match(text.strip())
    if m is None or m["type"] not in BITS:
        raise PtxError(line, f"variable not understood: {text.strip()[:60]}")
    size = BITS[m["type"]] // 8
    is_dynamic = m["n"] == ""
    nbytes = 0 if is_dynamic else size * int(m["n"] or 1)
    data = b""
    if m["value"]:
        values = [int(v, 0) for v in re.findall(r"-?\b(?:0x[0-9a-fA-F]+|\d+)\b", m["value"])]
        if m["type"][0] == "f" or re.search(r"[^-\w\s,{}]|[g-wyzG-WYZ]", m["value"]):
            raise PtxError(line, f"initial value not understood: {m['value'][:40]}")
        data = b"".join((v & ((1 << 8 * size) - 1)).to_bytes(size, "little") for v in values)
    return m["space"], Variable(m["name"], nbytes, int(m["align"] or size), data=data.ljust(nbytes, b"\0"),
                                is_dynamic=is_dynamic)


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
        params.append(Param(m[3], nbytes, offset))
        offset += nbytes
    return params


STATEMENT = re.compile(r"\s*(?:(?P<label>[\w$]+)\s*:(?!:)|(?P<text>[^;:]*(?:\{[^{}]*\}[^;:]*)*(?:::[^;:]*)*);)", re.S)
INSTRUCTION = re.compile(r"(?:@(?P<guard>!?%\w+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)$", re.S)


def read_directive(kernel, text, line, label):
    if m := re.match(r"\.reg\s+\.(\w+)\s+(.*)$", text, re.S):
        bits = 1 if m[1] == "pred" else BITS.get(m[1])
        if bits is None:
            raise PtxError(line, f"register type {m[1]}")
        for item in split_list(m[2]):
            if n := re.match(r"%(\w+)<(\d+)>$", item):
                kernel.registers.update({f"{n[1]}{i}": bits for i in range(int(n[2]))})
            else:
                kernel.registers[item.lstrip("%")] = bits
    elif text.startswith(".shared") or text.startswith(".extern"):
        space, variable = read_variable(text, line)
        kernel.shared.append(variable)
    elif text.startswith(".branchtargets") and label:
        kernel.branch_targets[label] = split_list(text[len(".branchtargets"):].strip())
    elif re.match(r"\.(loc|pragma)\b", text):
        pass
    else:
        raise PtxError(line, f"directive not understood: {text[:60]}")


def read_body(kernel, text, line):
    """Fills kernel.body from the text between the braces, which starts at `line`."""
    # A block in the body gives names a scope (inline assembly brings some along): its registers get names of their own.
    brace = re.compile(r"\s*([{}])")
    pos, n_blocks, scopes = 0, 0, []
    while m := brace.match(text, pos) or STATEMENT.match(text, pos):
        pos = m.end()
        if m.re is brace and m[1] == "{":
            n_blocks += 1
            scopes.append({})
            continue
        if m.re is brace:
            scopes.pop()
            continue
        if m["label"] is not None:
            kernel.body.append(Label(line + text.count("\n", 0, m.end("label")), m["label"]))
            continue
        words = m["text"].strip()
        if scopes and words.startswith(".reg"):
            scopes[-1].update({name: f"{name}_block{n_blocks}" for name in re.findall(r"%(\w+)", words)})
        words = re.sub(r"%(\w+)", lambda m: "%" + next((s[m[1]] for s in reversed(scopes) if m[1] in s), m[1]), words)
        at = line + text.count("\n", 0, pos)
        if not words:
            continue
        if words.startswith("."):
            last = kernel.body[-1].name if kernel.body and isinstance(kernel.body[-1], Label) else ""
            read_directive(kernel, words, at, last)
            continue
        i = INSTRUCTION.match(words)
        if i is None:
            raise PtxError(at, f"not understood: {words[:60]}")
        guard = (i["guard"] or "").replace("%", "")
        kernel.body.append(Instruction(at, i["opcode"], split_list(i["operands"]), guard))
    if text[pos:].strip():
        raise PtxError(line + text.count("\n", 0, pos), f"not understood: {text[pos:].strip()[:60]}")


def place_shared(kernel, module_shared):
    """Shared arrays that the kernel names, one after the other; the dynamic one comes last."""
    text = " ".join(" ".join(i.operands) for i in kernel.body if isinstance(i, Instruction))
    named = set(re.findall(r"[\w$]+", text))
    arrays = kernel.shared + [v for v in module_shared if v.name in named]
    offset = 0
    for v in sorted(arrays, key=lambda v: v.is_dynamic):
        v.offset = offset = aligned(offset, max(v.align, 16))
        offset += v.nbytes
    kernel.shared = arrays


ENTRY = re.compile(r"(?:\.visible\s+|\.weak\s+)?\.entry\s+(\w+)\s*(?:\(([^)]*)\))?([^{;]*)\{", re.S)


def closing_brace(text, start):
    depth = 1
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
    raise PtxError(text.count("\n", 0, start) + 1, "a kernel without its closing brace")


def read_kernel(text, match):
    line = text.count("\n", 0, match.start()) + 1
    kernel = Kernel(match[1], line, read_params(match[2] or "", line))
    if m := re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", match[3]):
        kernel.max_threads = int(m[1]) * int(m[2] or 1) * int(m[3] or 1)
    end = closing_brace(text, match.end())
    body = text[match.end():end]
    read_body(kernel, body, text.count("\n", 0, match.end()) + 1)
    return kernel, end + 1


def read_module(text):
    text = without_comments(text)
    target = re.search(r"\.target\s+(\w+)", text)
    if target is None or ".address_size 64" not in text:
        raise PtxError(1, "no .target, or not 64 bit addresses")
    module, shared, pos = Module(target[1]), [], 0
    while m := ENTRY.search(text, pos):
        read_globals(text[pos:m.start()], text.count("\n", 0, pos) + 1, module, shared)
        kernel, pos = read_kernel(text, m)
        module.kernels.append(kernel)
    read_globals(text[pos:], text.count("\n", 0, pos) + 1, module, shared)
    for kernel in module.kernels:
        place_shared(kernel, shared)
    return module


def read_globals(text, line, module, shared):
    """Variables between kernels. Functions are refused: kernels have to inline everything."""
    text = re.sub(r"^\s*\.(version|target|address_size)\b[^\n]*", "", text, flags=re.M)
    pos = 0
    for m in re.finditer(r"([^;{}=]*(?:=\s*(?:\{[^}]*\}|[^;{}]*))?);", text):
        at = line + text.count("\n", 0, m.start())
        if m.start() != pos:
            break
        pos = m.end()
        if not m[1].strip():
            continue
        space, variable = read_variable(m[1], at)
        (shared if space == "shared" else module.constants).append(variable)
    if rest := text[pos:].strip():
        raise PtxError(line + text.count("\n", 0, pos), f"not a kernel and not a variable: {rest.split(chr(10))[0][:60]}")
