# SPDX-License-Identifier: Apache-2.0
"""mutants.py - the places of a C source where one small change makes a mutant, and the mutants themselves.

The sources are laid out by clang-format, which is what the patterns rely on: a binary operator has a space on both sides, a
unary one none, a statement of one line ends with ";". Comments, strings and preprocessor lines are blanked first, so nothing
in them is changed. A mutant is named by file, operator, the text of its line and which one of these it is, and not by a
line number, so that the list of equivalent mutants survives edits elsewhere in the file.
"""
import re
from dataclasses import dataclass

SWAPS = {
    "compare": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "arithmetic": {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "+=": "-=", "-=": "+=", "<<": ">>", ">>": "<<"},
    "logic": {"&&": "||", "||": "&&", "&": "|", "|": "&", "|=": "&=", "&=": "|="},
}
BINARY = re.compile(r"(?<= )(<=|>=|==|!=|<<|>>|\+=|-=|\|=|&=|&&|\|\||[<>+\-*/%&|])(?= )")
NUMBER = re.compile(r"(?<![\w.])(\d+)([uUlL]*)(?![\w.])")
CONDITION = re.compile(r"\b(if|while) \((?=.)")
STATEMENT = re.compile(r"^ +(?!return\b|break\b|continue\b|goto\b|else\b|case\b|default\b|typedef\b|struct\b|static\b|const\b)"
                       r"(?:\(void\))?[\w>.\[\]*&()+-]+(?: (?:[-+*/|&]|<<|>>)?= .+|\(.*\)|\+\+|--);$")
DECLARATION = re.compile(r"^ +(?:const |unsigned |static |struct )*[a-z]\w* \**\w+(?:\[.*\])?(?: = .*|, .*)?;$")


@dataclass(frozen=True)
class Mutant:
    file: str      # relative to the root
    line: int      # from 1
    kind: str      # compare, arithmetic, logic, constant, condition, statement
    before: str    # the line's text without indentation
    after: str     # the same of the mutant
    ordinal: int   # which of the equal (kind, before, after) of the file, from 0
    text: str      # the mutant's whole line

    @property
    def name(self):
        return f"{self.file} | {self.before} | {self.after} | {self.ordinal}"


def blank(source):
    """The source with comments, strings, characters and preprocessor lines replaced by blanks, length and lines kept."""
    def spaces(match):
        return re.sub(r"[^\n]", " ", match.group())
    pattern = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    source = re.sub(pattern, lambda m: spaces(m) if m.group()[0] == "/" else
                    m.group()[0] + re.sub(r"[^\n]", "_", m.group()[1:-1]) + m.group()[-1], source, flags=re.S)
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", spaces, source, flags=re.M)


def closing(text, at):
    """Where the bracket that opens at text[at] closes, or -1 beyond the line."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([") - (text[i] in ")]")
        if depth == 0:
            return i
    return -1


def changes(line, code):
    """(kind, new line) of every mutant of one line; code is the line with comments and strings blanked."""
    for match in BINARY.finditer(code):
        for kind, swaps in SWAPS.items():
            if match.group() in swaps:
                yield kind, line[:match.start()] + swaps[match.group()] + line[match.end():]
    for match in NUMBER.finditer(code):
        value = int(match.group(1)) if not match.group(1).startswith("0") or match.group(1) == "0" else None
        if value is not None:
            yield "constant", line[:match.start()] + str(value + 1) + match.group(2) + line[match.end():]
    for match in CONDITION.finditer(code):
        end = closing(code, match.end() - 1)
        if end > 0:
            yield "condition", line[:match.end()] + "!(" + line[match.end():end] + ")" + line[end:]
    if STATEMENT.match(code) and not DECLARATION.match(code) and balanced(code):
        yield "statement", re.match(" *", line).group() + "(void)0; /* dropped */"


def balanced(code):
    return code.count("(") == code.count(")") and "{" not in code and "}" not in code


def find(file, source):
    """Every mutant of a file, in order of its lines."""
    seen = {}
    depth = 0
    for number, (line, code) in enumerate(zip(source.split("\n"), blank(source).split("\n")), 1):
        is_inside = depth > 0 or "{" in code  # of a function, a table or an enumeration
        depth += code.count("{") - code.count("}")
        if not is_inside or "_Static_assert" in code or "assert(" in code:
            continue
        for kind, text in changes(line, code):
            key = (kind, line.strip(), text.strip())
            seen[key] = seen.get(key, -1) + 1
            yield Mutant(file, number, kind, key[1], key[2], seen[key], text)
