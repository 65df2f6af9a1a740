# SPDX-License-Identifier: Apache-2.0
"""docs.py SOURCE_DIR [PLUGIN.so] - what the documents say and a program can check.

  program   the C program in README.md is bindings/examples/first.c, which example_first builds and runs
  links     every relative link and image of a Markdown file leads to a file, and to a heading that is there
  needs     the libraries that the texts name are the ones that PLUGIN.so needs (readelf)
"""
import re
import subprocess
import sys
from pathlib import Path

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
SKIPPED = {"build", ".git"}
NEEDS = {"README.md": "needs ([^.]*?) and no\\s+other\\s+library",
         "conformance/cases/abi_report.h": "needs no library but ([^\"]*)\""}


def markdown(root):
    return [p for p in sorted(root.rglob("*.md"))
            if not any(part in SKIPPED or part.startswith("build-") for part in p.relative_to(root).parts)]


def check_program(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    program = (root / "bindings/examples/first.c").read_text(encoding="utf-8")
    program = program[program.index("#include"):]
    if blocks != [program]:
        yield "README.md: its C program differs from bindings/examples/first.c (from the first #include on)"


def anchors(path):
    """As GitHub makes them from headings."""
    lines = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def check_links(root):
    for path in markdown(root):
        for link in LINK.findall(re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            if "://" in link or link.startswith("mailto:"):
                continue
            if not target.exists():
                yield f"{path.relative_to(root)}: {link} leads nowhere"
            elif anchor and anchor not in anchors(target):
                yield f"{path.relative_to(root)}: {link}: no such heading"


def check_needs(root, plugin):
    out = subprocess.run(["readelf", "-d", plugin], stdout=subprocess.PIPE, text=True, check=True).stdout
    needed = {name for name in re.findall(r"\(NEEDED\).*\[(\w+)\.so", out)}
    for path, pattern in NEEDS.items():
        found = re.search(pattern, (root / path).read_text(encoding="utf-8"))
        said = set(re.findall(r"lib\w+", found.group(1))) if found else set()
        if said != needed:
            yield f"{path}: says that the library needs {sorted(said)}, it needs {sorted(needed)}"


def main():
    root = Path(sys.argv[1])
    problems = [*check_program(root), *check_links(root)]
    if len(sys.argv) > 2:
        problems += check_needs(root, sys.argv[2])
    print("\n".join(problems) or "the documents hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
