# SPDX-License-Identifier: Apache-2.0
"""docs.py SOURCE_DIR [PLUGIN.so [ZF [BUILD_DIR]]] - what the documents say and a program can check.

  program   the C code in README.md and docs/recipes.md stands so in a program of bindings/examples, which a test builds and runs
  run       README.md shows the areas' lines and the last word of conformance/results/run.txt, all that judge printed of a wheel
  figures   README.md's figures are those of the page or file that measured them: moments that fall, AdamW on a CPU, simulated machines, defaults,
            bytes, versions, minutes
  commands  scripts that any page runs and files of code that it names are there, `ctest -R` names tests of BUILD_DIR, and docs/start.md installs as README.md does
  length    README.md and conformance/README.md have at most 150 lines, abi/README.md less than 220; plugin/SCHEDULE.md begins with exact in ten
  sentences the pages that are read first have no sentence of more than 35 words
  links     every relative link and image of a Markdown file leads to a file, and to a heading that is there
  needs     the libraries that the texts name are the ones that PLUGIN.so needs (readelf)
  keys      docs/configuration.md and docs/counters.md are what `ZF page NAME` prints of PLUGIN.so
"""
import math
import re
import subprocess
import sys
from pathlib import Path

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
SHORT = {"README.md": 150, "conformance/README.md": 150, "abi/README.md": 219}
READ_FIRST = ("README.md", "plugin/README.md", "abi/README.md", "abi/ranks.md", "conformance/README.md")
MAX_WORDS = 35
RUN = re.compile(r"(contract|near|laws|speed|memory|accuracy) {2,}|not judged:|[A-Z]+$")
SKIPPED = {"build", ".git"}
NEEDS = {"README.md": "needs ([^.]*?) and no\\s+other\\s+library",
         "conformance/cases/abi_report.h": "needs no library but ([^\"]*)\""}


def files(root, pattern):
    """Of the tree, but for what a build writes."""
    for path in sorted(root.glob("*")):
        if path.is_dir() and not path.is_symlink() and path.name not in SKIPPED and not path.name.startswith("build-"):
            yield from files(path, pattern)
        elif path.match(pattern):
            yield path


def markdown(root):
    return files(root, "*.md")


def check_program(root):
    programs = {language: (root / "bindings/examples" / name).read_text(encoding="utf-8") for language, name in (("c", "train_zf.c"), ("cpp", "train_opt.cpp"))}
    for page, languages in (("README.md", ["c"]), ("docs/recipes.md", ["c", "cpp"])):
        blocks = re.findall(r"```(c|cpp)\n(.*?)```", (root / page).read_text(encoding="utf-8"), re.DOTALL)
        if [language for language, _ in blocks] != languages or any(block not in programs[language] for language, block in blocks):
            yield f"{page}: its code in C or C++ does not stand so in bindings/examples"


def check_run(root):
    """Its output as it is, cut by RUN; the test judge compares the lines' words with what the command prints today."""
    printed = (root / "conformance/results/run.txt").read_text(encoding="utf-8").splitlines()
    shown = (root / "README.md").read_text(encoding="utf-8")
    block = "\n".join(f"    {line}" for line in printed if RUN.match(line))
    if f"\n\n{block}\n\n" not in shown:
        yield f"README.md: does not show what conformance/results/run.txt says of the areas, which is:\n{block}"


def rows_of(text, n_columns):
    """Of its tables of so many columns."""
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|"))
    return [row for row in rows if len(row) == n_columns]


def check_figures(root):
    read = {name: (root / name).read_text(encoding="utf-8") for name in (
        "README.md", "docs/memory.md", "docs/tools.md", "docs/configuration.md", "conformance/results/cpu_step.txt",
        "conformance/results/first_step.txt", "pyproject.toml", "tests/judged.sh",
        "bindings/python/README.md", "bindings/cli/tune.py")}
    readme, memory_page = read["README.md"], read["docs/memory.md"]
    small = rows_of(memory_page, 4)
    decay = {row[0]: row[3].split(" ")[0] for row in small}
    n_spared = [math.floor(10 * (8 - float(row[1]))) / 10 for row in small if row[0] in ("`int8_bfloat16`", "`int8`")]
    names, _, medians = rows_of(readme, 6)
    wall = {name: float(ns) for name, ns in re.findall(r"^(\S.*?)  +([0-9.]+)", read["conformance/results/cpu_step.txt"], re.MULTILINE)}
    moved = re.search(r"memory moves ([0-9]+)", read["conformance/results/cpu_step.txt"]).group(1)
    exact = [float(cell.split(",")[0]) for row in rows_of(read["docs/tools.md"], 6) for cell in row[3:] if re.match("[01][.][0-9]{2},", cell)]
    defaults = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", read["docs/configuration.md"], re.MULTILINE))
    shown = {key: row[1] for row in rows_of(readme, 3) for key in re.findall(r"^`(?:\[\w+\] )?(\w+)`$", row[0])}
    versions = [re.search(pattern + '">=([0-9.]+)"', read["pyproject.toml"].replace("[\"torch", '"')).group(1) for pattern in ("requires-python = ", "torch = ")]
    walked = read["conformance/results/first_step.txt"]
    n_alone = round(int(re.search(r"(\d+) of processors  .*the library alone", walked).group(1)) / 120)
    n_judging = int(re.search(r"exit s > (\d+)", read["tests/judged.sh"]).group(1)) / 120
    for what, said in (
            ("conformance/results/first_step.txt", f"builds the library, {n_alone} minute on two cores" in readme and
             f"{re.search('([0-9]+) minutes to', walked).group(1)} minutes to the first trained step" in readme),
            ("tests/judged.sh", f"takes at most {n_judging:g} minutes on two cores" in readme),
            ("docs/memory.md: the fall of moments", [decay.get(name) for name in names] == medians),
            ("docs/memory.md: small moments", f"per parameter, `int8_bfloat16` {n_spared[0]}, `int8` {n_spared[1]} ([how]" in readme),
            ("docs/memory.md: one rank", all(f" {nbytes} with int8" in memory_page for nbytes in re.findall(r"([0-9.]+) in 8 bits\n", readme)) and
             "values, through 64 MiB" in readme and "of another host | 64 MiB" in memory_page),
            ("docs/memory.md: on a CPU", "exact takes 16 with weights and gradients" in readme and "| in all | 16 | 16 |" in memory_page),
            ("pyproject.toml: versions", "Python {} and torch {} or newer".format(*versions) in readme),
            ("conformance/results/cpu_step.txt", f"{wall['plugin, float32']:.2f} ns per parameter, torch's fused AdamW {wall['torch AdamW fused, fp32']:.2f} "
             f"(two cores, {moved} GB/s of memory" in readme),
            ("docs/tools.md: the machines", f"in {sum(of >= 0.9 for of in exact)} of the {len(exact)} simulated cases" in readme),
            ("bindings/python/README.md: the wheel", "glibc {}.{} or newer".format(*re.search(r"manylinux_(\d+)_(\d+)_x86", read["bindings/python/README.md"]).groups()) in readme),
            ("bindings/cli/tune.py", '"--rounds", type=number(1, MOST_ROUNDS), default=3)' in read["bindings/cli/tune.py"] and "your trainer three times" in readme),
            ("docs/configuration.md: defaults", len(shown) == 7 and all(
                said.split()[0] == defaults.get(key) or said == "2 in windows" for key, said in shown.items()))):
        if not said:
            yield f"README.md: says otherwise than {what}"


def check_commands(root, build):
    """The tests that a build lacks, of PyTorch or of CUDA, are named by their file."""
    listed = subprocess.run(["ctest", "--test-dir", build, "-N"], stdout=subprocess.PIPE, text=True, check=True).stdout if build else ""
    tests = re.findall(r"Test +#\d+: (\S+)", listed) + re.findall(r"NAME (\w+)", "".join(path.read_text() for path in files(root, "CMakeLists.txt")))
    for path in markdown(root):
        text = path.read_text(encoding="utf-8")
        for script in re.findall(r"\b(?:sh|bash|python3?) ((?:[\w-]+/)+[\w-]+\.(?:sh|py))", text):
            if not any((folder / script).exists() for folder in (root, path.parent)) and not script.startswith("zf-kit/"):
                yield f"{path.relative_to(root)}: there is no {script}"
        for name in re.findall(r"`((?:abi|bindings|cmake|conformance|docs|kernels|lib|plugin|tests)/[\w./-]+)`", text):
            if not any((folder / name).exists() for folder in (root, path.parent)):
                yield f"{path.relative_to(root)}: there is no {name}"
        for pattern in re.findall(r"ctest (?:--\S+ \S+ )?-R '?([^'`\s]+)", text):
            if build and not any(re.search(pattern.replace("\\|", "|"), test) for test in tests):
                yield f"{path.relative_to(root)}: ctest -R {pattern} names no test"
    install = [[line.split("#")[0].strip() for line in re.findall("^    ((?:sh conf|python3|pip).*)", (root / name).read_text(encoding="utf-8"), re.MULTILINE)[:3]]
               for name in ("README.md", "docs/start.md")]
    if install[0] != install[1]:
        yield f"docs/start.md: installs by {install[1]}, README.md by {install[0]}"


def check_length(root):
    for name, most in SHORT.items():
        n = len((root / name).read_text(encoding="utf-8").splitlines())
        if n > most:
            yield f"{name}: {n} lines, at most {most}"
    first = (root / "plugin/SCHEDULE.md").read_text(encoding="utf-8").split("\n## ")[1]
    if not first.startswith("Exact in ten lines\n") or re.findall(r"^(\d+)\. ", first, re.MULTILINE) != [str(i) for i in range(1, 11)]:
        yield "plugin/SCHEDULE.md: does not begin with exact in ten lines"


def sentences(text):
    """Sentences of running text and lists: no code, no headings, no tables; a link counts as its words."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^#.*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\||#|    ))", text):
        if not re.match(r"\s*(\||#|    )", paragraph):
            yield from re.split(r"(?<=[.!?])\s+(?=[A-Z*(0-9]|code)", " ".join(paragraph.split()))


def check_sentences(root):
    for name in READ_FIRST:
        for sentence in sentences((root / name).read_text(encoding="utf-8")):
            n = len(sentence.split())
            if n > MAX_WORDS:
                yield f"{name}: a sentence of {n} words, at most {MAX_WORDS}: {sentence[:90]}..."


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


def check_keys(root, plugin, zf):
    for page in ("configuration", "counters"):
        printed = subprocess.run([zf, "--plugin", plugin, "page", page], stdout=subprocess.PIPE, text=True, check=True).stdout
        if printed != (root / f"docs/{page}.md").read_text(encoding="utf-8"):
            yield f"docs/{page}.md: differs; write it again: zf page {page} > docs/{page}.md"


def main():
    root = Path(sys.argv[1])
    problems = [*check_program(root), *check_run(root), *check_figures(root), *check_length(root), *check_sentences(root), *check_links(root)]
    problems += check_commands(root, sys.argv[4] if len(sys.argv) > 4 else None)
    if len(sys.argv) > 2:
        problems += check_needs(root, sys.argv[2])
    if len(sys.argv) > 3:
        problems += check_keys(root, sys.argv[2], sys.argv[3])
    print("\n".join(problems) or "the documents hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
