#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""header_edits.py ROOT - edits of the public headers, each of which the declarations, and so their digest, must show; and what 1.0 may be.

Each row: what is edited, the pattern, what replaces its first match in any header. A pattern that matches nowhere, and an edit
after which the headers do not compile for another reason than their own assertions, fail the test: such a row asks nothing."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from declarations import (declarations, difference, digest, number_of, problem_of_first_sizes, problem_of_freeze, problem_of_kinds, problem_of_layout,
                          problem_of_readers, problem_of_structs, problem_of_tags)

SLOT = r"^    zf_status_t \(\*(\w+)\)\((?:.|\n)*?\);\n"
MEMBER = r"^    (uint64_t|uint32_t) (\w+);(.*)\n"

EDITS = [
    ("order: two members exchanged", MEMBER + r"    \1 (\w+);", r"    \1 \4;\n    \1 \2;"),
    ("order: two constants exchanged", r"(#define ZF_SKIP_NONE) 0(.*\n#define ZF_SKIP_NONFINITE) 1", r"\1 1\2 0"),
    ("order: two slots exchanged", r"\(\*save\)((?:.|\n)*?)\(\*load\)", r"(*load)\1(*save)"),
    ("width: a member", r"^    uint32_t (\w+);", r"    uint64_t \1;"),
    ("width: signedness of a member", r"^    int32_t (\w+);", r"    uint32_t \1;"),
    ("width: a real number", r"^    double (\w+);", r"    float \1;"),
    ("width: an array", r"char (\w+)\[(\d+)\];", r"char \1[\g<2>0];"),
    ("width: a typedef", r"typedef int32_t zf_status_t", r"typedef int64_t zf_status_t"),
    ("width: a constant", r"(#define ZF_\w+) 1u", r"\1 1ull"),
    ("width: signedness of a constant", r"(#define ZF_\w+ 0x\w+)u", r"\1"),
    ("value: a constant", r"(#define ZF_MAX_NDIM) \d+", r"\1 12"),
    ("value: a negative constant", r"(#define ZF_ERR_\w+) \(-2\)", r"\1 (-200)"),
    ("value: a string", r'(#define ZF_EXT_\w+ "[^"]*/)\d+"', r'\g<1>9"'),
    ("value: a macro's text", r"(#define ZF_ABI_MAJOR\(abi\).*)16", r"\g<1>8"),
    ("packing: an attribute behind a struct", r"^} (zf_\w+);", r"} __attribute__((packed)) \1;"),
    ("packing: a pragma", r"^typedef struct zf_fence", r"#pragma pack(4)\ntypedef struct zf_fence"),
    ("packing: an alignment", r"^} (zf_\w+);", r"} __attribute__((aligned(64))) \1;"),
    ("members: one is gone", MEMBER, ""),
    ("members: one is new at the end", r"^} (zf_\w+);", r"    uint64_t added;\n} \1;"),
    ("members: one is new in between", MEMBER, r"    \1 added;\n    \1 \2;\n"),
    ("members: one has another name", MEMBER, r"    \1 \2_other;\n"),
    ("members: one under a condition", MEMBER, r"#ifdef ZF_MORE\n    \1 \2;\n#endif\n"),
    ("members: a pointer without const", r"^    const (\w+) \*(\w+);", r"    \1 *\2;"),
    ("parameters: two of one type exchanged", r"uint32_t n, uint32_t elem_size", "uint32_t elem_size, uint32_t n"),
    ("parameters: another unit in a name", r"uint64_t nbytes([,)])", r"uint64_t n_elems\1"),
    ("parameters: another type", r"uint32_t n, uint32_t elem_size", "uint64_t n, uint32_t elem_size"),
    ("parameters: one is new", r"(\(\*\w+\)\([^()]*)zf_error_t \*err\)", r"\1zf_error_t *err, uint32_t more)"),
    ("prototypes: another return type", r"zf_status_t \(\*(\w+)\)", r"int64_t (*\1)"),
    ("prototypes: the entry takes more", r"^int32_t zf_plugin_negotiate\((.*)\);", r"int32_t zf_plugin_negotiate(\1, int more);"),
    ("prototypes: the entry is gone", r"^int32_t zf_plugin_negotiate\(.*\);\n", ""),
    ("prototypes: a new one", r"^(typedef struct zf_instance .*)$", r"\1\nint32_t zf_plugin_other(void);"),
    ("prototypes: the entry is inline", r"^int32_t zf_plugin_negotiate", "__attribute__((weak)) int32_t zf_plugin_negotiate"),
    ('linkage: extern "C" is gone', r'#ifdef __cplusplus\nextern "C" \{\n#endif((?:.|\n)*)#ifdef __cplusplus\n}\n#endif', r"\1"),
    ("order: two parameters of two types exchanged", r"uint32_t flags, zf_error_t \*err", "zf_error_t *err, uint32_t flags"),
    ("order: two headers exchanged", r'(#include "zf/host.h")\n(#include "zf/types.h")', r"\2\n\1"),
    ("width: a bit-field", r"^    uint32_t flags;", "    uint32_t flags : 31;"),
    ("width: a pointer to a pointer", r"^    const void \*next;", "    const void *const *next;"),
    ("width: a parameter's number", r"uint64_t timeout_ns", "uint32_t timeout_ns"),
    ("value: a flag", r"(#define ZF_GRAD_LENT) 128u", r"\1 256u"),
    ("value: a flag in another base", r"(#define ZF_NO_ID) 0xFFFFFFFFu", r"\1 0xFFFFFFFEu"),
    ("value: a macro's parameter", r"#define ZF_ABI_MINOR\(abi\) \(\(uint32_t\)\(abi\)&0xFFFFu\)", "#define ZF_ABI_MINOR(abi) ((uint32_t)(abi)&0xFFu)"),
    ("constants: one is gone", r"^#define ZF_TENSOR_SPARSE .*\n", ""),
    ("constants: one is new", r"^(#define ZF_TENSOR_SPARSE .*)$", r"\1\n#define ZF_TENSOR_OTHER 2u"),
    ("constants: one has another name", r"#define ZF_TENSOR_SPARSE", "#define ZF_TENSOR_THIN"),
    ("constants: one under a condition", r"^(#define ZF_TENSOR_SPARSE .*)$", r"#ifdef ZF_MORE\n\1\n#endif"),
    ("constants: one made an enum's", r"#define ZF_TENSOR_SPARSE 1u", "enum { ZF_TENSOR_SPARSE = 1 };"),
    ("members: one made volatile", r"^    uint64_t value;", "    volatile uint64_t value;"),
    ("members: one made an array", r"^    uint64_t value;", "    uint64_t value[1];"),
    ("members: one made a union", r"^    uint64_t value;", "    union { uint64_t value; };"),
    ("structs: another tag", r"^typedef struct zf_fence \{", "typedef struct zf_fence_other {"),
    ("structs: a union in its place", r"^typedef struct zf_quiesce_args \{", "typedef union zf_quiesce_args {"),
    ("structs: an opaque one is new", r"^(typedef struct zf_instance zf_instance_t;.*)$", r"\1\ntypedef struct zf_other zf_other_t;"),
    ("slots: one is gone", SLOT, ""),
    ("slots: one is new at the end", r"^} zf_plugin_t;", "    zf_status_t (*added)(zf_instance_t *instance, zf_error_t *err);\n} zf_plugin_t;"),
    ("slots: one has another name", r"\(\*poll\)", "(*look)"),
    ("slots: one by another calling convention", r"^    zf_status_t \(\*poll\)", "    __attribute__((ms_abi)) zf_status_t (*poll)"),
    ("slots: one made a plain pointer", r"^    const void \*\(\*get_extension\)\(const char \*id\);", "    const void *get_extension;"),
    ("parameters: one is gone", r", uint32_t elem_size,", ","),
    ("parameters: any number of them", r"\(const char \*id\);", "(const char *id, ...);"),
    ("tags: another thread", r"\* \[hook\] State", "* [any-thread] State"),
    ("tags: one is gone", r"^     \* \[control\] .*\*/$", "     */"),
    ("tags: another state", r"\* \[hook\] State: bound, active, quiesced\.", "* [hook] State: active, quiesced."),
    ("tags: another state afterwards", r"; afterwards active\.", "."),
]


def edit(include, pattern, to):
    """Replaces the first match in the first header that has one. Returns that header, or None."""
    for header in sorted(Path(include).rglob("*.h")):
        text = header.read_text(encoding="utf-8")
        changed, n = re.subn(pattern, to, text, count=1, flags=re.M)
        if n and changed != text:
            header.write_text(changed, encoding="utf-8")
            return header
    return None


def compiles(include):
    headers = [str(h) for h in sorted(Path(include).rglob("*.h"))]
    ran = subprocess.run(["cc", "-std=c11", "-fsyntax-only", "-I", str(include), "-x", "c", *headers], capture_output=True,
                         text=True, check=False)
    errors = [line for line in ran.stderr.splitlines() if " error: " in line]
    others = [line for line in errors if "static assertion" not in line]
    return ran.returncode == 0 or (errors and not others), others[:1] or ran.stderr[:300]


def judge(root, what, pattern, to):
    """(caught, text), or the end of the test where the row asks nothing."""
    golden = declarations(root / "abi/include")
    with tempfile.TemporaryDirectory() as folder:
        include = Path(folder) / "include"
        shutil.copytree(root / "abi/include", include)
        header = edit(include, pattern, to)
        if header is None:
            sys.exit(f"FAIL: \"{what}\": the pattern {pattern} matches in no header: give the row another")
        is_right, said = compiles(include)
        if not is_right:
            sys.exit(f"FAIL: \"{what}\" in {header.relative_to(include)}: does not compile: {said}")
        shown = difference(golden, declarations(include))
        return shown is not None, f"{header.relative_to(include)}: {shown}"


def judge_freeze(root):
    """1.0 has to be its candidate but for the number: whether that is taken, and one word more is not."""
    candidate = declarations(root / "abi/include")
    x, y = number_of(candidate)
    frozen = candidate.replace(f"ZF_ABI_{x}_{y}", "ZF_ABI_1_0").replace(f"ZF_ABI_NUMBER({x}, {y})", "ZF_ABI_NUMBER(1, 0)")
    other = frozen.replace("uint32_t n_groups;", "uint64_t n_groups;", 1)
    lines = [f"{x}.{y} {digest(candidate)}", "1.0 -"]
    return problem_of_freeze(lines, (1, 0), frozen) is None and other != frozen and problem_of_freeze(lines, (1, 0), other) is not None


def judge_layout(root):
    """What the golden layout does not list is named; today's headers are listed."""
    golden = (root / "abi/layout/v0.16.txt").read_text(encoding="utf-8")
    now = declarations(root / "abi/include")
    added = {"a macro": "#define ZF_LOG_NONE(x) 0", "a constant": "#define ZF_MOST 9", "a struct": "}zf_new_t;", "a header": "== zf/new.h",
             "an opaque struct": "typedef struct zf_new zf_new_t;", "a scalar": "typedef int32_t zf_level_t;", "an enum": "enum zf_new{",
             "a function": "typedef int32_t(*zf_new_fn)(void);", "an enum's name": "typedef enum{"}
    missed = [what for what, line in added.items() if problem_of_layout(golden, now + line + "\n") is None]
    broken = {"a gap": ("  8 4 ", "  12 4 "), "a gap at the end": ("struct zf_fence_t output 24", "struct zf_fence_t output 240"),
              "an odd size": ("  8 8 uint64_t", "  8 4 uint32_t"), "a type": ("int32_t", "float"), "a begin": ("struct_size", "size")}
    missed += [what for what, (old, new) in broken.items() if problem_of_structs(golden.replace(old, new)) is None]
    if missed or (problem_of_layout(golden, now) or problem_of_structs(golden)) is not None:
        sys.exit(f"FAIL: the golden layout: {problem_of_layout(golden, now)}; not noticed: {missed}")


def judge_tags(root):
    """A function of a table without a tag is named; today's all have one."""
    now = declarations(root / "abi/include")
    return problem_of_tags(now) is None and problem_of_tags(now.replace("@ [callback]\n", "")) is not None


def judge_growth(root):
    """An oldest size that follows today's, a reader without one, and a new kind that nobody asked for are named; the same kind behind a flag is not."""
    golden = (root / "abi/layout/v0.16.txt").read_text(encoding="utf-8")
    header = (root / "plugin/base/struct.h").read_text(encoding="utf-8")
    headers = "".join(path.read_text(encoding="utf-8") for path in sorted((root / "abi/include").rglob("*.h")))
    last = "#define ZF_ERR_ARGUMENT"
    kinds = ["#define ZF_FENCE_OTHER 3", "#define ZF_SKIP_OTHER 2", "#define ZF_COUNTER_OTHER 3", "#define ZF_LATER 5"]
    missed = [kind for kind in kinds if problem_of_kinds(golden, headers.replace(last, f"{kind}\n{last}", 1)) is None]
    missed += [f"{kind} behind a flag" for kind in kinds
               if problem_of_kinds(golden, headers.replace(last, f"{kind} /* with ZF_CREATE_CAP_OTHER */\n{last}", 1)) is not None]
    for size in ("= 56,", "= sizeof(zf_host_t),"):
        missed += [size] if problem_of_first_sizes(golden, header.replace("ZFI_FIRST_zf_host_t = 48,", f"ZFI_FIRST_zf_host_t {size}")) is None else []
    missed += [] if problem_of_readers([("a.c", "zfi_struct_read(&x, y, sizeof x, sizeof x, name, err)")]) else ["a reader"]
    if missed or problem_of_kinds(golden, headers) or problem_of_first_sizes(golden, header):
        sys.exit(f"FAIL: growth: wrongly judged: {missed}")


def main():
    root = Path(sys.argv[1])
    missed = []
    judge_layout(root)
    judge_growth(root)
    if not judge_tags(root):
        sys.exit(f"FAIL: tags: {problem_of_tags(declarations(root / 'abi/include'))}, or one that is gone is not noticed")
    if not judge_freeze(root):
        sys.exit("FAIL: 1.0 may be something else than its candidate, or may not be the candidate")
    for what, pattern, to in EDITS:
        is_caught, text = judge(root, what, pattern, to)
        print(f"{'caught' if is_caught else 'PASSED'}  {what:45} {text[:110]}")
        if not is_caught:
            missed.append(what)
    print(f"{len(EDITS) - len(missed)} of {len(EDITS)} edits are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
