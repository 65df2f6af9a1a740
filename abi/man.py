#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Manual pages from what is already written: a hook's from the headers, a program's from its --help.

    man.py hooks VERSION OUT_DIR INCLUDE_DIR             zf_step.3 ... of zf_plugin_t, zf_state_save.3 ... of each extension
    man.py program VERSION OUT_DIR PROGRAM WHAT [WORD...]     PROGRAM.1: what it is, PROGRAM --help, and PROGRAM WORD --help

VERSION is number and date: the pages say both.

A page of a hook holds its declaration, its contract (the comment above it), the structs that it takes as the header has them, and
the statuses. So the headers stay the one place that says what holds.
"""
import re
import subprocess
import sys
import textwrap
from pathlib import Path

TABLE = re.compile(r"typedef struct (zf_plugin|zf_\w+_ext) \{(.*?)^\} \w+;", re.DOTALL | re.MULTILINE)
SLOT = re.compile(r"/\*((?:(?!\*/).)*)\*/\s*((?:const )?\w+(?: \*| )\(\*(\w+)\)\(([^;]*)\);)", re.DOTALL)
ANY_SLOT = re.compile(r"^    (?:const )?\w+(?: \*| )\(\*(\w+)\)\(", re.MULTILINE)
TAGGED = re.compile(r"\[(?:any-thread|control|hook|callback|lane|worker)\][^\n]*\*/\n((?:    (?:const )?\w+(?: \*| )\(\*\w+\)\([^;]*\);\n)+)")
STRUCT = re.compile(r"((?:/\*(?:(?!\*/).)*\*/\n)?typedef struct (zf_\w+) \{(?:(?!^\}).)*^\} \w+;)", re.DOTALL | re.MULTILINE)
STATUS = re.compile(r"#define (ZF_(?:OK|SUBMITTED|SKIPPED|IN_PROGRESS|DISABLED|ERR_\w+)) (\S+)\s*(?:/\* (.*?) \*/)?")


def escape(text):
    """Text as the formatter takes it, line by line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(("\\&" if line[:1] in (".", "'") else "") + line for line in text.split("\n"))


def words(comment):
    """A comment without its stars, as one paragraph."""
    return re.sub(r"\s*\n\s*\*\s?", " ", comment).strip()


def first_sentence(text):
    sentence = re.split(r"(?<=[.:;])\s", text)[0].rstrip(".:;")
    if len(sentence) > 70:  # a name line is read in lists
        sentence = re.split(r", | \(", sentence)[0]
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def page(name, section, version, parts):
    number, date = version.split()
    head = f'.TH {escape(name.upper())} {section} "{date}" "libzfplugin {number}" "libzfplugin"\n'
    return head + "".join(f".SH {title}\n{text}\n" for title, text in parts)


def verbatim(text):
    return f".nf\n{escape(text)}\n.fi"


def statuses(text):
    return "\n".join(f".TP\n.B {escape(name)}\n{escape(what or value)}" for name, value, what in STATUS.findall(text))


def taken(arguments, structs):
    """The structs that a declaration names, and those that these hold, each once."""
    found, queue = [], re.findall(r"(zf_\w+)_t\b", arguments)
    while queue:
        name = queue.pop(0)
        if name in structs and name not in found:
            found.append(name)
            queue += re.findall(r"(zf_\w+)_t\b", re.sub(r"/\*.*?\*/", "", structs[name], flags=re.DOTALL))
    return found


def untagged(text):
    """Slots above which no comment's last line begins with the tag of a thread."""
    tagged = {slot for run in TAGGED.findall(text) for slot in ANY_SLOT.findall(run)}
    return [slot for slot in ANY_SLOT.findall(text) if slot not in tagged]


def hook_pages(include):
    """Yields (name, header, first sentence, declaration, contract, structs' text)."""
    headers = {str(path.relative_to(include)): path.read_text(encoding="utf-8") for path in sorted(include.glob("zf/**/*.h"))}
    structs = {name: text for header in headers.values() for text, name in STRUCT.findall(header)}
    for header, text in headers.items():
        for table, body in TABLE.findall(text):
            prefix = "zf_" if table == "zf_plugin" else table[:-len("ext")]
            slots = SLOT.findall(body)
            silent = set(re.findall(r"^    (?:const )?\w+(?: \*| )\(\*(\w+)\)\(", body, re.MULTILINE)) - {slot for _, _, slot, _ in slots}
            if silent:
                sys.exit(f"man.py: {header}: {table}_t: no comment says what {', '.join(sorted(silent))} does: write its contract above it")
            for comment, declaration, slot, arguments in slots:
                contract = words(comment)
                shown = [structs[name] for name in taken(arguments, {k: v for k, v in structs.items()
                                                                     if k not in ("zf_error", "zf_plugin", table)})]
                yield prefix + slot, header, table, first_sentence(contract), textwrap.dedent("    " + declaration), contract, shown
        if untagged(text):
            sys.exit(f"man.py: {header}: no thread is said of {', '.join(untagged(text))}: end the comment above with a line like \"[hook]\"")


def write_hooks(version, out, include):
    codes = statuses((include / "zf" / "types.h").read_text(encoding="utf-8"))
    pages = list(hook_pages(include))
    tables = {}
    for name, _, table, *_ in pages:
        tables.setdefault(table, []).append(name)
    for name, header, table, sentence, declaration, contract, shown in pages:
        others = [other for other in tables[table] if other != name] + (["zf_get_extension"] if table != "zf_plugin" else [])
        parts = [("NAME", f"{escape(name)} \\- {escape(sentence)}"),
                 ("SYNOPSIS", verbatim(f"#include <{header}>\n\n{declaration}") + f"\n.PP\nA slot of\n.BR {escape(table)}_t ."),
                 ("DESCRIPTION", escape(contract))]
        if shown:
            parts.append(("STRUCTURES", verbatim("\n\n".join(shown))))
        if "zf_status_t" in declaration:
            parts.append(("RETURN VALUE", "A negative status is an error: nothing was changed, and\n.I err\nsays what is wrong and what to do.\n"
                          + codes))
        if others:
            parts.append(("SEE ALSO", ",\n".join(f".BR {escape(other)} (3)" for other in others)))
        (out / f"{name}.3").write_text(page(name, 3, version, parts), encoding="utf-8")
    return len(pages)


def help_of(program, *more):
    done = subprocess.run([program, *more, "--help"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"man.py: {program} {' '.join(more)} --help: exit status {done.returncode}: {done.stderr}")
    return done.stdout.rstrip("\n")


def write_program(version, out, program, what, *areas):
    name = Path(program).name
    parts = [("NAME", f"{escape(name)} \\- {escape(what)}"), ("DESCRIPTION", verbatim(help_of(program)))]
    parts += [(f'"{escape(name.upper())} {escape(area.upper())}"', verbatim(help_of(program, area))) for area in areas]
    (out / f"{name}.1").write_text(page(name, 1, version, parts), encoding="utf-8")


def main():
    if sys.argv[1:2] not in (["hooks"], ["program"]) or len(sys.argv) < (5 if sys.argv[1] == "hooks" else 6):
        sys.exit(__doc__)
    kind, version, out, what, *more = sys.argv[1:]
    Path(out).mkdir(parents=True, exist_ok=True)
    if kind == "program":
        write_program(version, Path(out), what, *more)
    elif not write_hooks(version, Path(out), Path(what)):
        sys.exit(f"man.py: no hook was found in {what}")


if __name__ == "__main__":
    main()
