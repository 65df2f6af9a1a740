# SPDX-License-Identifier: Apache-2.0
"""zf audit A B: the first step, array, parameter and rank in which two runs with [audit] file part.

What is whole on a rank has to be the same on all ranks of both runs; of what ranks have parts the sum has to be. Where
the parts are cut alike, they say which rank it was. Of one step the array that the others follow from is named: a wrong
moment makes a wrong weight, and a wrong master a wrong visible value. The files are described in docs/tools.md.

Called by `zf audit`. Exit status 0: no step that both have differs; 1: one does; 2: nothing could be compared.
"""
import json
import os
import re
import stat
import sys

from terminal import Failed, command, printable, say

ARRAYS = ("m", "v", "w", "visible")
DECLARED = ("dtype", "grad_dtype", "rule", "shape")


def tell(text):
    print(printable(text))


class Section:
    """The words of one process on its parameters, from one bind_params on."""

    def __init__(self, head):
        if head["zf_audit"] != 1:
            raise ValueError(head["zf_audit"])
        self.process, self.n_processes, self.has_parts = int(head["process"]), int(head["n_processes"]), head["parts"]
        self.settings = head["settings"]
        self.params = {(head["part"], param["name"]): (i, param) for i, param in enumerate(head["params"])}


class Record:
    def __init__(self, section, line):
        self.section, self.step, self.ms = section, int(line["step"]), int(line["ms"])
        self.digests = {array: line[array] for array in ARRAYS}
        for digits in self.digests.values():
            if not re.fullmatch(f"[0-9a-f]{{{16 * len(section.params)}}}", digits):
                raise ValueError("digests")

    def digest(self, i, array):
        return int(self.digests[array][16 * i:16 * i + 16], 16)


def read_file(path):
    """Records; what is no whole line was left by a killed process or a full disk and is passed over."""
    section, records = None, []
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Failed(f"{path}: is no regular file")
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
                if "zf_audit" in line:
                    section = Section(line)
                elif section:
                    records.append(Record(section, line))
            except (ValueError, KeyError, TypeError):
                continue
    if section is None:
        raise Failed(f"{path}: is no audit of [audit] file that this version reads")
    return records, section.n_processes


class Run:
    """steps: {step: its newest records, by process}, of all processes that trained then."""

    def __init__(self, name, path):
        self.name, self.steps = name, {}
        records, most = read_file(path) if os.path.exists(path) or not os.path.exists(f"{path}.rank0") else ([], 0)
        process = 0
        while os.path.exists(f"{path}.rank0") and process < max(most, 2):
            more, n = read_file(f"{path}.rank{process}")
            records, most, process = records + more, max(most, n), process + 1
        together = {}  # {(step, number of processes): {process: record}}
        for record in sorted(records, key=lambda record: record.ms):
            together.setdefault((record.step, record.section.n_processes), {})[record.section.process] = record
        for (step, n), of in sorted(together.items(), key=lambda item: max(r.ms for r in item[1].values())):
            if len(of) == n:  # of two that are whole the later counts
                self.steps[step] = [of[p] for p in sorted(of)]
        if not self.steps:
            raise Failed(f"{path}: has no step of which every rank has left a record; name it without .rankN")
        first, last = min(self.steps), max(self.steps)
        self.sections = {id(record.section): record.section for of in self.steps.values() for record in of}.values()
        ranks = len(self.steps[last])
        tell(f"{name}  {path}: steps {first} to {last}, {len(self.steps)} records, {ranks} rank{'s'[:ranks > 1]}")

    def declared(self):
        return {key: {name: param[name] for name in DECLARED}
                for section in self.sections for key, (_, param) in section.params.items()}

    def settings(self):
        """{key: the values that it had, one after the other}"""
        out = {}
        for section in self.sections:
            for key, value in section.settings.items():
                values = out.setdefault(key, [])
                values += [value] * (value not in values)
        return out


def compare_dicts(what, a, b):
    """Says what differs; the names of it."""
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    for name in names:
        shown = [json.dumps(of[name]).strip("[]") if name in of else "nothing" for of in (a, b)]
        tell(f"{what} {name if isinstance(name, str) else name[1]}: {shown[0]} in A, {shown[1]} in B")
    return names


class Array:
    """The parts that the processes of one run have of one array of one parameter at a step."""

    def __init__(self, name, records, key, array):
        self.name, self.values, self.owned, self.is_part, self.is_own = name, {}, {}, False, False
        for process, record in enumerate(records):
            if key not in record.section.params:
                continue
            i, param = record.section.params[key]
            self.values[process] = record.digest(i, array)
            self.owned[process] = param["owned"]
            self.is_part = param["sharded"] if array == "visible" else record.section.has_parts
            self.is_own = param["own"]

    def wholes(self):
        return {sum(self.values.values()) % 2 ** 64} if self.is_part else set(self.values.values())


def parted(a, b):
    """Processes in which two arrays that are cut alike differ."""
    return [process for process in a.values if a.owned == b.owned and a.values[process] != b.values[process]]


def differ(a, b):
    if a.is_own:  # other processes have others: with another number of them nothing can be compared
        return bool(parted(a, b))
    return len(a.wholes() | b.wholes()) > 1


def ranks_of(a, b):
    """Which ranks it was, as text."""
    if len(a.values) == len(b.values) == 1 and not a.is_part:
        return ""
    if a.is_own or (a.is_part and b.is_part):
        found = parted(a, b)
        return "".join(f", rank {p}" for p in found) if found else ", on any rank: their parts are cut otherwise"
    for odd, other in ((a, b), (b, a)):
        if len(odd.wholes()) > 1:
            return "".join(f", rank {p} of {odd.name}" for p, value in odd.values.items() if value not in other.wholes())
    return ", every rank"


def compare_step(step, runs, keys):
    """Whether the runs part at this step, which is said."""
    records = [run.steps[step] for run in runs]
    if [(r.digests, r.section.params) for r in records[0]] == [(r.digests, r.section.params) for r in records[1]] and \
            len(records[0]) == 1:
        return False
    found = []
    for key in keys:
        has = [any(key in record.section.params for record in of) for of in records]
        if has[0] != has[1]:
            tell(f"they part at step {step}: \"{key[1]}\" is trained in {'AB'[has[1]]} alone")
            return True
        pairs = [[Array(run.name, of, key, array) for run, of in zip(runs, records)] for array in ARRAYS]
        arrays = [(array, pair) for array, pair in zip(ARRAYS, pairs) if differ(*pair)]
        if arrays:
            found.append((key, arrays))
    if not found:
        return False
    (_, name), arrays = found[0]
    tell(f"they part at step {step}: {arrays[0][0]} of \"{name}\"{ranks_of(*arrays[0][1])}")
    for array, _ in arrays[1:]:
        tell(f"  there too: {array} of the same parameter")
    if len(found) > 1:
        tell(f"  there too: {len(found) - 1} other parameter{'s'[:len(found) > 2]}")
    return True


def compare(runs):
    a, b = runs
    is_other = bool(compare_dicts("setting", a.settings(), b.settings()))
    excluded = compare_dicts("parameter", a.declared(), b.declared())
    keys, steps, n = [key for key in a.declared() if key not in excluded], sorted(a.steps.keys() & b.steps.keys()), 0
    if any(len(a.steps[step]) != len(b.steps[step]) for step in steps):
        own = [key for key in keys if any(key in of.params and of.params[key][1]["own"] for of in a.sections)]
        if own:
            tell(f"{len(own)} parameters of which each rank has its own are compared between equal numbers of ranks only")
            keys = [key for key in keys if key not in own]
    steps = steps if keys else []
    while n < len(steps) and not compare_step(steps[n], runs, keys):
        n += 1
    if not steps:
        tell("no step is in both" if keys else "no parameter can be compared")
    if n:
        tell(f"{n} step{'s are' if n > 1 else ' is'} the same, the last of them {steps[n - 1]}")
    return 1 if n < len(steps) or is_other or excluded else 0 if steps else 2


@command(failed=2)
def main():
    if len(sys.argv) != 3:
        print("usage: zf audit A B\nzf audit --help says more", file=sys.stderr)
        return 2
    try:
        return compare([Run(name, path) for name, path in zip("AB", sys.argv[1:])])
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # anybody may have made the files
        say(f"what is said of the parameters makes no sense: {error!r}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
