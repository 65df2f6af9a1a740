# SPDX-License-Identifier: Apache-2.0
"""Section of `zf tune --json`: what old weights cost against the time of a step, for every setting of windows, and which was chosen."""
from . import draw
from .blocks import Figure, Section, Table, Text, fixed, number, percent, value


def name_of(setting):
    return f"S = {number(setting['update_interval'])}, lag {number(setting['publish_lag'])}"


def has_run(setting):
    return setting["has_run"] and setting.get("step_s") is not None


def age(setting):
    """Steps by which what the model sees is behind, at most."""
    return value(setting["update_interval"]) - 1 + value(setting["publish_lag"])


def is_measured(data):
    """Whether every run has a figure of lateness: else zf tune orders settings by their age."""
    return all(s.get("lateness") is not None for s in data["settings"] if has_run(s))


def points(data):
    late = is_measured(data)
    return [draw.Point(f"{name_of(s)}: {s['verdict']}", value(s["step_s"], 1e3), value(s["lateness"]) if late else age(s),
                       is_square=s["publish_lag"] == 1, is_hollow=value(s.get("stall_share")) > value(data["max_stall"]),
                       is_marked=s["verdict"] == "chosen") for s in data["settings"] if has_run(s)]


def figure(data):
    label = ("what old weights cost per step: loss, to first order" if is_measured(data) else
             "age of what the model sees, steps at most (lateness was not measured)")
    note = (f"hollow: the device waits for more than {percent(1 + value(data['max_stall']), 0).lstrip('+')} of a step; squares: values "
            "come one step later (lag 1); ring: the choice")
    return Figure("", "Loss gap against the time of a step", note,
                  lambda: draw.points(points(data), "time of a step, milliseconds", label, "zf tune: loss gap against the time of a step", note))


def table(data):
    rows = []
    for s in data["settings"]:
        ran = has_run(s)
        rows.append([name_of(s), fixed(s.get("steps"), 0), fixed(value(s.get("step_s"), 1e3), 3) if ran else "-",
                     f"{fixed(value(s.get('stall_share'), 100), 1)} %" if ran else "-", number(s.get("lateness")), s["verdict"]])
    return Table(["windows", ">steps", ">ms per step", ">stall", ">lateness", ""], rows)


def section(data):
    chosen = next((s for s in data["settings"] if s["verdict"] == "chosen"), None)
    said = f"{name_of(chosen)} of {len(data['settings'])} settings was chosen" if chosen else "no setting could be run"
    blocks = [table(data), Text("Steps behind warm-up alone. Stall: share of a step that the device waited. Lateness: nearest to 0 is least late.")]
    if any(has_run(s) for s in data["settings"]):
        blocks.append(figure(data))
    return Section(said, blocks)
