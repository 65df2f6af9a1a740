# SPDX-License-Identifier: Apache-2.0
"""forms.py - the PTX instructions that ptx2c knows, each as C: those that nvcc makes of our kernels.

A form is a regular expression over the whole opcode and a function that writes C for it, which EXPRESSIONS has for most. An opcode that
no form matches is an error, and so is one that REFUSED matches: arithmetic that is not IEEE, or that the assembler may contract, has no one result.

Registers are members of a struct, `r->f1`, that hold bits as unsigned integers. A form reads and writes them through its
Operands, which also keep what was read and written for the analysis of flow.py.

Floating-point results: a NaN that arithmetic makes is the canonical one, as on the device (emulator/emu.h: emu_bits32).
"""
import re
from dataclasses import dataclass, field

from ptx import BITS, PtxError, split_list

REFUSED = [
    (r".*\.ftz\b.*", "flushes denormals"),
    (r".*\.approx\b.*|div\.full\..*", "is not correctly rounded"),
    (r"(add|sub|mul)(\.sat)?\.f(32|64)", "may be contracted: write __fadd_rn, __dmul_rn ... in the source"),
    (r"(atom|red)\..*\.(f16|f16x2|bf16|bf16x2|f32|f64)", "is a floating-point atomic: its order is not defined"),
    (r"(ld|st)\.local\..*", "uses local memory"),
    (r"(add|sub|mul|fma|div|sqrt|rcp)\..*\.(rz|rm|rp)\b.*|(add|sub|mul|fma|div|sqrt|rcp)\.(rz|rm|rp)\..*",
     "rounds otherwise than to nearest even"),
    (r"call(\..*)?", "is a call: everything has to be inlined"),
]

COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "min": "<", "max": ">"}

# Forms that are one expression: the opcode; the types of the result and of the operands; C of the operands a, b, c and d. {1} and {2} are
# groups of the opcode, {infix} is the operator of its first word, {bits} are those of the result.
EXPRESSIONS = [
    (r"(add|sub|mul)\.rn\.(f32|f64)", "{2} {2} {2}", "{a} {infix} {b}"),
    (r"fma\.rn\.f32", "f32 f32 f32 f32", "fmaf({a}, {b}, {c})"),
    (r"fma\.rn\.f64", "f64 f64 f64 f64", "fma({a}, {b}, {c})"),
    (r"div\.rn\.(f32|f64)", "{1} {1} {1}", "{a} / {b}"),
    (r"rcp\.rn\.(f32|f64)", "{1} {1}", "1 / {a}"),
    (r"sqrt\.rn\.f32", "f32 f32", "sqrtf({a})"),
    (r"sqrt\.rn\.f64", "f64 f64", "sqrt({a})"),
    (r"abs\.f(32|64)", "b{1} b{1}", "{a} << 1 >> 1"),
    (r"neg\.f32", "b32 b32", "{a} ^ 0x80000000u"),
    (r"neg\.f64", "b64 b64", "{a} ^ 0x8000000000000000ull"),
    (r"(min|max)\.(f32|f64)", "{2} {2} {2}", "emu_{1}({a}, {b})"),
    (r"(add|sub)\.s(32|64)", "u{2} u{2} u{2}", "{a} {infix} {b}"),
    (r"(and|or|xor)\.(pred|b16|b32|b64)", "{2} {2} {2}", "{a} {infix} {b}"),
    (r"not\.pred", "pred pred", "!{a}"),
    (r"not\.(b32|b64)", "{1} {1}", "~{a}"),
    (r"neg\.s(32|64)", "u{1} u{1}", "0 - {a}"),
    (r"(min|max)\.([us](?:16|32|64))", "{2} {2} {2}", "{a} {infix} {b} ? {a} : {b}"),
    (r"mul\.wide\.u32", "u64 u32 u32", "(uint64_t){a} * {b}"),
    (r"mul\.wide\.s32", "s64 s32 s32", "(int64_t){a} * {b}"),
    (r"mul\.lo\.s(32|64)", "u{1} u{1} u{1}", "{a} * {b}"),
    (r"mad\.lo\.s(32|64)", "u{1} u{1} u{1} u{1}", "{a} * {b} + {c}"),
    (r"(div|rem)\.(u16|u32|u64)", "{2} {2} {2}", "emu_{1}({a}, {b})"),
    (r"shl\.(b32|b64)", "{1} {1} u32", "{b} >= {bits}u ? 0 : {a} << {b}"),  # by the width and more: zeros
    (r"shr\.(u32|u64)", "{1} {1} u32", "{b} >= {bits}u ? 0 : {a} >> {b}"),
    (r"bfi\.b64", "u64 u64 u64 u32 u32", "emu_bfi({a}, {b}, {c}, {d})"),
    (r"popc\.b32", "u32 u32", "__builtin_popcount({a})"),
    (r"selp\.[usbf](16|32|64)", "b{1} b{1} b{1} pred", "{c} ? {a} : {b}"),
    (r"cvta\.to\.global\.u64", "u64 u64", "{a}"),
    (r"cvt\.([us](?:8|16|32|64))\.([us](?:8|16|32|64))", "{1} {2}", "{a}"),
    (r"cvt\.f64\.f32", "f64 f32", "{a}"),
    (r"cvt\.rn\.f32\.f64", "f32 f64", "(float){a}"),
    (r"cvt\.rn\.f32\.(u32|u64)", "f32 {1}", "(float){a}"),
    (r"cvt\.rn\.f64\.(u32|u64)", "f64 {1}", "(double){a}"),
    (r"cvt\.f32\.f16", "f32 u16", "emu_from_f16({a})"),
]


@dataclass
class Operands:
    """Names in reach of one instruction, and which registers it reads and writes."""
    kernel: object
    line: int
    args: list
    reads: set = field(default_factory=set)
    writes: set = field(default_factory=set)

    def register(self, name):
        if name not in self.kernel.registers:
            raise PtxError(self.line, f"register %{name} is not declared")
        return name

    def bits_of(self, text):
        """A C expression of the operand's bits, as an unsigned integer or an integer literal."""
        if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
            return f"0x{m[1]}u"
        if m := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
            return f"0x{m[1]}ull"
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            value = int(text.rstrip("U"), 0) & 0xffffffffffffffff
            return f"{value:#x}ull"
        if m := re.fullmatch(r"%(tid|ntid|ctaid|nctaid)\.x", text):
            return f"x->{m[1]}"
        if text.startswith("%"):
            name = self.register(text[1:])
            self.reads.add(name)
            return f"r->{name}"
        if text in self.kernel.registers:  # of inline assembly
            self.reads.add(text)
            return f"r->{text}"
        for base, places in (("SHARED", self.kernel.shared), ("PARAM", self.kernel.params)):
            for place in places:
                if place.name == text:
                    return f"(EMU_{base}_BASE + {place.offset}ull)"
        raise PtxError(self.line, f"operand not understood: {text}")

    def read(self, i, kind):
        return self.value(self.args[i], kind)

    def value(self, text, kind):
        """The operand as a C expression of type `kind`: u32, s64, f32, pred, b16 ..."""
        if text.startswith("!"):
            return f"!{self.value(text[1:], kind)}"
        bits = self.bits_of(text)
        if kind == "f32":
            return f"emu_f32({bits})"
        if kind == "f64":
            return f"emu_f64({bits})"
        if kind == "pred":
            return f"({bits} != 0)"
        return f"(({c_type(kind)}){bits})"

    def write(self, i, kind, expression):
        return self.assign(self.args[i], kind, expression)

    def assign(self, target, kind, expression):
        if target == "_":
            return f"(void)({expression});"
        name = self.register(target.lstrip("%"))
        self.writes.add(name)
        if kind == "f32":
            expression = f"emu_bits32({expression})"
        elif kind == "f64":
            expression = f"emu_bits64({expression})"
        elif kind == "pred":
            expression = f"({expression}) != 0"
        elif kind[0] == "s":  # a register wider than the type is filled with the sign
            expression = f"({c_type('u%d' % max(self.kernel.registers[name], 8))})({c_type(kind)})({expression})"
        else:
            expression = f"({c_type(kind)})({expression})"
        return f"r->{name} = {expression};"

    def address(self, i):
        """An address operand as (base text, offset)."""
        m = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", self.args[i])
        if m is None:
            raise PtxError(self.line, f"address not understood: {self.args[i]}")
        return m[1], int(m[2] or "0", 0)


def c_type(kind):
    return f"{'int' if kind[0] == 's' else 'uint'}{BITS[kind]}_t"


def computes(types, expression):
    """The function of a form of EXPRESSIONS."""
    def function(m, o):
        groups = (m[0], *m.groups())
        result, *kinds = types.format(*groups).split()
        operands = {name: o.read(i, kind) for i, (name, kind) in enumerate(zip("abcd", kinds), 1)}
        words = {"infix": INFIX.get(m[0].split(".")[0]), "bits": BITS.get(result)}
        return o.write(0, result, expression.format(*groups, **words, **operands))
    return function


FORMS = [(re.compile(pattern), computes(types, expression)) for pattern, types, expression in EXPRESSIONS]


def form(pattern):
    def register(function):
        FORMS.append((re.compile(pattern), function))
        return function
    return register


# ---- comparison, moves --------------------------------------------------------------------------------------------------

@form(r"setp\.(eq|ne|lt|le|gt|ge)(u?)\.([usbf](?:16|32|64))")
def set_predicate(m, o):
    """Of floats: ordered comparisons are false where there is a NaN, unordered ones true."""
    a, b = o.read(1, m[3]), o.read(2, m[3])
    test = f"{a} {COMPARE[m[1]]} {b}"
    if m[3][0] == "f":
        test = f"emu_is_unordered({a}, {b}) || {test}" if m[2] else f"!emu_is_unordered({a}, {b}) && {test}"
    return o.write(0, "pred", test)


@form(r"mov\.(pred|[usbf](?:16|32|64))")
def move(m, o):
    kind = m[1] if m[1] == "pred" else "b" + m[1][1:]
    return o.write(0, kind, o.read(1, kind))


# ---- memory -----------------------------------------------------------------------------------------------------------

ACCESS = r"(?:\.(volatile))?(?:\.(global|shared|param))?(?:\.nc)?(?:\.(v2|v4))?\.([usbf](?:8|16|32|64))"


def effective_address(o, i, space):
    base, offset = o.address(i)
    if space == "shared" and base.startswith("%"):
        start = f"(EMU_SHARED_BASE + ({o.value(base, 'u64')} & EMU_SHARED_MASK))"  # also of 32 bits
    else:
        start = o.value(base, "u64")
    return f"{start} + {offset}ll" if offset >= 0 else f"{start} - {-offset}ll"


@form("ld" + ACCESS)
def load(m, o):
    is_volatile, space, vector, kind = m.groups()
    n = BITS[kind] // 8
    targets = split_list(o.args[0][1:-1]) if vector else [o.args[0]]
    if len(targets) != int((vector or "v1")[1]):
        raise PtxError(o.line, "vector of another length")
    code = "{ " + access(o, 1, space, n * len(targets), "EMU_LOAD", is_volatile)
    for i, target in enumerate(targets):
        bits = f"emu_get{8 * n}(p + {i * n})"
        if kind[0] == "f":
            kind = "b" + kind[1:]
        code += o.assign(target, kind, bits) + " "
    return code + "}"


@form("st" + ACCESS)
def store(m, o):
    is_volatile, space, vector, kind = m.groups()
    if space == "param":
        raise PtxError(o.line, m[0])
    n = BITS[kind] // 8
    values = split_list(o.args[1][1:-1]) if vector else [o.args[1]]
    code = "{ " + access(o, 0, space, n * len(values), "EMU_STORE", is_volatile)
    for i, value in enumerate(values):
        code += f"emu_put{8 * n}(p + {i * n}, {o.value(value, f'b{8 * n}')}); "
    return code + "}"


def access(o, i, space, nbytes, what, is_volatile):
    """Declares p, where the bytes of a checked access lie; a volatile one is between threads (emu.h)."""
    where = effective_address(o, i, space)
    if space == "param":
        return f"const unsigned char *p = emu_param(x, {where}, {nbytes}, {o.line}); "
    kind = what + ("_RELAXED" if is_volatile else "")
    return f"unsigned char *p = emu_access(x, {where}, {nbytes}, {kind}, {o.line}); "


@form(r"atom(?:\.(global))?\.(?:(add)\.u|or\.b)(32|64)")
def atomic(m, o):
    bits = m[3]
    call = f"emu_atom{bits}(x, {effective_address(o, 1, m[1])}, {int(bool(m[2]))}, {o.read(2, 'u' + bits)}, {o.line})"
    return o.write(0, "b" + bits, call)


@form(r"membar\.(gl|sys)")
def fence(_, __):
    return ";"


# ---- rendezvous: the kernel returns and is called again when all have come ----------------------------------------------

def meeting(o, site, kind, mask, value="0", argument="0", clamp="0"):
    """Code up to the place where the thread goes on; the result is then in x->result and x->result_pred."""
    return (f"x->meet = (emu_meet_t){{EMU_{kind}, {site}, {o.line}, {mask}, {value}, {argument}, {clamp}}}; r->pc = {site}; "
            f"return EMU_MEETS; case {site}:; ")


MEETINGS = re.compile(r"(bar|barrier|shfl|vote)\..*")


@form(r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?")
def barrier(_, o, site):
    if o.args != ["0"]:
        raise PtxError(o.line, "only barrier 0 with all threads is known")
    return meeting(o, site, "BARRIER", "0")


@form(r"(?:bar|barrier)(?:\.cta)?\.red\.or(?:\.aligned)?\.pred")
def barrier_or(_, o, site):
    if len(o.args) != 3 or o.args[1] != "0":
        raise PtxError(o.line, "only barrier 0 with all threads is known")
    return meeting(o, site, "BARRIER", "0", o.read(2, "pred")) + o.write(0, "pred", "x->result")


@form(r"bar\.warp\.sync")
def warp_barrier(_, o, site):
    return meeting(o, site, "WARP", o.read(0, "u32"))


@form(r"shfl\.sync\.(bfly|idx)\.b32")
def shuffle(m, o, site):
    target, _, predicate = o.args[0].partition("|")
    code = meeting(o, site, f"SHFL_{m[1].upper()}", o.read(4, "u32"), o.read(1, "u32"), o.read(2, "u32"), o.read(3, "u32"))
    code += o.assign(target, "b32", "x->result")
    return code + (o.assign(predicate, "pred", "x->result_pred") if predicate else "")


@form(r"vote\.sync\.ballot\.b32")
def ballot(_, o, site):
    return meeting(o, site, "BALLOT", o.read(2, "u32"), o.read(1, "pred")) + o.write(0, "b32", "x->result")


def translate(opcode, operands, site):
    """C for one instruction; `site` numbers the rendezvous of a kernel."""
    for pattern, why in REFUSED:
        if re.fullmatch(pattern, opcode):
            raise PtxError(operands.line, f"{opcode} {why}")
    for pattern, function in FORMS:
        if m := pattern.fullmatch(opcode):
            return function(m, operands, site) if is_meeting(opcode) else function(m, operands)
    raise PtxError(operands.line, f"{opcode} is not known")


def is_meeting(opcode):
    return MEETINGS.fullmatch(opcode) is not None
