# SPDX-License-Identifier: Apache-2.0
"""forms.py - the PTX instructions that ptx2c knows, each as C: those that nvcc makes of our kernels.

A form is a regular expression over the whole opcode and a function that writes C for it. An opcode that no form matches is an
error, and so is one that REFUSED matches: arithmetic that is not IEEE, or that the assembler may contract, has no one result.

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
INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "div": "/"}


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


FORMS = []


def form(pattern):
    def register(function):
        FORMS.append((re.compile(pattern), function))
        return function
    return register


# ---- floating point ---------------------------------------------------------------------------------------------------

@form(r"(add|sub|mul)\.rn\.(f32|f64)")
def float_infix(m, o):
    return o.write(0, m[2], f"{o.read(1, m[2])} {INFIX[m[1]]} {o.read(2, m[2])}")


@form(r"fma\.rn\.(f32|f64)")
def float_fma(m, o):
    return o.write(0, m[1], f"{'fmaf' if m[1] == 'f32' else 'fma'}({o.read(1, m[1])}, {o.read(2, m[1])}, {o.read(3, m[1])})")


@form(r"div\.rn\.(f32|f64)")
def float_div(m, o):
    return o.write(0, m[1], f"{o.read(1, m[1])} / {o.read(2, m[1])}")


@form(r"rcp\.rn\.(f32|f64)")
def float_rcp(m, o):
    return o.write(0, m[1], f"1 / {o.read(1, m[1])}")


@form(r"sqrt\.rn\.(f32|f64)")
def float_sqrt(m, o):
    return o.write(0, m[1], f"{'sqrtf' if m[1] == 'f32' else 'sqrt'}({o.read(1, m[1])})")


@form(r"(abs|neg)\.f(32|64)")
def float_sign(m, o):
    sign = "0x80000000u" if m[2] == "32" else "0x8000000000000000ull"
    change = f"& ~{sign}" if m[1] == "abs" else f"^ {sign}"
    return o.write(0, "b" + m[2], f"{o.read(1, 'b' + m[2])} {change}")


@form(r"(min|max)\.(f32|f64)")
def float_min_max(m, o):
    return o.write(0, m[2], f"({'float' if m[2] == 'f32' else 'double'})emu_{m[1]}({o.read(1, m[2])}, {o.read(2, m[2])})")


# ---- integers ---------------------------------------------------------------------------------------------------------

@form(r"(add|sub)\.s(32|64)")
def int_add(m, o):
    kind = "u" + m[2]
    return o.write(0, kind, f"{o.read(1, kind)} {INFIX[m[1]]} {o.read(2, kind)}")


@form(r"(and|or|xor)\.(pred|b16|b32|b64)")
def int_logic(m, o):
    return o.write(0, m[2], f"{o.read(1, m[2])} {INFIX[m[1]]} {o.read(2, m[2])}")


@form(r"not\.(pred|b32|b64)")
def int_not(m, o):
    return o.write(0, m[1], f"{'!' if m[1] == 'pred' else '~'}{o.read(1, m[1])}")


@form(r"neg\.s(32|64)")
def int_neg(m, o):
    return o.write(0, "u" + m[1], f"0 - {o.read(1, 'u' + m[1])}")


@form(r"(min|max)\.([us](?:16|32|64))")
def int_min_max(m, o):
    a, b = o.read(1, m[2]), o.read(2, m[2])
    return o.write(0, m[2], f"{a} {'<' if m[1] == 'min' else '>'} {b} ? {a} : {b}")


@form(r"mul\.wide\.([us])32")
def int_mul_wide(m, o):
    kind = c_type(f"{m[1]}64")
    return o.write(0, "u64", f"({kind}){o.read(1, m[1] + '32')} * ({kind}){o.read(2, m[1] + '32')}")


@form(r"(mul|mad)\.lo\.s(32|64)")
def int_mul(m, o):
    kind = "u" + m[2]
    product = f"{o.read(1, kind)} * {o.read(2, kind)}"
    return o.write(0, kind, product + (f" + {o.read(3, kind)}" if m[1] == "mad" else ""))


@form(r"(div|rem)\.(u16|u32|u64)")
def int_div(m, o):
    return o.write(0, m[2], f"emu_{m[1]}({o.read(1, m[2])}, {o.read(2, m[2])})")


@form(r"shl\.(b32|b64)|shr\.(u32|u64)")
def int_shift(m, o):
    """Shifts by the width and more give zeros."""
    kind = m[1] or m[2]
    by = o.read(2, "u32")
    return o.write(0, kind, f"{by} >= {BITS[kind]}u ? 0 : {o.read(1, kind)} {'<<' if m[1] else '>>'} {by}")


@form(r"bfi\.b64")
def int_bfi(_, o):
    return o.write(0, "u64", f"emu_bfi({o.read(1, 'u64')}, {o.read(2, 'u64')}, {o.read(3, 'u32')}, {o.read(4, 'u32')})")


@form(r"popc\.b32")
def int_count(_, o):
    return o.write(0, "u32", f"__builtin_popcount({o.read(1, 'u32')})")


# ---- comparison, choice, moves ------------------------------------------------------------------------------------------

@form(r"setp\.(eq|ne|lt|le|gt|ge)(u?)\.([usbf](?:16|32|64))")
def set_predicate(m, o):
    """Of floats: ordered comparisons are false where there is a NaN, unordered ones true."""
    a, b = o.read(1, m[3]), o.read(2, m[3])
    test = f"{a} {COMPARE[m[1]]} {b}"
    if m[3][0] == "f":
        test = f"emu_is_unordered({a}, {b}) || {test}" if m[2] else f"!emu_is_unordered({a}, {b}) && {test}"
    return o.write(0, "pred", test)


@form(r"selp\.([usbf](?:16|32|64))")
def select(m, o):
    kind = "b" + m[1][1:]
    return o.write(0, kind, f"{o.read(3, 'pred')} ? {o.read(1, kind)} : {o.read(2, kind)}")


@form(r"mov\.(pred|[usbf](?:16|32|64))")
def move(m, o):
    kind = m[1] if m[1] == "pred" else "b" + m[1][1:]
    return o.write(0, kind, o.read(1, kind))


@form(r"cvta\.to\.global\.u64")
def convert_address(_, o):
    return o.write(0, "u64", o.read(1, "u64"))


@form(r"cvt\.([us](?:8|16|32|64))\.([us](?:8|16|32|64))")
def convert_int(m, o):
    return o.write(0, m[1], f"({c_type(m[1])}){o.read(1, m[2])}")


@form(r"cvt\.f64\.f32|cvt\.rn\.f32\.f64")
def convert_float(m, o):
    to, source = m[0].split(".")[-2:]
    return o.write(0, to, f"({'float' if to == 'f32' else 'double'}){o.read(1, source)}")


@form(r"cvt\.rn\.(f32|f64)\.(u32|u64)")
def convert_from_int(m, o):
    return o.write(0, m[1], f"({'float' if m[1] == 'f32' else 'double'}){o.read(1, m[2])}")


@form(r"cvt\.f32\.f16")
def convert_from_half(_, o):
    return o.write(0, "f32", f"emu_from_f16({o.read(1, 'u16')})")


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
