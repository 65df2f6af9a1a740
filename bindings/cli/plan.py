# SPDX-License-Identifier: Apache-2.0
"""zf plan MODEL: bytes on host, device and disk, the timeline of a step, and a configuration.

Bytes are the plugin's own (plan_bytes.c). Times are a simulation (timeline.py) of speeds that are given, measured by
`zf doctor --json`, or assumed; the output says which.

Work of training: 2 operations per parameter and token forward, twice that backward, once more forward where activations are
recomputed; attention adds 4 x layers x hidden x sequence per token to each forward (PaLM, appendix B, arXiv 2204.02311).
Memory traffic of a window of S steps: w and the moments read and written, S slots read, the values written.

Called by `zf plan` with that program's path in ZF_COMMAND. Python's own library is enough.
"""
import json
import math
import sys
from dataclasses import dataclass

import timeline
from models import WIDTH, read_model
from terminal import Failed, Parser, Progress, ask_zf, command, number, printable, read_file

INTERVALS = (1, 2, 3, 4, 8)
LONGEST_CHOSEN = 4  # longer windows are for those who measured what they lose
MAX_STALL = 0.03
MUCH_SPREAD = 1.25  # what is less is said by `zf doctor` alone
LEAST_ASKED, MOST_WORK = 8, 1 << 25  # ranks; ranks that are asked x ranks x tensors: a few seconds
LEAST_EARLY_NBYTES = 1 << 20  # less is no room
MANY_COLUMNS = 64  # more than a kernel's side
SMALL_SHARE = 0.01  # of a model
USUAL_BUCKET_ELEMS, BUCKET_ELEMS_PER_RANK, LEAST_BUCKETS, ONE_RANKS_BUCKETS, MOST_BUCKETS = 40000000, 1000000, 16, 256, 1024
NUMBERS = {  # option: unit, default, least, most
    "tokens": ("tokens per rank and step", 8192, 1, 1e12),
    "sequence": ("tokens per sequence", 2048, 0, 1e9),
    "micro-batches": ("micro-batches per step", 1, 1, 4096),  # whole, as its most is
    "tflops": ("TFLOP/s of the device at its peak", 312, 1e-6, 1e9),
    "efficiency": ("of that peak", 0.4, 1e-4, 1.0),
    "link": ("GB/s between host and device, each way, per rank", 25, 1e-3, 1e6),
    "net": ("GB/s of network per rank", 25, 1e-3, 1e6),
    "inside": ("GB/s between the ranks of a machine, per rank, in two levels", 100, 1e-3, 1e6),
    "latency": ("us per collective", 20, 0, 1e9),
    "host": ("GB/s of replays per machine", 50, 1e-3, 1e6),
    "own": ("ns per parameter and step of the plugin's own passes on the device", 0, 0, 1e9),
}


def read_options():
    parser = Parser("plan", "MODEL [OPTIONS]")
    parser.add_argument("model", metavar="MODEL", nargs="?")
    parser.add_argument("--config")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--stage", dest="overrides", action="append", type="shard.stage={}".format)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=tuple(WIDTH))
    parser.add_argument("--ranks", type=number(1, 65536), default=1)
    parser.add_argument("--local-ranks", type=number(1, 4096), default=8)
    parser.add_argument("--machine")
    for name in ("no-fetch", "recompute", "json"):
        parser.add_argument(f"--{name}", action="store_true")
    for name, (_, _, least, most) in NUMBERS.items():
        parser.add_argument(f"--{name}", dest=name, type=number(least, most))
    options = parser.parse_args()
    if not options.model:
        parser.error("MODEL is missing")
    options.local_ranks = min(options.local_ranks, options.ranks)
    return options


# ---- the machine ----------------------------------------------------------------------------------------------------


class Machine:
    """What `zf doctor --json` measured; nothing of it where there is no file."""

    def __init__(self, path):
        self.path, self.windows, self.spread = path, {}, 0
        self.available_nbytes = self.own_ns = self.own_spread = self.link = 0
        if path:
            try:
                self.read(json.loads(read_file(path, 1 << 20)))
            except (ValueError, TypeError, AttributeError, RecursionError):
                pass
        if path and not self.windows:
            raise Failed(f"{path}: has no speed of replays: make it with `zf doctor --json > {path}`")

    def read(self, found):
        for row in found["replay"]["windows"] if "replay" in found else ():
            interval, speed = int(row.get("update_interval", 0)), float(row.get("elems_per_s", 0))
            if 1 <= interval <= 64 and 0 < speed < 1e18:
                self.windows[interval] = speed
                self.spread = max(self.spread, spread_of(row, "elems_per_s"))
        own = found.get("own", {})
        self.available_nbytes = float(found.get("memory", {}).get("available_nbytes") or 0)
        self.own_ns, self.own_spread = float(own.get("ns_per_elem", 0)), spread_of(own, "ns_per_elem")
        for device in found.get("cuda", {}).get("devices", ())[:1]:  # half of both ways: gradients go down while values come up
            self.link = float(device.get("link", {}).get("both_gb_per_s", 0)) / 2


def spread_of(row, key):
    """The most by the least; 0: an older file."""
    least, most = float(row.get(f"least_{key}", 0)), float(row.get(f"most_{key}", 0))
    return most / least if 0 < least <= most else 0


# ---- buckets --------------------------------------------------------------------------------------------------------


def cut_buckets(sizes, wanted, halves):
    """As the plugin cuts them (plan/bucket.c), from the end of the model: larger parameters are one of their own; of several
    ranks the last halve what is left, down to a sixteenth."""
    out, bucket, left = [], 0, sum(sizes)
    wanted = max(wanted, left / MOST_BUCKETS)
    for i in range(len(sizes) - 1, -1, -1):
        bucket += sizes[i]
        left -= sizes[i]
        following = sizes[i - 1] if i else 0
        is_enough = bucket >= wanted or (halves and bucket * 16 >= wanted and (
            bucket >= left or (following > bucket and (following >= wanted or left <= wanted))))
        if is_enough or i == 0:
            out.append(bucket)
            bucket = 0
    return out[::-1]


# ---- the plan -------------------------------------------------------------------------------------------------------


def asked_ranks(n, most):
    """All of n, or the first ones, which get the rows that are left over first (plugin/plan/slice.h), and some up to the last."""
    n_asked = min(n, max(most, LEAST_ASKED))
    n_first = n_asked // 2
    n_more = n_asked - n_first
    return [*range(n_first), *(n_first + i * (n - 1 - n_first) // max(n_more - 1, 1) for i in range(n_more))]


@dataclass
class Row:
    """A setting, its bytes (members of zf_plan_t) and its times (timeline.run)."""

    bytes: dict
    times: dict

    @property
    def setting(self):
        return self.bytes["update_interval"], self.bytes["publish_lag"]

    @property
    def stall(self):
        """Of a step, the share that waits: what is beyond compute and the plugin's own passes."""
        return max(0, self.times["step_s"] - self.times["compute_s"] - self.times["own_s"]) / self.times["step_s"]

    def as_json(self):
        interval, lag = self.setting
        return {"update_interval": interval, "publish_lag": lag, "host_nbytes": self.bytes["host_nbytes"], **self.times}


class Plan:
    def __init__(self, options):
        self.options, self.machine = options, Machine(options.machine)
        self.text = read_file(options.config, 1 << 20).decode(errors="replace") if options.config else ""
        self.model = read_model(options.model, options.dtype)
        self.measured = self.take_measured()
        self.speeds = {name: getattr(options, name) for name in NUMBERS}
        self.speeds = {name: NUMBERS[name][1] if given is None else given for name, given in self.speeds.items()} | self.measured
        with Progress(f"planning {options.model}"):
            self.make()

    def take_measured(self):
        """{option: what the machine's file says in its place}"""
        options, machine, out = self.options, self.machine, {}
        if options.device == "cpu" and options.own is None and 0 < machine.own_ns < 1e9:
            out["own"] = machine.own_ns
        if options.device == "cuda" and options.link is None and 1e-3 < machine.link < 1e6:
            out["link"] = machine.link
        return out

    def ask(self, asks):
        """Keys of the configuration, and a zf_plan_t of each (rank, overrides)."""
        options, tensors, space = self.options, [], 0
        for tensor, n_elems in zip(self.model.tensors, self.model.sizes):
            tensors.append([*tensor, space])
            space += (n_elems * WIDTH[tensor[1]] // 64 + 1) * 64
        asked = {"config": self.text, "overrides": options.overrides, "fetches": not options.no_fetch, "space": space,
                 "is_cpu": options.device == "cpu", "n_ranks": options.ranks, "tensors": tensors,
                 "asks": [{"rank": rank, "overrides": overrides} for rank, overrides in asks]}
        found = json.loads(ask_zf("ask", "plan", input=json.dumps(asked)))
        return found["keys"], found["plans"]

    def make(self):
        ranks = asked_ranks(self.options.ranks, MOST_WORK // (self.options.ranks * len(self.model.tensors)))
        keys, plans = self.ask([(rank, []) for rank in ranks])
        mode, state, self.bucket_bytes = keys["zenflow.mode"], keys["device.state_mib"], keys["shard.bucket_bytes"]
        self.limit_nbytes = int(keys["host.memory_limit_mib"]) << 20
        self.room_nbytes = self.limit_nbytes or self.machine.available_nbytes / self.options.local_ranks or math.inf
        for plan in plans:
            if "error" in plan:
                raise Failed(plan["error"])
            self.fit(plan, mode == "exact" or (mode == "windows" and keys["zenflow.update_interval"] != "auto"))
        on_device = ("device_nbytes", "staging_nbytes", "sums_nbytes")
        self.of_ranks = plans
        self.bytes = max(plans, key=lambda of: of["host_nbytes"]) | {name: max(of[name] for of in plans) for name in on_device}
        self.has_windows = mode != "mean" and state != "all"  # some state on the host: there is a timeline
        self.stage = int(keys["shard.stage"])
        self.is_sharded = self.stage > 0 and self.options.ranks > 1
        n_ranks, n_local = self.options.ranks, self.options.local_ranks
        in_two_levels = keys["shard.transport"].endswith("_two_level") and n_local < n_ranks
        if in_two_levels and n_ranks % n_local:
            raise Failed(f"[shard] transport = {keys['shard.transport']}: {n_ranks} ranks are no machines of {n_local} (--local-ranks)")
        self.n_machines = n_ranks // n_local if in_two_levels else n_ranks
        self.state_nbytes = 12 if keys["host.moments_dtype"] == "float32" else 8  # of a parameter: its master and moments
        mib = float(state) if state.isdigit() else 0  # auto: what nobody knows here
        self.resident_elems = mib * 2**20 / self.state_nbytes
        self.rows = []
        if self.has_windows:
            slowest = max(range(len(ranks)), key=lambda i: plans[i]["most_close_elems"])
            settings = [["zenflow.mode=windows", f"zenflow.update_interval={interval}", f"zenflow.publish_lag={lag}"]
                        for lag in (0, 1) for interval in INTERVALS]
            self.own = Row(plans[slowest], self.times(plans[slowest], self.resident_elems))
            for plan in self.ask([(ranks[slowest], overrides) for overrides in settings])[1]:
                if "error" not in plan:
                    self.fit(plan)
                    self.rows.append(Row(plan, self.times(plan, self.resident_elems)))

    def fit(self, plan, has_early=True):
        """As bind_params (plugin/instance/memory.c): the room for early replays, 8 / S bytes a parameter, is halved until it fits, down
        to none."""
        most = plan["host_state_nbytes"] * 2 // 3 // plan["update_interval"] if has_early and plan["publish_lag"] == 0 else 0
        early, least = most, plan["host_nbytes"] - most
        later = plan["staging_nbytes"] + plan["sums_nbytes"]
        beside = plan["device_nbytes"] if self.options.device == "cpu" else 0
        while early and (least + early) * (1 if self.limit_nbytes else 4 / 3) + later + beside > self.room_nbytes:
            early = early // 2 if early > LEAST_EARLY_NBYTES else 0
        plan |= {"host_nbytes": least + early, "host_early_nbytes": early, "most_early_nbytes": most,
                 "does_fit": least + early + beside <= self.room_nbytes}

    def replay_speed(self, interval, grad_nbytes):
        """Elements x steps per second of a rank's workers; between two measured windows by the bytes per second of the shorter."""
        def traffic_nbytes(interval, grad_nbytes):
            return 24 + grad_nbytes * interval + grad_nbytes
        shorter = max((measured for measured in self.machine.windows if measured <= interval), default=0)
        nbytes_per_s = self.speeds["host"] * 1e9
        if shorter:
            nbytes_per_s = self.machine.windows[shorter] / shorter * traffic_nbytes(shorter, 2)
        return nbytes_per_s / traffic_nbytes(interval, grad_nbytes) * interval / self.options.local_ranks

    def forward_s(self):
        """Of a micro-batch."""
        speeds, model = self.speeds, self.model
        per_token = 2 * model.n_elems + 4 * model.n_layers * model.hidden * speeds["sequence"]
        return speeds["tokens"] / speeds["micro-batches"] * per_token / (speeds["tflops"] * 1e12 * speeds["efficiency"])

    def owned_elems(self):
        """Parameters whose state the busiest rank keeps."""
        return max(plan["n_owned_elems"] for plan in self.of_ranks)

    def times(self, plan, resident_elems):
        options, speeds, n, forward = self.options, self.speeds, self.model.n_elems, self.forward_s()
        is_sharded, own = self.is_sharded, self.owned_elems()
        # of one rank, without an exchange, gradients and values travel in much smaller pieces
        elem_nbytes, halves = self.model.nbytes / n, options.ranks > 1 and self.bucket_bytes == "auto"
        wanted = max(min(BUCKET_ELEMS_PER_RANK * options.ranks, n // LEAST_BUCKETS), USUAL_BUCKET_ELEMS)
        if not halves:
            wanted = int(self.bucket_bytes) / elem_nbytes if options.ranks > 1 else n / ONE_RANKS_BUCKETS
        return timeline.run(timeline.Job(
            buckets=cut_buckets(self.model.sizes, wanted, halves),
            forward_s=forward,
            backward_s=forward * (3 if options.recompute else 2),
            n_micro_batches=speeds["micro-batches"],
            update_interval=plan["update_interval"],
            publish_lag=plan["publish_lag"],
            fetches=not options.no_fetch and not is_sharded,
            n_ranks=options.ranks,
            is_sharded=is_sharded,
            owned_share=own / n,
            elem_nbytes=elem_nbytes,
            reduce_factor=1 + plan["n_selected_elems"] / n if is_sharded else 2,
            link=speeds["link"] * 1e9,
            net=speeds["net"] * 1e9,
            n_machines=self.n_machines,
            inside=speeds["inside"] * 1e9,
            net_latency_s=speeds["latency"] * 1e-6,
            replay=self.replay_speed(plan["update_interval"], elem_nbytes),
            # as plugin/instance/layout.c has it, and fit() left it
            spare_elems=plan["host_early_nbytes"] / max(plan["most_early_nbytes"], 1) * max(own - resident_elems, 0) * 2 / 3,
            resident_elems=resident_elems,
            most_close=plan["most_close_elems"] / own if is_sharded else 0,
            own_s=speeds["own"] * 1e-9 * n))

    def choose(self):
        """The least late of the rows that costs at most MAX_STALL of a step: lag 0 before lag 1, then small S; where none does,
        the quickest. What takes more than the machine has is not chosen. None: nothing is left."""
        rows = [row for row in self.rows if row.setting[0] <= LONGEST_CHOSEN and row.bytes["does_fit"]]
        quickest = min(rows, key=lambda row: row.times["step_s"], default=None)
        return next((row for row in rows if row.stall <= MAX_STALL), quickest)

    def exact_state_mib(self):
        """The least state on a rank's device with which the exact setting waits for at most MAX_STALL of a step; 0: it does without,
        all of it would not do, or nobody can say."""
        exact = next((row for row in self.rows if row.setting == (1, 0)), None)
        if self.options.device == "cpu" or not exact or exact.stall <= MAX_STALL:
            return 0

        def waits_little(share):
            return Row(exact.bytes, self.times(exact.bytes, share * self.owned_elems())).stall <= MAX_STALL
        if not waits_little(1):
            return 0
        least, most = 0, 1
        for _ in range(12):
            share = (least + most) / 2
            if waits_little(share):
                most = share
            else:
                least = share
        return math.ceil(most * self.owned_elems() * self.state_nbytes / 2**20)


# ---- text -----------------------------------------------------------------------------------------------------------


def gib(nbytes):
    return nbytes / 2**30


def head(plan):
    options, model = plan.options, plan.model
    dtypes = " and ".join(name for name in WIDTH if any(tensor[1] == name for tensor in model.tensors))
    source = ("(--dtype)" if options.dtype else f'(its "{model.dtype_said}")' if model.dtype_said else
              "(assumed where it says none)" if model.n_assumed else "(of its tensors)")
    left_out = f"; {model.n_not_trained} of other data types left out" if model.n_not_trained else ""
    yield (f"model      {options.model}: {len(model.tensors)} tensors, {model.n_elems / 1e6:.4g} M parameters, "
           f"{gib(model.nbytes):.2f} GiB: {dtypes} {source}{left_out}")
    stacked = [shape for *_, n_batch, shape in model.tensors if len(shape) - n_batch > 2 and min(shape[-2:]) >= MANY_COLUMNS]
    if stacked:  # kernels of convolutions are smaller
        example = "x".join(map(str, stacked[0]))
        yield (f"           {len(stacked)} tensors such as {example} are one matrix each; a list of shapes says where they are several: "
               + example.replace("x", "|", 1))
    yield (f"job        {options.ranks} rank{'s'[:options.ranks > 1]}, {options.local_ranks} on a machine, stage {plan.stage}, "
           f"{options.device.upper()}; the trainer {'does not fetch' if options.no_fetch else 'fetches'}")


def disk_nbytes(plan):
    """Masters and both moments of all ranks, in fp32 however they lie in memory."""
    return 12 * plan.bytes["n_elems"]


def bytes_of(plan):
    b, options = plan.bytes, plan.options
    host, is_whole = b["host_nbytes"], plan.stage < 3 or options.ranks == 1
    parts = [b[f"host_{name}_nbytes"] for name in ("state", "slots", "publish", "exchange", "early")]
    exchange = f"copies of what ranks exchange {gib(parts[3]):.3f}, " if parts[3] else ""
    most_early = b["most_early_nbytes"]
    left = f" of {gib(most_early):.3f}" if parts[4] < most_early else ""
    early = f"room for early replays {gib(parts[4]):.3f}{left}, " if most_early else ""
    yield (f"\nhost       {gib(host):9.3f} GiB per rank, {gib(host) * options.local_ranks:.3f} on a machine: "
           f"{host / max(b['n_owned_elems'], 1):.2f} bytes per parameter that the rank keeps")
    yield (f"           state {gib(parts[0]):.3f}, slots {gib(parts[1]):.3f} (S = {b['update_interval']}), "
           f"published values {gib(parts[2]):.3f}, {early}{exchange}the rest {gib(host - sum(parts)):.3f} GiB")
    if options.device == "cuda":
        yield "           all of it is page-locked when parameters are bound: tens of seconds for tens of GiB"
    yield (f"device     {gib(b['device_nbytes']):9.3f} GiB per rank beside {'weights and ' if is_whole else ''}gradients of "
           f"{gib(plan.model.nbytes):.3f}{' each' if is_whole else ''}")
    more = ("where gradients are only lent, or strided" if options.ranks == 1 else
            "for what ranks exchange" + ("" if is_whole else ", and the rank's part of the weights"))
    yield (f"           {gib(b['staging_nbytes']):.3f} more {more}; {gib(b['sums_nbytes']):.3f} more where a step's gradient "
           "comes in parts")
    if options.device == "cuda":
        yield ("           not in it, and there after a release, too: CUDA's context with the kernels"
               + (", the buffers of NCCL" if options.ranks > 1 else ""))
        yield "           of a host that releases: all of it in pieces of 2 MiB, and as much more page-locked memory"
    # what a save in mid-window adds: the slots that are open then, and visible values, which differ from the masters
    window = plan.model.nbytes * ((b["update_interval"] - 1) / 2 + 1) if plan.has_windows else 0
    yield (f"disk       {gib(disk_nbytes(plan)):9.3f} GiB for a compact checkpoint of all ranks; about {gib(window):.3f} more for "
           "one in mid-window")
    if not b["does_fit"]:
        yield "           " + (f"[host] memory_limit_mib leaves {gib(plan.limit_nbytes):.3f} GiB to a rank" if plan.limit_nbytes else
                                f"that machine has {gib(plan.machine.available_nbytes):.3f} GiB available") + ": it does not fit"


def range_of(plan, least, most):
    """Over the ranks that were asked, in millions."""
    return f"{min(of[least] for of in plan.of_ranks) / 1e6:.4g} to {max(of[most] for of in plan.of_ranks) / 1e6:.4g} M"


def has_few_rows(n_batch, shape, n_ranks):
    return len(shape) > n_batch + 1 and shape[n_batch] < n_ranks


def balance(plan):
    if plan.options.ranks == 1:
        return
    closes = range_of(plan, "least_close_elems", "most_close_elems")
    windows = f"; at a step, windows of {closes} of them close on a rank" if plan.has_windows else ""
    n_asked = len(plan.of_ranks)
    asked = f" (of {n_asked} ranks)" if n_asked < plan.options.ranks else ""
    yield f"work       ranks keep {range_of(plan, 'n_owned_elems', 'n_owned_elems')} parameters{windows}{asked}"
    few = [tensor for tensor in plan.model.tensors if has_few_rows(*tensor[3:], plan.options.ranks)]
    if plan.is_sharded and sum(math.prod(shape) for *_, shape in few) > SMALL_SHARE * plan.model.n_elems:
        n = sum(math.prod(shape[:n_batch]) for *_, n_batch, shape in few)
        yield (f"           {n} matri{'ces have' if n > 1 else 'x has'} fewer rows than there are ranks: a row is never cut, so some ranks keep more, and "
               "exchanges carry padding")


def speeds_of(plan):
    machine = plan.machine
    yield "\ntimes are a simulation of"
    if plan.stage == 3 and plan.options.ranks > 1:
        yield "           stage 2: what a step waits for weights that are gathered is not in them"
    for name, (unit, *_) in NUMBERS.items():
        value, spread = plan.speeds[name], 0
        if name == "own" and name in plan.measured:
            what, spread = f"the plugin's own passes, {value:.3g} ns per parameter and step", machine.own_spread
        elif name == "host" and machine.windows:
            what, spread = "replays", machine.spread
        else:
            what = f"{value:.3g} {unit}," if name in plan.measured else f"{value:g} {unit}"
        if name in plan.measured or (name == "host" and machine.windows):
            what += f"{',' if name == 'own' else ''} as measured in {machine.path}"
        elif getattr(plan.options, name) is None:
            what += " (assumed)"
        yield f"           {what}" + (f", which differed by a factor of {spread:.1f}: so may these times" if spread > MUCH_SPREAD
                                      else "")


def rows_of(plan):
    time, stall, (interval, lag) = plan.own.times, plan.own.stall, plan.own.setting
    forward, ms = plan.forward_s() * plan.speeds["micro-batches"], {name: 1e3 * s for name, s in time.items()}
    yield (f"\nstep       {ms['step_s']:.1f} ms with S = {interval}, lag {lag}: forward {1e3 * forward:.1f}, "
           f"backward {ms['compute_s'] - 1e3 * forward:.1f}, waiting {stall * ms['step_s']:.1f} ({100 * stall:.1f} %)")
    yield (f"           beside it: sums over ranks {ms['reduce_s']:.1f}, down {ms['down_s']:.1f}, replay {ms['replay_s']:.1f}, "
           f"up {ms['up_s']:.1f}, values to ranks {ms['gather_s']:.1f} ms")
    if time["own_s"] > 0:
        yield f"           and on the device the plugin's own passes, {ms['own_s']:.1f} ms"
    yield "\n  S  lag   host GiB   step ms   waiting   step without / with"
    for row in plan.rows:
        interval, lag = row.setting
        yield (f"{interval:3}  {lag:3}  {gib(row.bytes['host_nbytes']):9.3f}  {1e3 * row.times['step_s']:8.1f}  "
               f"{100 * row.stall:6.1f} %   {row.times['compute_s'] / row.times['step_s']:.2f}")


def choice_of(plan):
    row, exact_mib, options = plan.choose(), plan.exact_state_mib(), plan.options
    if not row:
        yield (f"\n# no window of at most {LONGEST_CHOSEN} steps fits that machine's memory: [device] state_mib = all keeps the "
               "state on the device")
        return
    none = ": none does, this one is the quickest" if row.stall > MAX_STALL else ""
    yield f"\n# the least late setting that waits for less than {100 * MAX_STALL:.0f} % of a step{none}"
    interval, lag = row.setting
    yield "[zenflow]\n" + ("mode = exact" if row.setting == (1, 0) else
                           f"mode = windows\nupdate_interval = {interval}\npublish_lag = {lag}")
    if exact_mib:
        share = exact_mib * 2**20 / (plan.state_nbytes * plan.owned_elems())
        whose = " of each rank" if options.ranks > 1 else ""
        yield (f"\n# mode = exact waits no longer than that from [device] state_mib = {exact_mib} on: {100 * share:.1f} % of the "
               f"state{whose}")
    if options.ranks > 1:
        yield (f"\n[shard]\nstage = {plan.stage}\n\n[host]\n; local_rank = R/{options.local_ranks} where the launcher does not say "
               "it: R counts from 0")


def text_of(plan):
    yield from head(plan)
    yield from bytes_of(plan)
    yield from balance(plan)
    if plan.has_windows:
        yield from speeds_of(plan)
        yield from rows_of(plan)
        yield from choice_of(plan)
    else:
        yield "\ntimes are simulated for mode = exact and windows, with state on the host"


def as_json(plan):
    ranks = plan.of_ranks if plan.options.ranks > 1 else [dict.fromkeys(plan.bytes, 0)]
    choice = plan.choose()
    names = ("n_elems", "n_owned_elems", "host_nbytes", "host_state_nbytes", "host_slots_nbytes", "host_publish_nbytes",
             "host_exchange_nbytes", "host_early_nbytes", "does_fit", "device_nbytes", "staging_nbytes", "sums_nbytes")
    return {"tensors": len(plan.model.tensors), "ranks": plan.options.ranks, "buckets": plan.bytes["n_buckets"],
            **{name: plan.bytes[name] for name in names}, "weights_nbytes": plan.model.nbytes,
            "checkpoint_nbytes": disk_nbytes(plan),
            "owned_of_ranks": [end(of["n_owned_elems"] for of in ranks) for end in (min, max)],
            "closes_of_ranks": [min(of["least_close_elems"] for of in ranks), max(of["most_close_elems"] for of in ranks)],
            "exact_state_mib": plan.exact_state_mib(), "configured": plan.own.as_json() if plan.has_windows else None,
            "choices": [row.as_json() for row in plan.rows], "recommended": choice and choice.as_json()}


@command()
def main():
    plan = Plan(read_options())
    if plan.options.json:
        print(json.dumps(as_json(plan), indent=2))
    else:
        for line in text_of(plan):
            print("\n".join(map(printable, line.split("\n"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
