#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""declarations.py check|update|show ROOT, layout ROOT ZF_CONFORM - the public headers as text without comments and layout, the number of
the ABI, and the headers as compiled.

abi/layout/v*.txt is what a compiler makes of the headers; it cannot see names of parameters, attributes, conditions, extern "C",
prototypes, and in comments the tag of each slot: its thread, and the states in which it is legal. `show` prints every declaration, directive
and tag, one a line. abi/layout/numbers.txt has a line "number digest" for
each text which main ever had: one that changes needs a new number, and no line is ever changed. (Major 0: two sides with different numbers refuse each other, so no host meets a table
it does not know.) The first number of a major has the declarations of the number before it, its candidate, but for the number itself.

check    compares the last line; with git, the lines of every commit on the way to this one must be the first of today's
         also the oldest sizes of plugin/base/struct.h, and that each new kind that the plugin gives out names its flag of create
update   writes the new line; raise the number in zf/types.h first
layout   compares what `zf-conform abi --print-layout` prints with the golden layout, and its structs with the rules of every version"""

import difflib
import hashlib
import re
import subprocess
import sys
from pathlib import Path

TAG = re.compile(r"(?:^|\.\s)(\[(?:any-thread|control|hook|callback|lane|worker)\][^\[]*)\Z", re.M)
NUMBER = re.compile(r"#define ZF_ABI_\d+_\d+ ZF_ABI_NUMBER\((\d+), (\d+)\)")


def tag_of(comment):
    """The last words of a slot's comment, as a line of their own; else a blank."""
    found = TAG.search(re.sub(r"^\s*\*? ?", "", comment.group(1), flags=re.M).strip())
    return "\n@ " + re.sub(r"\s+", " ", found[1]) + "\n" if found else " "


def units(text):
    """Directives and tags as they are; declarations split behind each semicolon and opening brace; white space squeezed."""
    text = re.sub(r"/\*(.*?)\*/", tag_of, text.replace("\\\n", " "), flags=re.S)
    code = []

    def flush():
        joined = re.sub(r"\s*([(){}\[\],;*])\s*", r"\1", re.sub(r"\s+", " ", " ".join(code))).strip()
        code.clear()
        return [part for part in re.split(r"(?<=[;{])", joined) if part]

    for line in text.splitlines():
        if line.lstrip().startswith(("#", "@ ")):
            yield from flush()
            yield re.sub(r"\s+", " ", line.strip())
        else:
            code.append(line)
    yield from flush()


def declarations(include):
    """The text for every header below a folder, in order of names."""
    lines = []
    for header in sorted(Path(include).rglob("*.h")):
        lines.append(f"== {header.relative_to(include)}")
        lines += units(header.read_text(encoding="utf-8"))
    return "\n".join(lines) + "\n"


def number_of(text):
    found = [(int(a), int(b)) for a, b in NUMBER.findall(text)]
    if not found:
        sys.exit("FAIL: the headers define no ZF_ABI_x_y as ZF_ABI_NUMBER(x, y)")
    return max(found)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def difference(golden, now):
    """The first declaration that differs; None where none does."""
    for line in difflib.unified_diff(golden.splitlines(), now.splitlines(), lineterm="", n=0):
        if line[0] in "+-" and line[:3] not in ("+++", "---"):
            return line
    return None


def problem_of_numbers(lines, number, now):
    """What is wrong with the list, or None."""
    seen = [line.split()[0] for line in lines]
    numbers = [tuple(map(int, n.split("."))) for n in seen]
    if numbers != sorted(set(numbers)):
        return f"numbers.txt does not rise: {seen}"
    if not lines or lines[-1] != f"{number[0]}.{number[1]} {digest(now)}":
        return (f"these declarations are not what number {number[0]}.{number[1]} stands for: raise the number in zf/types.h, then "
                "`python3 tests/abi/declarations.py update .`")
    return None


def problem_of_freeze(lines, number, now):
    """A major begins with what its candidate had, or None."""
    if number[0] == 0 or number[1] != 0 or len(lines) < 2:
        return None
    candidate, wanted = lines[-2].split()
    x, y = candidate.split(".")
    text = now.replace(f"ZF_ABI_{number[0]}_0", f"ZF_ABI_{x}_{y}").replace(f"ZF_ABI_NUMBER({number[0]}, 0)", f"ZF_ABI_NUMBER({x}, {y})")
    return None if digest(text) == wanted else f"{number[0]}.0 is not its candidate {candidate} under another number: give this a number of its own first"


def problem_of_history(root, lines):
    """Lines of earlier commits that are gone or changed; None where there is no git."""
    path = "abi/layout/numbers.txt"
    log = subprocess.run(["git", "-C", root, "log", "--first-parent", "--format=%H", "--", path], capture_output=True, text=True,
                         check=False)
    for commit in log.stdout.split() if log.returncode == 0 else []:
        shown = subprocess.run(["git", "-C", root, "show", f"{commit}:{path}"], capture_output=True, text=True, check=False)
        before = shown.stdout.split("\n")[:-1] if shown.returncode == 0 else []
        if lines[: len(before)] != before:
            return f"numbers.txt of commit {commit[:10]} is not the beginning of today's: a number keeps its declarations"
    return None


def problem_of_layout(golden, now):
    """The first name of these declarations that no line of the golden layout has, or None. The guards of files have no value."""
    listed = set(re.findall(r"[\w/.]+", golden))
    for line in now.splitlines():
        if re.match(r"(typedef )?(enum|union)\b", line):
            return f"{line}: no enum and no union in the ABI"
        found = re.match(r"(?:== (\S+)$|#define (\w+)(?: |\()|typedef struct \w+ (\w+);|typedef .*\(\*(\w+)\)|typedef \w+ (\w+);|}(\w+);$)", line)
        name = found and next(filter(None, found.groups()))
        if name and name not in listed:
            return f"{name} has no line in the golden layout"
    return None


def problem_of_tags(now):
    """The first function of a table that no tag stands above, or None."""
    tag = None
    for line in now.splitlines():
        tag = None if line.startswith("typedef struct") else line if line.startswith("@ ") else tag
        found = re.search(r"^(?!typedef).*\(\*(\w+)\)\(", line)
        if found and not tag:
            return f"{found[1]}: its comment does not end with a thread tag"
    return None


def problem_of_structs(layout):
    """The first struct with a gap, or with a size, a begin or a type that no version has, or None."""
    allowed = re.compile(r"(uint(8|16)_t|u?int(32|64)_t|double|zf_(status|dtype|dl_tensor)_t|char\[\d+\]|.*\*) \w+$|.*\(\*")
    for name, kind, size, members in re.findall(r"^struct (\w+) (\w+) (\d+)\n((?:  .*\n)*)", layout, re.M):
        end = 0
        for offset, nbytes, what in re.findall(r"^  (\d+) (\d+) (.*)", members, re.M):
            if int(offset) != end:
                return f"{name}: a gap before {what}, or a member that has no line"
            if not allowed.match(what):
                return f"{name}: the type of {what} is not allowed"
            end += int(nbytes)
        if end != int(size) or end % (4 if kind == "value" else 8):
            return f"{name}: a gap at its end, a member that has no line, or a size that is no multiple of 8"
        if kind != "value" and not members.startswith("  0 4 uint32_t struct_size\n"):
            return f"{name} does not begin with struct_size"
    return None


def problem_of_first_sizes(golden, header):
    """The first size of ZFI_FIRST_... that is not the struct's in the oldest layout, or None."""
    sizes = dict(re.findall(r"^struct (\w+) \w+ (\d+)", golden, re.M))
    first = re.findall(r"ZFI_FIRST_(\w+) = ([^,]+),", header)
    wrong = [f"ZFI_FIRST_{name} = {size}, but the oldest layout has {sizes.get(name)} bytes" for name, size in first if sizes.get(name) != size]
    return "plugin/base/struct.h has no ZFI_FIRST_..." if not first else wrong[0] if wrong else None


def problem_of_readers(sources):
    """The first of (file, text) that reads a struct of the host's without its oldest size, or None."""
    for path, text in sources:
        found = re.search(r"\bzfi_(struct_read|struct_read_item|struct_check|array_check)\(", text)
        if found:
            return f"{path}: {found[0]} takes any size; use ZFI_READ, ZFI_READ_ITEM, ZFI_CHECK, ZFI_CHECK_ARRAY (base/struct.h)"
    return None


def problem_of_kinds(golden, headers):
    """The first kind given out that the oldest layout lacks and whose comment names no flag of create, or None."""
    statuses = headers.partition("typedef int32_t zf_status_t;")[2].partition("typedef")[0]
    kinds = re.findall(r"^#define (ZF_(?:FENCE|SKIP|COUNTER)_\w+) \d+(.*)", headers, re.M) + re.findall(r"^#define (\w+) [1-9]\d*\b(.*)", statuses, re.M)
    for name, comment in kinds:
        if not re.search(rf"^const {name} ", golden, re.M) and "ZF_CREATE_CAP_" not in comment:
            return f"{name} is a new kind that the plugin gives out: its comment must name the flag ZF_CREATE_CAP_... by which a host asks for it"
    return None


def oldest_layout(root):
    """Of the major that is served: its first; of major 0, where minors do not meet, the newest."""
    files = sorted((Path(root) / "abi/layout").glob("v*.txt"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    major = re.findall(r"\d+", files[-1].name)[0]
    return (files[-1] if major == "0" else Path(root) / f"abi/layout/v{major}.0.txt").read_text(encoding="utf-8")


def problem_of_growth(root):
    oldest, plugin = oldest_layout(root), Path(root) / "plugin"
    headers = "".join(path.read_text(encoding="utf-8") for path in sorted((Path(root) / "abi/include").rglob("*.h")))
    sources = [(path, path.read_text(encoding="utf-8")) for path in sorted(plugin.rglob("*.c")) if path.name != "struct.c"]
    return (problem_of_first_sizes(oldest, (plugin / "base/struct.h").read_text(encoding="utf-8")) or problem_of_readers(sources)
            or problem_of_kinds(oldest, headers))


def layout(root, conform):
    printed = subprocess.run([conform, "abi", "--print-layout"], capture_output=True, text=True, check=True).stdout
    golden = sorted((Path(root) / "abi/layout").glob("v*.txt"))[-1].read_text(encoding="utf-8")
    problem = difference(golden, printed) or problem_of_structs(printed)
    print(f"FAIL: {problem}" if problem else f"{len(printed.splitlines())} lines, as the golden layout has them")
    return 1 if problem else 0


def check(root):
    layout = Path(root) / "abi/layout"
    golden = sorted(layout.glob("v*.txt"))[-1].read_text(encoding="utf-8")
    now = declarations(Path(root) / "abi/include")
    lines = (layout / "numbers.txt").read_text(encoding="utf-8").splitlines()
    problem = problem_of_numbers(lines, number_of(now), now) or problem_of_freeze(lines, number_of(now), now) or problem_of_history(root, lines) or problem_of_layout(golden, now)
    problem = problem or problem_of_tags(now) or problem_of_growth(root)
    print(f"FAIL: {problem}" if problem else f"{len(now.splitlines())} declarations, number {lines[-1].split()[0]}")
    return 1 if problem else 0


def update(root):
    layout = Path(root) / "abi/layout"
    now = declarations(Path(root) / "abi/include")
    path = layout / "numbers.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    number = ".".join(map(str, number_of(now)))
    if not lines or lines[-1] != f"{number} {digest(now)}":
        path.write_text("\n".join(lines + [f"{number} {digest(now)}"]) + "\n", encoding="utf-8")
    return check(root)


def show(root):
    print(declarations(Path(root) / "abi/include"), end="")
    return 0


if __name__ == "__main__":
    sys.exit({"check": check, "update": update, "show": show, "layout": layout}[sys.argv[1]](*sys.argv[2:]))
