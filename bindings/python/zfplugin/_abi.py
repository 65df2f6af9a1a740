# SPDX-License-Identifier: Apache-2.0
"""The ABI for ctypes, from abi.txt: the golden layout (abi/layout, `zf-conform abi --print-layout`), which an installed package carries.

Structs and constants have the names of the C headers without zf_, ZF_ and _t: Error, StepArgs, ERR_ARGUMENT. Pointers are plain
addresses (c_void_p), strings that the plugin returns c_char_p. LAYOUT: struct -> (size, [(member, offset, size)]), as the file says.
"""
import ctypes as C
import re
from pathlib import Path

SCALARS = {
    "uint8_t": C.c_uint8, "uint16_t": C.c_uint16, "uint32_t": C.c_uint32, "uint64_t": C.c_uint64,
    "int32_t": C.c_int32, "int64_t": C.c_int64, "double": C.c_double, "zf_status_t": C.c_int32,
}
LAYOUT = {}


def _class_name(c_name):
    return "".join(word.capitalize() for word in re.sub(r"^zf_|_t$", "", c_name).split("_"))


def _split_arguments(text):
    """'int32_t, void (*)(void *), void *' -> three strings; commas inside parentheses do not count."""
    parts, depth, at = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[at:i])
            at = i + 1
    return [part.strip() for part in parts + [text[at:]] if part.strip() not in ("", "void")]


def _value_type(text):
    """The type of an argument or a result."""
    if text == "void":
        return None
    return C.c_void_p if "*" in text else SCALARS[text]


def _member_type(text):
    function = re.fullmatch(r"(.+?)\s*\(\*\w+\)\((.*)\)", text)
    if function:
        return C.CFUNCTYPE(_value_type(function[1].strip()), *map(_value_type, _split_arguments(function[2])))
    array = re.fullmatch(r"char\[(\d+)\]", text)
    if array:
        return C.c_char * int(array[1])
    if text == "const char *":
        return C.c_char_p
    if text.startswith("zf_") and "*" not in text and text not in SCALARS:
        return globals()[_class_name(text)]
    return _value_type(text)


def _split_member(text):
    """'const uint32_t * abis' or 'zf_status_t (*step)(...)' -> name, type."""
    function = re.search(r"\(\*(\w+)\)", text)
    if function:
        return function[1], _member_type(text)
    kind, name = text.rsplit(" ", 1)
    return name, _member_type(kind)


def _add_struct(c_name, size, lines):
    name, rows = _class_name(c_name), [line.split(None, 2) for line in lines]
    fields = [_split_member(text) for _, _, text in rows]
    globals()[name] = type(name, (C.Structure,), {"_fields_": fields})
    LAYOUT[name] = (size, [(field[0], int(offset), int(nbytes)) for field, (offset, nbytes, _) in zip(fields, rows)])


def _read(text):
    """One name per constant, string and struct. ctypes needs no other line: SCALARS says what is behind zf_status_t."""
    for block in re.split(r"\n(?! )", text):
        head, *members = block.rstrip("\n").split("\n")
        kind, name, *rest = head.split() if head else ("#", "")
        if kind in ("const", "string"):
            globals()[name.removeprefix("ZF_")] = int(rest[0]) if kind == "const" else rest[0]
        elif kind == "struct":
            _add_struct(name, int(rest[1]), members)
        elif kind not in ("#", "symbol", "header", "macro", "typedef", "opaque", "function"):
            raise ImportError(f"zfplugin: no rule for the line '{head}' of abi.txt")


_read(Path(__file__).with_name("abi.txt").read_text(encoding="utf-8"))
