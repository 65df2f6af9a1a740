# SPDX-License-Identifier: Apache-2.0
"""zf tune: the user's own trainer, run under each of several settings; what the plugin counted decides.

Each setting is run several times, in turn with the others, with an INI file of its own. The trace of a run says what
its steps behind warm-up took: time and stall. The choice is the setting with the least loss among those whose stall is
small enough, by the median of its runs: --loss says how the trainer prints it, and its last one counts. Without it
settings are ordered by the age of what the model sees, S - 1 + lag steps. Where the best setting and the present one
differ by less than runs of one setting do, the present one stays.

Called by `zf tune` with that program's path in ZF_COMMAND. Python's own library is enough.
"""
import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

from terminal import Failed, Parser, Progress, ask_zf, check_place, command, number, printable, read_file, replacing, say

LEAST_STEPS, MOST_STEPS = 16, 300  # of a run, behind warm-up
SETTLE = 8  # steps behind warm-up in which threads and caches come to rest
MOST_ROUNDS, MOST_SETTINGS = 9, 32
MOST_TRACE_PATH = 160  # bytes, of 191 of [trace] file with the steps
GRACE_S = 5  # from SIGTERM to SIGKILL
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+@,=%-]+")  # what no shell misreads


# ---- settings -------------------------------------------------------------------------------------------------------


@dataclass
class Setting:
    """One setting and what became of it. keys: (section, key) -> value."""

    name: str
    keys: dict
    interval: int | None = None  # S; None until a run says it
    lag: int | None = None
    why: str = ""  # it failed: its runs count no more
    values: dict | None = None  # effective() of it
    steps: float = 0
    step_s: list = field(default_factory=list)
    stall: list = field(default_factory=list)  # share of a step
    loss: list = field(default_factory=list)  # what the trainer printed last; NaN: it was not asked for

    @property
    def has_run(self):
        return bool(self.step_s)

    @property
    def age(self):
        return self.interval - 1 + self.lag


def read_setting(text):
    """exact, S:LAG or SECTION.KEY=VALUE, several of them joined by +."""
    out = Setting("", {})
    names = []
    for word in text.split("+"):
        windows = re.fullmatch(r"([1-9]\d{0,3}):([01])", word)
        pair = re.fullmatch(r"(\w+)\.(\w+)=([^\s;#]+)", word)
        if word == "exact":
            out.keys["zenflow", "mode"] = "exact"
            out.interval, out.lag = 1, 0
            names.append(word)
        elif windows:
            out.interval, out.lag = int(windows[1]), int(windows[2])
            out.keys |= {("zenflow", "update_interval"): windows[1], ("zenflow", "publish_lag"): windows[2]}
            names.append(f"S = {windows[1]}, lag {windows[2]}")
        elif pair:
            out.keys[pair[1], pair[2]] = pair[3]
            names.append(f"{pair[1]}.{pair[2]} = {pair[3]}")
        else:
            return None
    out.name = ", ".join(names)
    return out


def settings_list(text):
    settings = [read_setting(part) for part in text.split(",")]
    if None in settings or len(settings) > MOST_SETTINGS:
        raise argparse.ArgumentTypeError(
            f"{text}: need a list of at most {MOST_SETTINGS}, each exact, S:LAG with LAG 0 or 1, or SECTION.KEY=VALUE, "
            "joined by +: exact,exact+device.state_mib=2048,2:0")
    return settings


def pattern(text):
    try:
        re.compile(text)
    except re.error as why:
        raise argparse.ArgumentTypeError(f"{text}: no regular expression: {why}") from None
    return text


# ---- files ----------------------------------------------------------------------------------------------------------


def key_of(line, section):
    """(section, key), value of an INI line, or None, None."""
    found = re.match(r"\s*([^=:;#\[\s][^=:]*?)\s*[=:]\s*(.*?)\s*(?:\s[;#].*)?$", line)
    return ((section, found[1]), found[2]) if found else (None, None)


def lines_of(text):
    """Every line with its key and value."""
    section = ""
    for line in text.removeprefix("\ufeff").splitlines():
        head = re.match(r"\s*\[([^\]]*)\]", line)
        section = head[1].strip() if head else section
        yield (line, None, None) if head else (line, *key_of(line, section))


def is_replaced(key, value, setting, has_trace):
    windows = {("zenflow", "update_interval"), ("zenflow", "publish_lag")}
    if key == ("zenflow", "mode") and value in ("exact", "windows"):
        return bool(windows & setting.keys.keys()) or key in setting.keys
    if key in windows and setting.keys.get(("zenflow", "mode")) == "exact":
        return True
    return key in setting.keys or (has_trace and key == ("trace", "file"))


def configuration(text, setting, trace=None, warm_up=0):
    """The text with the setting's keys; with a trace also of the steps behind warm-up."""
    kept = [line for line, key, value in lines_of(text) if not is_replaced(key, value, setting, bool(trace))]
    keys = dict(setting.keys)
    if trace:
        first = warm_up + SETTLE + 1
        keys |= {("trace", "file"): f"{trace} steps {first}..{first + MOST_STEPS - 1}"}
    for section in dict.fromkeys(section for section, _ in keys):
        kept += ["", f"[{section}]", *(f"{key} = {value}" for (of, key), value in keys.items() if of == section)]
    return "\n".join(kept) + "\n"


def effective(path):
    """{(section, key): value} with which the plugin would train, but for the trace, which is each run's own."""
    return {key: value for _, key, value in lines_of(ask_zf("config", path)) if key and key != ("trace", "file")}


def write_file(path, text):
    with replacing(path) as file:
        file.write(text.encode())


# ---- the runs -------------------------------------------------------------------------------------------------------


def has_ended(process):
    """It is looked at before it is reaped: its number, which is the group's, cannot be another's while the group ends."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_until(process, end):
    while not has_ended(process):
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def end_group(process):
    """No process of the group is left."""
    if not has_ended(process):
        os.killpg(process.pid, signal.SIGTERM)
        wait_until(process, time.monotonic() + GRACE_S)
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def run_trainer(command, environment, log_path, timeout_s, what):
    """The error, or an empty text."""
    check_place(log_path)
    began = time.monotonic()
    if not sys.stderr.isatty():
        say(f"{what} ...")
    with open(log_path, "wb") as log:
        process = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True, env=environment)
    is_over = False
    try:
        with Progress(what):
            is_over = wait_until(process, began + timeout_s)
    finally:
        status = end_group(process)
        say(f"{what}: {time.monotonic() - began:.1f} s")
    if not is_over:
        return f"it was ended after {timeout_s:g} s (--timeout)"
    if status < 0:
        return f"it was ended by signal {-status} ({signal.strsignal(-status)})"
    return f"exit status {status}" if status else ""


def read_counted(path):
    """The counts of the run's trace; of several ranks that of rank 0. None where there is none, or it is not complete."""
    for name in (path, path.removesuffix(".json") + ".rank0.json"):
        try:
            with open(name, encoding="utf-8") as file:
                return json.load(file)["otherData"]["counted"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def judge(setting, counted, loss):
    """One run more, or why there is none."""
    if loss is None:
        return "its output has no number behind what --loss says"
    if counted is None:
        return ("it left no complete trace: the trainer has to train with the file that {config} names, past warm-up "
                f"and {SETTLE} steps more, and to destroy the plugin's instance at its end")
    found = {name: float(counted.get(name) or 0) for name in (
        "steps", "submitted", "seconds", "stall_seconds", "update_interval", "publish_lag")}
    interval, lag = int(found["update_interval"]), int(found["publish_lag"])
    if setting.interval is None:
        setting.interval, setting.lag = interval, lag
    if (interval, lag) != (setting.interval, setting.lag):
        return f"it trained with S = {interval}, lag {lag}: the trainer sets these keys itself, above its file"
    if found["steps"] < LEAST_STEPS:
        return (f"{found['steps']:.0f} of its {found['submitted']:.0f} steps are behind warm-up and {SETTLE} more, at "
                f"least {LEAST_STEPS} are needed: take more steps, or give a smaller full_warm_up_rounds with --config")
    if not found["seconds"] > 0 or not found["stall_seconds"] >= 0:
        return f"its counters make no sense: {found['seconds']:g} s, stall {found['stall_seconds']:g} s"
    setting.steps = found["steps"]
    setting.step_s.append(found["seconds"] / found["steps"])
    setting.stall.append(found["stall_seconds"] / found["seconds"])
    setting.loss.append(loss)
    return ""


def read_loss(path, words):
    """The number behind the last `words` in the trainer's output. NaN: they are not asked for; None: there is none."""
    if words is None:
        return math.nan
    with open(path, encoding="utf-8", errors="replace") as file:
        found = re.findall(rf"(?:{words})[\s:=]*({NUMBER})", file.read())
    return float(found[-1]) if found and math.isfinite(float(found[-1])) else None


class Runs:
    """The folder of the runs' files, and the runs."""

    def __init__(self, options, text, warm_up):
        self.options, self.text, self.warm_up = options, text, warm_up
        if options.folder:
            os.makedirs(options.folder, exist_ok=True)
        self.folder = os.path.realpath(options.folder or tempfile.mkdtemp(prefix="zf-tune-"))
        longest = max(len(os.fsencode(self.path(i, "rank0.json"))) for i in range(len(options.settings)))
        if not PLAIN_PATH.fullmatch(self.folder) or longest > MOST_TRACE_PATH:
            raise Failed(f"{self.folder}: a shell could misread this path, or it is too long: give another --folder")

    def path(self, i, kind):
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", self.options.settings[i].name)[:60]
        return os.path.join(self.folder, f"{i + 1}-{slug}.{kind}")

    def run(self, i, number_of_round):
        setting = self.options.settings[i]
        ini, log, trace = (self.path(i, kind) for kind in ("ini", "log", "json"))
        what = (f"round {number_of_round} of {self.options.rounds}, setting {i + 1} of {len(self.options.settings)}, "
                f"{setting.name}")
        if os.path.lexists(trace):
            os.unlink(trace)  # of another time, where --folder was given
        write_file(ini, configuration(self.text, setting, trace, self.warm_up))
        setting.values = effective(ini)
        setting.why = run_trainer(self.options.command.replace("{config}", ini),
                                  {**os.environ, "ZF_TUNE_CONFIG": ini}, log, self.options.timeout, what)
        setting.why = setting.why or judge(setting, read_counted(trace), read_loss(log, self.options.loss))
        if setting.why:
            say(f"{what}: {setting.why}; its output: {log}")
            setting.step_s, setting.stall, setting.loss = [], [], []

    def tidy(self):
        """The files of the runs go, unless the user may want to read them."""
        settings = self.options.settings
        if self.options.folder or not all(setting.has_run for setting in settings):
            return
        for i in range(len(settings)):
            for kind in ("ini", "log", "json", "rank0.json"):
                if os.path.lexists(self.path(i, kind)):
                    os.unlink(self.path(i, kind))
        if not os.listdir(self.folder):
            os.rmdir(self.folder)


# ---- the choice -----------------------------------------------------------------------------------------------------


class Choice:
    def __init__(self, settings, text, present, max_stall):
        self.all, self.text, self.present, self.max_stall = settings, text, present, max_stall
        self.ran = [setting for setting in settings if setting.has_run]
        self.knows_loss = not any(math.isnan(x) for setting in self.ran for x in setting.loss)
        self.best = self.find_best()
        self.chosen = self.choose()

    def order(self, setting):
        cost = statistics.median(setting.loss) if self.knows_loss else setting.age
        return cost, statistics.median(setting.step_s)

    def find_best(self):
        short = [setting for setting in self.ran if statistics.median(setting.stall) <= self.max_stall]
        if short:
            return min(short, key=self.order)
        return min(self.ran, key=lambda setting: statistics.median(setting.stall), default=None)

    def choose(self):
        """The present setting is that of --config, or without it the default, or the first that ran."""
        if not self.best:
            return None
        present = next((setting for setting in self.ran if setting.values == self.present), self.ran[0])
        return self.best if self.best is present or self.is_clear(self.best, present) else present

    def is_clear(self, better, other):
        """Every run of the better setting says so: no run of the other was as good as its worst."""
        def is_below(a, b):
            return max(a) < min(b)
        is_short = max(better.stall) <= self.max_stall
        if min(other.stall) > self.max_stall:
            return is_short or is_below(better.stall, other.stall)
        if not is_short:
            return False
        if not self.knows_loss and better.age != other.age:
            return better.age < other.age
        return (self.knows_loss and is_below(better.loss, other.loss)) or is_below(better.step_s, other.step_s)

    def verdict(self, setting):
        if not setting.has_run:
            return setting.why
        if setting is self.chosen:
            return "chosen"
        if min(setting.stall) > self.max_stall:
            return "stalls too long"
        return ("a larger loss, or slower" if self.knows_loss else "later, or slower") if self.is_clear(self.chosen, setting) else "no difference"

    def reason(self):
        if self.chosen is not self.best and self.chosen.values == self.present:
            return "it stays: to the best of the others there is no difference beyond that of its own runs"
        if self.chosen is not self.best:
            return "the first of the settings: to the best of them there is no difference beyond that of its own runs"
        if statistics.median(self.chosen.stall) > self.max_stall:
            return "no setting stalls as little as asked: this one stalls least"
        if self.knows_loss:
            return "the least loss of those that stall little enough"
        return "the youngest values of those that stall little enough; --loss would compare losses"

    def quicker(self):
        """Stall is what the device waits. What the workers take away from a trainer on the same cores is in the time alone."""
        quickest = min(self.ran, key=lambda setting: statistics.median(setting.step_s))
        share = 1 - statistics.median(quickest.step_s) / statistics.median(self.chosen.step_s)
        if share <= self.max_stall or max(quickest.step_s) >= min(self.chosen.step_s):
            return ""
        return (f"{quickest.name} takes {100 * share:.0f} % less time per step: the host's work takes cores or bandwidth "
                "from the trainer\n")


# ---- output ---------------------------------------------------------------------------------------------------------


def table(choice, rounds):
    def spread(values, factor, form):
        shown = [format(factor * x, form) for x in (statistics.median(values), min(values), max(values))]
        return f"{shown[0]} ({shown[1]} to {shown[2]})"
    width = max(len(setting.name) for setting in choice.all)
    yield (f"{'setting':{width}}  steps  ms per step, stall in % of it, loss: median (least to most) of {rounds} "
           f"run{'s' if rounds > 1 else ''}")
    for setting in choice.all:
        figures = ""
        if setting.has_run:
            loss = "-" if any(map(math.isnan, setting.loss)) else spread(setting.loss, 1, ".6g")
            figures = (f"  {setting.steps:5.0f}  {spread(setting.step_s, 1e3, '.3f')}  {spread(setting.stall, 100, '.1f')}"
                       f"  {loss}")
        yield f"{setting.name:{width}}{figures}  {choice.verdict(setting)}"


def refuse_taken(options):
    if not options.force and os.path.lexists(options.output):
        raise Failed(f"{options.output}: is there already: --force overwrites it, --output names another")


def report(options, choice, folder):
    if choice.chosen:
        refuse_taken(options)
        head = [f"Written by zf tune for: {printable(options.command)}",
                f"{choice.chosen.name}: {choice.reason()} (at most {options.max_stall:g} of a step)",
                *table(choice, options.rounds)]
        write_file(options.output, "".join(f"# {line}\n" for line in head) + configuration(choice.text, choice.chosen))
    print(*table(choice, options.rounds), sep="\n")
    if choice.chosen:
        print(f"\n{choice.chosen.name}: {choice.reason()} (at most {options.max_stall:g} of a step); written to "
              f"{printable(options.output)}\n{choice.quicker()}", end="")
    else:
        say(f"no setting ran; output and files of the runs: {folder}")
    return 0 if choice.chosen else 1


# ---- the command ----------------------------------------------------------------------------------------------------


def read_options():
    parser = Parser("tune", "--command COMMAND [OPTIONS]")
    parser.add_argument("--command", required=True)
    parser.add_argument("--config")
    parser.add_argument("--settings", type=settings_list, default="exact,2:0,4:0,1:1,2:1")
    parser.add_argument("--rounds", type=number(1, MOST_ROUNDS), default=3)
    parser.add_argument("--max-stall", type=number(1e-9, 1.0), default=0.03)
    parser.add_argument("--loss", type=pattern)
    parser.add_argument("--timeout", type=number(1e-3, 1e6), default=3600)
    parser.add_argument("--output", default="zf-tuned.ini")
    parser.add_argument("--folder")
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    if "{config}" not in options.command and "ZF_TUNE_CONFIG" not in options.command:
        parser.error("the command does not say where the configuration goes: write {config} where your trainer takes "
                     "the path of its INI file, or $ZF_TUNE_CONFIG, which holds the same path")
    return options


def read_text(path):
    """The text of a configuration, if there is one, and the values that hold with it."""
    if path:
        present = effective(path)
        return read_file(path, 1 << 20).decode(), present
    with tempfile.NamedTemporaryFile() as empty:
        return "", effective(empty.name)


def interrupt(*_):
    raise KeyboardInterrupt


def tune(options):
    refuse_taken(options)
    text, present = read_text(options.config)
    runs = Runs(options, text, int(present["zenflow", "full_warm_up_rounds"]))
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, interrupt)
    try:
        for number_of_round in range(1, options.rounds + 1):
            for i, setting in enumerate(options.settings):
                if not setting.why:
                    runs.run(i, number_of_round)
    except KeyboardInterrupt:
        raise Failed(f"interrupted; output and files of the runs: {runs.folder}") from None
    status = report(options, Choice(options.settings, text, present, options.max_stall), runs.folder)
    runs.tidy()
    return status


@command()
def main():
    return tune(read_options())


if __name__ == "__main__":
    sys.exit(main())
