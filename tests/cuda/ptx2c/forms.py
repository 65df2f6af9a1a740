# SPDX-License-Identifier: Apache-2.0
"""forms.py - the PTX instructions that ptx2c knows, each as C.

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

SPECIAL = {"%laneid": "x->lane", "%lanemask_lt": "((1u << x->lane) - 1)", "%lanemask_eq": "(1u << x->lane)",
           "%lanemask_le": "((2u << x->lane) - 1)", "%lanemask_gt": "(~((2u << x->lane) - 1))",
           "%lanemask_ge": "(~((1u << x->lane) - 1))", "WARP_SZ": "32u"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "div": "/", "rem": "%"}


@dataclass
class Operands:
    """Names in reach of one instruction, and which registers it reads and writes."""
    kernel: object
    constants: dict
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
        if m := re.fullmatch(r"%(tid|ntid|ctaid|nctaid)\.([xyz])", text):
            return f"x->{m[1]}[{'xyz'.index(m[2])}]"
        if text in SPECIAL:
            return SPECIAL[text]
        if text.startswith("%"):
            name = self.register(text[1:])
            self.reads.add(name)
            return f"r->{name}"
        if text in self.kernel.registers:  # of inline assembly
            self.reads.add(text)
            return f"r->{text}"
        for v in self.kernel.shared:
            if v.name == text:
                return f"(EMU_SHARED_BASE + {v.offset}ull)"
        if text in self.constants:
            return f"((uint64_t)(uintptr_t){self.constants[text]})"
        for p in self.kernel.params:
            if p.name == text:
                return f"(EMU_PARAM_BASE + {p.offset}ull)"
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


def unsigned(kind):
    return "u" + kind[1:]


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
    return o.write(0, m[2], f"emu_{m[1]}_{m[2]}({o.read(1, m[2])}, {o.read(2, m[2])})")


# ---- integers ---------------------------------------------------------------------------------------------------------

@form(r"(add|sub)\.([us])(16|32|64)")
def int_add(m, o):
    kind = "u" + m[3]
    return o.write(0, m[2] + m[3], f"({c_type(kind)})({o.read(1, kind)} {INFIX[m[1]]} {o.read(2, kind)})")


@form(r"(and|or|xor)\.(pred|b16|b32|b64)")
def int_logic(m, o):
    return o.write(0, m[2], f"{o.read(1, m[2])} {INFIX[m[1]]} {o.read(2, m[2])}")


@form(r"not\.(pred|b16|b32|b64)")
def int_not(m, o):
    return o.write(0, m[1], f"{'!' if m[1] == 'pred' else '~'}{o.read(1, m[1])}")


@form(r"neg\.s(16|32|64)")
def int_neg(m, o):
    return o.write(0, "s" + m[1], f"(uint{m[1]}_t)(0 - {o.read(1, 'u' + m[1])})")


@form(r"(min|max)\.([us](?:16|32|64))")
def int_min_max(m, o):
    a, b = o.read(1, m[2]), o.read(2, m[2])
    return o.write(0, m[2], f"{a} {'<' if m[1] == 'min' else '>'} {b} ? {a} : {b}")


@form(r"(mul|mad)\.(lo|hi|wide)\.([us])(16|32|64)")
def int_mul(m, o):
    op, part, sign, bits = m[1], m[2], m[3], int(m[4])
    kind = f"{sign}{bits}"
    a, b = o.read(1, kind), o.read(2, kind)
    if part == "wide":
        kind = f"{sign}{2 * bits}"
        product = f"({c_type(kind)}){a} * ({c_type(kind)}){b}"
    elif part == "hi":
        wide = ("" if sign == "s" else "unsigned ") + "__int128"
        product = f"({c_type(kind)})((({wide}){a} * {b}) >> {bits})"
    else:
        product = f"(uint{bits}_t)((uint64_t){o.read(1, f'u{bits}')} * {o.read(2, f'u{bits}')})"
    if op == "mad":
        u = unsigned(kind)
        product = f"({c_type(u)})(({c_type(u)})({product}) + {o.read(3, u)})"
    return o.write(0, kind, product)


@form(r"(div|rem)\.([us](?:16|32|64))")
def int_div(m, o):
    return o.write(0, m[2], f"emu_{m[1]}_{m[2][0]}64({o.read(1, m[2])}, {o.read(2, m[2])})")


@form(r"(shl|shr)\.([bus])(16|32|64)")
def int_shift(m, o):
    """Shifts by the width and more give zeros, or the sign."""
    kind, width = m[2] + m[3], int(m[3])
    a, by = o.read(1, kind), o.read(2, "u32")
    if m[1] == "shl":
        return o.write(0, kind, f"{by} >= {width}u ? 0 : {o.read(1, unsigned(kind))} << {by}")
    if m[2] == "s":
        return o.write(0, kind, f"{a} >> ({by} >= {width}u ? {width - 1}u : {by})")
    return o.write(0, kind, f"{by} >= {width}u ? 0 : {a} >> {by}")


@form(r"shf\.(l|r)\.(wrap|clamp)\.b32")
def int_funnel(m, o):
    by = f"({o.read(3, 'u32')} & 31u)" if m[2] == "wrap" else f"({o.read(3, 'u32')} > 32u ? 32u : {o.read(3, 'u32')})"
    both = f"(((uint64_t){o.read(2, 'u32')} << 32) | {o.read(1, 'u32')})"
    shifted = f"({both} << {by}) >> 32" if m[1] == "l" else f"{both} >> {by}"
    return o.write(0, "b32", shifted)


@form(r"bfe\.(u32|s32|u64|s64)")
def int_bfe(m, o):
    return o.write(0, m[1], f"emu_bfe_{m[1]}({o.read(1, m[1])}, {o.read(2, 'u32')}, {o.read(3, 'u32')})")


@form(r"bfi\.b(32|64)")
def int_bfi(m, o):
    kind = "u" + m[1]
    return o.write(0, kind, f"emu_bfi_{kind}({o.read(1, kind)}, {o.read(2, kind)}, {o.read(3, 'u32')}, {o.read(4, 'u32')})")


@form(r"(popc|clz)\.b(32|64)")
def int_count(m, o):
    return o.write(0, "u32", f"emu_{m[1]}_{m[2]}({o.read(1, 'u' + m[2])})")


@form(r"prmt\.b32")
def int_prmt(_, o):
    return o.write(0, "b32", f"emu_prmt({o.read(1, 'u32')}, {o.read(2, 'u32')}, {o.read(3, 'u32')})")


@form(r"dp(2a\.lo|2a\.hi|4a)\.([us])32\.([us])32")
def int_dot(m, o):
    """The sum of c and the products of a's parts (two of 16 bits, or four of 8) with bytes of b."""
    n, width = (4, 8) if m[1] == "4a" else (2, 16)
    first = 2 if m[1] == "2a.hi" else 0
    part = lambda i, sign, bits, at: f"(({'' if sign == 's' else 'u'}int{bits}_t)({o.read(i, 'u32')} >> {at}))"
    products = [f"(uint32_t)({part(1, m[2], width, width * k)} * {part(2, m[3], 8, 8 * (first + k))})" for k in range(n)]
    return o.write(0, "u32", " + ".join([o.read(3, "u32")] + products))


# ---- comparison, choice, moves ------------------------------------------------------------------------------------------

def comparison(op, kind, a, b):
    if op in ("num", "nan"):
        return f"emu_is_unordered({a}, {b}) == {int(op == 'nan')}"
    if kind[0] != "f":
        if op not in COMPARE:
            return None
        return f"{a} {COMPARE[op]} {b}"
    if op.endswith("u") and op[:-1] in COMPARE:
        return f"(emu_is_unordered({a}, {b}) || {a} {COMPARE[op[:-1]]} {b})"
    return f"(!emu_is_unordered({a}, {b}) && {a} {COMPARE[op]} {b})"


@form(r"setp\.(\w+)\.(?:(and|or|xor)\.)?([usbf](?:16|32|64))")
def set_predicate(m, o):
    test = comparison(m[1], m[3], o.read(1, m[3]), o.read(2, m[3]))
    if test is None:
        raise PtxError(o.line, f"comparison {m[1]} of {m[3]}")
    targets = o.args[0].split("|")
    joined = lambda t: f"({t}) {INFIX[m[2]]} {o.read(3, 'pred')}" if m[2] else t
    if len(targets) == 1:
        return o.assign(targets[0], "pred", joined(test))
    return f"{{ int t = {joined(test)}, f = {joined(f'!({test})')}; {o.assign(targets[0], 'pred', 't')} {o.assign(targets[1], 'pred', 'f')} }}"


@form(r"selp\.([usbf](?:16|32|64))")
def select(m, o):
    kind = "b" + m[1][1:]
    return o.write(0, kind, f"{o.read(3, 'pred')} ? {o.read(1, kind)} : {o.read(2, kind)}")


@form(r"mov\.(pred|[usbf](?:16|32|64))")
def move(m, o):
    kind = m[1] if m[1] == "pred" else "b" + m[1][1:]
    if o.args[0].startswith("{"):
        parts = split_list(o.args[0][1:-1])
        width = BITS[kind] // len(parts)
        whole = o.read(1, kind)
        moves = " ".join(o.assign(p, f"b{width}", f"v >> {i * width}") for i, p in enumerate(parts))
        return f"{{ uint64_t v = {whole}; {moves} }}"
    if o.args[1].startswith("{"):
        parts = split_list(o.args[1][1:-1])
        width = BITS[kind] // len(parts)
        return o.write(0, kind, " | ".join(f"((uint64_t){o.value(p, f'b{width}')} << {i * width})" for i, p in enumerate(parts)))
    return o.write(0, kind, o.read(1, kind))


@form(r"cvta(?:\.to)?\.(global|shared|const)\.u64")
def convert_address(m, o):
    if m[0] == "cvta.shared.u64":
        return o.write(0, "u64", f"EMU_SHARED_BASE + ({o.read(1, 'u64')} & EMU_SHARED_MASK)")
    return o.write(0, "u64", o.read(1, "u64"))


@form(r"cvt\.([us](?:8|16|32|64))\.([us](?:8|16|32|64))")
def convert_int(m, o):
    return o.write(0, m[1], f"({c_type(m[1])}){o.read(1, m[2])}")


@form(r"cvt\.f64\.f32|cvt\.rn\.f32\.f64")
def convert_float(m, o):
    to, source = m[0].split(".")[-2:]
    return o.write(0, to, f"({'float' if to == 'f32' else 'double'}){o.read(1, source)}")


@form(r"cvt\.rn\.(f32|f64)\.([us](?:8|16|32|64))")
def convert_from_int(m, o):
    return o.write(0, m[1], f"({'float' if m[1] == 'f32' else 'double'}){o.read(1, m[2])}")


@form(r"cvt\.(f32|f64)\.f16")
def convert_from_half(m, o):
    return o.write(0, m[1], f"emu_from_f16({o.read(1, 'u16')})")


# ---- memory -----------------------------------------------------------------------------------------------------------

ACCESS = (r"(?:\.(weak|volatile|relaxed|acquire|release))?(?:\.(cta|cluster|gpu|sys))?(?:\.(global|shared|param|const))?"
          r"(?:\.nc)?(?:\.(ca|cg|cs|cv|lu|wb|wt))?(?:\.L1::\w+)?(?:\.L2::\w+)?(?:\.(v2|v4))?\.([usbf](?:8|16|32|64))")


def effective_address(o, i, space):
    base, offset = o.address(i)
    if space == "shared" and base.startswith("%"):
        start = f"(EMU_SHARED_BASE + ({o.value(base, 'u64')} & EMU_SHARED_MASK))"  # also of 32 bits
    else:
        start = o.value(base, "u64")
    return f"{start} + {offset}ll" if offset >= 0 else f"{start} - {-offset}ll"


@form("ld" + ACCESS)
def load(m, o):
    order, space, vector, kind = m[1], m[3], m[5], m[6]
    n = BITS[kind] // 8
    targets = split_list(o.args[0][1:-1]) if vector else [o.args[0]]
    if len(targets) != int((vector or "v1")[1]):
        raise PtxError(o.line, "vector of another length")
    code = "{ " + access(o, 1, space, n * len(targets), "EMU_LOAD", order)
    for i, target in enumerate(targets):
        bits = f"emu_get{8 * n}(p + {i * n})"
        if kind[0] == "f":
            kind = "b" + kind[1:]
        code += o.assign(target, kind, bits) + " "
    return code + "}"


@form("st" + ACCESS)
def store(m, o):
    order, space, vector, kind = m[1], m[3], m[5], m[6]
    if space in ("param", "const"):
        raise PtxError(o.line, m[0])
    n = BITS[kind] // 8
    values = split_list(o.args[1][1:-1]) if vector else [o.args[1]]
    code = "{ " + access(o, 0, space, n * len(values), "EMU_STORE", order)
    for i, value in enumerate(values):
        code += f"emu_put{8 * n}(p + {i * n}, {o.value(value, f'b{8 * n}')}); "
    return code + "}"


def access(o, i, space, nbytes, what, order):
    """Declares p, where the bytes of a checked access lie. An order makes it one between threads (emu.h)."""
    where = effective_address(o, i, space)
    if space == "param":
        return f"const unsigned char *p = emu_param(x, {where}, {nbytes}, {o.line}); "
    kind = what + {"acquire": "_ORDERED", "release": "_ORDERED", "volatile": "_RELAXED", "relaxed": "_RELAXED"}.get(order, "")
    return f"unsigned char *p = emu_access(x, {where}, {nbytes}, {kind}, {o.line}); "


@form(r"(atom|red)(?:\.(relaxed|acquire|release|acq_rel))?(?:\.(cta|gpu|sys))?(?:\.(global|shared))?\."
      r"(add|or|max)\.[ub](32|64)")
def atomic(m, o):
    returns, op, bits = m[1] == "atom", m[5], m[6]
    first = 1 if returns else 0
    call = f"emu_atom{bits}(x, {effective_address(o, first, m[4])}, EMU_ATOM_{op.upper()}, {o.read(first + 1, 'u' + bits)}, {o.line})"
    return o.write(0, "b" + bits, call) if returns else f"(void){call};"


@form(r"membar\.(cta|gl|sys)|fence(\.(sc|acq_rel))?\.(cta|gpu|sys)")
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


@form(r"(?:bar|barrier)(?:\.cta)?\.red\.(and|or|popc)(?:\.aligned)?\.(pred|u32)")
def barrier_reduce(m, o, site):
    if len(o.args) != 3 or o.args[1] != "0":
        raise PtxError(o.line, "only barrier 0 with all threads is known")
    code = meeting(o, site, f"BARRIER_{m[1].upper()}", "0", o.read(2, "pred"))
    return code + o.write(0, m[2], "x->result")


@form(r"bar\.warp\.sync")
def warp_barrier(_, o, site):
    return meeting(o, site, "WARP", o.read(0, "u32"))


@form(r"shfl\.sync\.(up|down|bfly|idx)\.b32")
def shuffle(m, o, site):
    target, _, predicate = o.args[0].partition("|")
    code = meeting(o, site, f"SHFL_{m[1].upper()}", o.read(4, "u32"), o.read(1, "u32"), o.read(2, "u32"), o.read(3, "u32"))
    code += o.assign(target, "b32", "x->result")
    return code + (o.assign(predicate, "pred", "x->result_pred") if predicate else "")


@form(r"vote\.sync\.(all|any|uni)\.pred|vote\.sync\.(ballot)\.b32")
def vote(m, o, site):
    kind = m[1] or m[2]
    code = meeting(o, site, f"VOTE_{kind.upper()}", o.read(2, "u32"), o.read(1, "pred"))
    return code + o.write(0, "b32" if kind == "ballot" else "pred", "x->result")


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
