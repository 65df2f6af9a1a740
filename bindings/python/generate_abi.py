#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes zfplugin/_abi.py from abi/layout/v0.4.txt: constants, structs and function prototypes for ctypes.

    python3 generate_abi.py            write it
    python3 generate_abi.py --check    exit status 1 if it is not what the layout says

The golden layout is the one machine-readable form of the headers (`zf-conform abi --print-layout`), so a change of the
ABI reaches Python by running this once more. The result is committed: an installed package needs no layout file.
"""
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAYOUT = HERE.parent.parent / "abi" / "layout" / "v0.4.txt"
OUTPUT = HERE / "zfplugin" / "_abi.py"

SCALARS = {
    "uint8_t": "C.c_uint8", "uint16_t": "C.c_uint16", "uint32_t": "C.c_uint32", "uint64_t": "C.c_uint64",
    "int32_t": "C.c_int32", "int64_t": "C.c_int64", "double": "C.c_double", "zf_status_t": "C.c_int32",
}
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The ABI for ctypes. Written by generate_abi.py from abi/layout/v0.4.txt: change that, not this.

Structs have the names of the C headers without zf_ and _t. LAYOUT holds the golden sizes and offsets for the test that
compares them with what ctypes made. Pointers are plain addresses (c_void_p), strings that the plugin returns c_char_p.
"""
import ctypes as C

'''


def class_name(c_name):
    return "".join(word.capitalize() for word in re.sub(r"^zf_|_t$", "", c_name).split("_"))


def split_arguments(text):
    """'int32_t, void (*)(void *), void *' -> three strings; commas inside parentheses do not count."""
    parts, depth, at = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[at:i])
            at = i + 1
    return [part.strip() for part in parts + [text[at:]] if part.strip() not in ("", "void")]


def value_type(text):
    """ctypes expression of an argument or result."""
    if text == "void":
        return "None"
    if "*" in text:
        return "C.c_void_p"
    if text in SCALARS:
        return SCALARS[text]
    raise SystemExit(f"generate_abi: no rule for the type '{text}'")


def member_type(text):
    """ctypes expression of a struct member."""
    function = re.fullmatch(r"(.+?)\s*\(\*\w+\)\((.*)\)", text)
    if function:
        types = [value_type(function[1].strip())] + [value_type(arg) for arg in split_arguments(function[2])]
        return f"C.CFUNCTYPE({', '.join(types)})"
    array = re.fullmatch(r"char\[(\d+)\]", text)
    if array:
        return f"C.c_char * {array[1]}"
    if text == "const char *":
        return "C.c_char_p"
    if text.startswith("zf_") and "*" not in text and text not in SCALARS:
        return class_name(text)
    return value_type(text)


def split_member(text):
    """'const uint32_t * abis' or 'zf_status_t (*step)(...)' -> type, name."""
    function = re.search(r"\(\*(\w+)\)", text)
    if function:
        return text, function[1]
    kind, name = text.rsplit(" ", 1)
    return kind, name


def parse(lines):
    """Yields ('const', name, value), ('string', name, value), ('struct', name, size, [(name, type, offset, size)])."""
    struct = None
    for line in lines:
        if line.startswith("  ") and struct:
            offset, size, rest = line.split(None, 2)
            kind, name = split_member(rest)
            struct[3].append((name, kind, int(offset), int(size)))
            continue
        if struct:
            yield tuple(struct)
            struct = None
        words = line.split()
        if not words or words[0] in ("#", "symbol", "header", "macro", "typedef", "opaque", "function"):
            continue  # ctypes needs none of these: SCALARS says what is behind zf_status_t
        if words[0] in ("const", "string"):
            yield words[0], words[1], words[2]
        elif words[0] == "struct":
            struct = ["struct", words[1], int(words[3]), []]
        else:
            raise SystemExit(f"generate_abi: no rule for the line '{line}'")
    if struct:
        yield tuple(struct)


def generate(lines):
    out, layout = [HEAD], []
    for item in parse(lines):
        if item[0] == "const":
            out.append(f"{item[1].removeprefix('ZF_')} = {item[2]}\n")
        elif item[0] == "string":
            out.append(f"{item[1].removeprefix('ZF_')} = {item[2]!r}\n".replace("'", '"'))
        else:
            _, name, size, members = item
            out.append(f"\n\nclass {class_name(name)}(C.Structure):\n    _fields_ = [\n")
            out += [f'        ("{member}", {member_type(kind)}),\n' for member, kind, _, _ in members]
            out.append("    ]\n\n\n")
            places = ", ".join(f'("{member}", {offset}, {nbytes})' for member, _, offset, nbytes in members)
            layout.append(f'    "{class_name(name)}": ({size}, [{places}]),\n')
    out.append("\n# struct: (size, [(member, offset, size)])\nLAYOUT = {\n" + "".join(layout) + "}\n")
    return re.sub(r"\n{4,}", "\n\n\n", "".join(out))


def main():
    text = generate(LAYOUT.read_text().splitlines())
    if "--check" not in sys.argv[1:]:
        OUTPUT.write_text(text)
        return 0
    if OUTPUT.read_text() == text:
        return 0
    print(f"{OUTPUT} is not what {LAYOUT} says: run python3 {HERE / 'generate_abi.py'}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
