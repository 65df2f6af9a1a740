# SPDX-License-Identifier: Apache-2.0
"""zf plan [MODEL]: what fits a machine and with which setting, bytes on host, device and disk, the timeline of a step, a configuration.

Bytes of the plugin are its own (plan_bytes.c). Beside them a card holds weights, gradients and activations, which are estimated
(`Plan.card`). Times are a simulation (timeline.py) of speeds that are given, measured by `zf doctor --json`, or assumed; the output says which.

Work of training: 2 operations per parameter that a token passes forward, twice that backward, once more forward where activations are
recomputed; attention adds 4 x layers x hidden x sequence per token to each forward (PaLM, appendix B, arXiv 2204.02311).
Memory traffic of a window of S steps: w and the moments read and written, S slots read, the values written.

Called by `zf plan` with that program's path in ZF_COMMAND. Python's own library is enough, but for models that models.py has from transformers.
"""
import functools
import json
import math
import sys
from dataclasses import dataclass, field, replace

import muon
import plan_text
import timeline
from models import EXPERT, SHAPES, WIDTH, read_model, read_shape
from terminal import Asked, Failed, Parser, Progress, command, number, printable, read_file

PLUGIN = Asked("ask", "plan")
GIB, MIB = 1 << 30, 1 << 20
INTERVALS = (1, 2, 3, 4, 8)
LONGEST_CHOSEN = 4  # longer windows are for those who measured what they lose
MAX_STALL = 0.03
MUCH_QUICKER = 1.05  # what is less decides nothing between ways
LEAST_ASKED, MOST_WORK = 8, 1 << 24  # ranks; ranks that are asked x ranks x tensors: a few seconds
MOST_BUCKETS = 256  # that are simulated
OF_CARD, OF_HOST = 1 * GIB, 4 * GIB  # for CUDA's context and fragments; for the system and the trainer's own
FREE_SHARE = 0.25  # of the host's memory, which room for early replays leaves
# per element into and out of a matrix (bytes / 2 of its type); per logit: itself, its copy in fp32, that one's gradient
KEPT_NBYTES, LOGIT_NBYTES = 1.25, 10
# bytes of a parameter with each: its master and moments in host memory, and on a card; one is tried where none before it fits
MOMENTS = {"float32": (12, 12), "bfloat16_stochastic": (8, 8), "int8_bfloat16": (7.03, 12), "int8": (6.06, 12)}
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
    "own": ("ns per parameter and step of the plugin's own passes", 0, 0, 1e9),
}


def read_options():
    parser = Parser("plan", "[MODEL] [OPTIONS]")
    parser.add_argument("model", metavar="MODEL", nargs="?")
    parser.add_argument("--config")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--stage", dest="overrides", action="append", type="shard.stage={}".format)
    parser.add_argument("--rule", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=tuple(WIDTH))
    parser.add_argument("--ranks", type=number(1, 65536), default=1)
    parser.add_argument("--local-ranks", type=number(1, 4096), default=8)
    parser.add_argument("--expert-parallel", type=number(1, 65536), default=1)
    parser.add_argument("--machine")
    for name in ("gpu", "ram", "activations"):
        parser.add_argument(f"--{name}", type=number(1e-3, 1e6))
    for name in ("no-fetch", "recompute", "json"):
        parser.add_argument(f"--{name}", action="store_true")
    for name, (_, _, least, most) in NUMBERS.items():
        parser.add_argument(f"--{name}", dest=name, type=number(least, most))
    options = parser.parse_args()
    if not options.model:
        if not options.gpu or not options.ram:
            parser.error("MODEL is missing; without one --gpu GIB and --ram GIB say which of some models is the largest that fits")
    options.local_ranks = min(options.local_ranks, options.ranks)
    if options.ranks % options.expert_parallel:
        parser.error(f"--expert-parallel {options.expert_parallel}: need a divisor of --ranks {options.ranks}")
    return options


# ---- the machine ----------------------------------------------------------------------------------------------------


class Machine:
    """The measurements of `zf doctor --json`; nothing of it where there is no file."""

    def __init__(self, path):
        self.path, self.windows, self.spread = path, {}, 0
        self.available_nbytes = self.card_nbytes = self.own_ns = self.own_spread = self.link = 0
        self.is_integrated = False
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
            self.card_nbytes, self.is_integrated = float(device.get("memory_nbytes") or 0), bool(device.get("is_integrated"))
            self.link = float(device.get("link", {}).get("both_gb_per_s", 0)) / 2


def spread_of(row, key):
    """The most by the least; 0: an older file."""
    least, most = float(row.get(f"least_{key}", 0)), float(row.get(f"most_{key}", 0))
    return most / least if 0 < least <= most else 0


# ---- buckets --------------------------------------------------------------------------------------------------------


def cut_buckets(sizes, n):
    """Cuts a model into n stretches, about equally long, in forward order; no tensor is cut."""
    out, bucket, left = [], 0, sum(sizes)
    for size in sizes:
        bucket += size
        if bucket * (n - len(out)) >= left:
            left -= bucket
            out.append(bucket)
            bucket = 0
    return out


# ---- the plan -------------------------------------------------------------------------------------------------------


def asked_ranks(n, most):
    """All of n, or the first ones, which get the rows that are left over first (plugin/plan/slice.h), and some up to the last."""
    n_asked = min(n, max(most, LEAST_ASKED))
    n_first = n_asked // 2
    n_more = n_asked - n_first
    return [*range(n_first), *(n_first + i * (n - 1 - n_first) // max(n_more - 1, 1) for i in range(n_more))]


@dataclass
class Row:
    """A setting, its bytes (members of zf_plan_t), its times, and the length and spans of a step (timeline.run)."""

    bytes: dict
    times: dict
    length: float
    spans: list

    @property
    def setting(self):
        return self.bytes["update_interval"], self.bytes["publish_lag"]

    @property
    def stall(self):
        """The share of a step that waits: what is beyond compute and the plugin's own passes."""
        return max(0, self.times["step_s"] - self.times["compute_s"] - self.times["own_s"]) / self.times["step_s"]

    def as_json(self):
        interval, lag = self.setting
        return {"update_interval": interval, "publish_lag": lag, "host_nbytes": self.bytes["host_nbytes"], **self.times}


@dataclass
class Way:
    """The places of weights, gradients and state, and the bytes that they take of a rank's card and host memory."""

    name: str  # kept, released, streamed, cpu or carried (plan_text.WAYS)
    moments: str
    fetches: bool
    state_mib: int = 0  # on the card
    carries: bool = False  # torch does, and the plugin is the CPU's
    plans: list = field(default_factory=list)  # zf_plan_t of the ranks that were asked
    most: int = 0  # of these, which needs most of the host's memory,
    slowest: int = 0  # and which waits longest for its replays
    card: dict = field(default_factory=dict)  # bytes there, by what they are
    beside_nbytes: float = 0  # in host memory: the trainer's own, and of the CPU as device the plugin's device side
    recomputes: bool = False
    n_micro_batches: int = 1
    does_fit: bool = False
    row: Row = None  # as it is configured

    @property
    def on_host(self):
        return self.name in ("streamed", "cpu")

    @property
    def is_cpus(self):
        """Whether the plugin computes in host memory."""
        return self.on_host or self.carries

    @property
    def sums_nbytes(self):
        """Of micro-batches that are added up where the gradients go."""
        return (self.bytes["staging_nbytes"] + self.bytes["sums_nbytes"]) * (self.name == "released" and self.n_micro_batches > 1)

    @property
    def bytes(self):
        """The most of any rank."""
        on_device = ("device_nbytes", "staging_nbytes", "sums_nbytes")
        return self.plans[self.most] | {name: max(of[name] for of in self.plans) for name in on_device}

    @property
    def state_nbytes(self):
        """Of a parameter, in host memory and on the card."""
        return MOMENTS.get(self.moments, (8, 8))

    @property
    def card_nbytes(self):
        return sum(self.card.values())

    @property
    def least_nbytes(self):
        """On the host, without room for early replays."""
        return self.bytes["host_least_nbytes"] + self.beside_nbytes + self.sums_nbytes * self.carries

    def overrides(self):
        return [f"host.moments_dtype={self.moments}", *([f"device.state_mib={self.state_mib}"] if self.state_mib else [])]

    def as_json(self):
        return {"way": self.name, "carries": self.carries, "fetches": self.fetches, "moments_dtype": self.moments, "state_mib": self.state_mib, "recompute": self.recomputes,
                "micro_batches": self.n_micro_batches, "card_nbytes": self.card_nbytes, "card": self.card, "host_nbytes": self.least_nbytes,
                "does_fit": self.does_fit, "step_s": self.row and self.row.times["step_s"]}


class Plan:
    """For one model: the ways in which it may lie, the one that is taken, and that one's settings. Where neither the card nor the host's
    memory is known there is one way."""

    def __init__(self, options, model):
        self.options, self.machine, self.model = options, Machine(options.machine), model
        self.held = model.held(options.expert_parallel)  # what a rank has of it
        self.expert_ranks = options.ranks // options.expert_parallel * (options.expert_parallel > 1)  # that have the same
        self.text = read_file(options.config, 1 << 20).decode(errors="replace") if options.config else ""
        self.measured = self.take_measured()
        self.speeds = {name: getattr(options, name) for name in NUMBERS}
        self.speeds = {name: NUMBERS[name][1] if given is None else given for name, given in self.speeds.items()} | self.measured
        self.keys = self.ask_plugin([], options.device == "cpu", not options.no_fetch)
        self.take_keys()
        self.take_limits()
        self.can_carry = options.device == "cuda" and options.ranks == 1 and self.has_limits \
            and (self.keys["zenflow.mode"], self.keys["device.state_mib"]) == ("exact", "0")
        self.ranks = asked_ranks(options.ranks, MOST_WORK // (options.ranks * len(self.held.tensors)))
        names = ("cpu",) if options.device == "cpu" else ("carried",) if options.rule == "muon" else ("kept", "released", "streamed") if self.has_limits and options.ranks == 1 else ("kept",)
        own = self.keys["host.moments_dtype"]
        self.ways = []
        moments = MOMENTS if own == "float32" and self.has_limits else (own,)
        fetches = (False,) if options.no_fetch else (True, False) if len(names) > 1 and not self.can_carry else (True,)  # what carries is as large
        for dtype, does_fetch in ((dtype, does_fetch) for dtype in moments for does_fetch in fetches):
            self.ways += [self.find_way(name, dtype, does_fetch) for name in (names if does_fetch == fetches[0] else names[:2])]
            if any(way.does_fit for way in self.ways):
                break
        self.taken = self.take_way()
        self.bytes, self.of_ranks = self.taken.bytes, self.taken.plans

    def take_measured(self):
        """{option: what the machine's file says in its place}"""
        options, machine, out = self.options, self.machine, {}
        if options.device == "cpu" and options.own is None and 0 < machine.own_ns < 1e9:
            out["own"] = machine.own_ns
        if options.device == "cuda" and options.link is None and 1e-3 < machine.link < 1e6:
            out["link"] = machine.link
        return out

    def take_keys(self):
        keys, n_ranks, n_local = self.keys, self.options.ranks, self.options.local_ranks
        # some state on the host, of rules that are simulated: there is a timeline
        self.has_windows = keys["zenflow.mode"] != "mean" and keys["device.state_mib"] != "all" and self.options.rule == "adamw"
        self.stage = int(keys["shard.stage"])
        self.is_sharded = self.stage > 0 and n_ranks > 1
        in_two_levels = keys["shard.transport"].endswith("_two_level") and n_local < n_ranks
        if in_two_levels and n_ranks % n_local:
            raise Failed(f"[shard] transport = {keys['shard.transport']}: {n_ranks} ranks are no machines of {n_local} (--local-ranks)")
        self.n_machines = n_ranks // n_local if in_two_levels else n_ranks
        self.copies_what_travels = n_ranks > 1 and self.options.device == "cuda" and keys["shard.transport"].startswith("host")

    def take_limits(self):
        """For a rank: the memory of its card, and the memory of the host that is for it, or as the configuration says for the plugin alone."""
        options, machine = self.options, self.machine
        self.limit_nbytes = int(self.keys["host.memory_limit_mib"]) * MIB
        host = max(options.ram * GIB - OF_HOST, 1) if options.ram else machine.available_nbytes
        self.room_nbytes = self.limit_nbytes or host / options.local_ranks or math.inf
        card = options.gpu * GIB if options.gpu else machine.card_nbytes
        self.card_nbytes = max(card - OF_CARD, 1) if card and options.device == "cuda" else math.inf
        self.has_limits = min(self.room_nbytes, self.card_nbytes) < math.inf

    def ask(self, asks, way):
        """A zf_plan_t or {error} of each (rank, overrides), without room for early replays."""
        return self.ask_plugin([(rank, [*overrides, "host.memory_limit_mib=1"]) for rank, overrides in asks], way.is_cpus, way.fetches, way.carries)

    def with_room(self, plans, asks, way, room_nbytes):
        """These plans with that room (host_early_nbytes) as bind_params makes it of room_nbytes of host memory (plugin/instance/memory.c);
        host_least_nbytes is without."""
        wanted = []
        for plan, (rank, overrides) in zip(plans, asks):
            if room_nbytes < math.inf and not self.limit_nbytes:
                beside = plan["host_exchange_nbytes"] + way.is_cpus * sum(plan[name] for name in ("device_nbytes", "staging_nbytes", "sums_nbytes"))
                free = FREE_SHARE if self.keys["host.early_mib"] == "auto" else 0
                limit = (room_nbytes - beside) * (1 - free) + beside
                overrides = [*overrides, f"host.memory_limit_mib={max(int(limit / MIB), 1)}"]
            wanted.append((rank, overrides))
        found = self.ask_plugin(wanted, way.is_cpus, way.fetches, way.carries) if wanted else []
        return [{**plan, **more, "host_least_nbytes": plan["host_nbytes"], "host_early_nbytes": more["host_nbytes"] - plan["host_nbytes"]}
                for plan, more in zip(plans, found)]

    def ask_plugin(self, asks, is_cpu, fetches, carries=False):
        """A zf_plan_t or {error} of each (rank, overrides); of none the keys of the configuration."""
        options, tensors, space = self.options, [], 0
        for (*what, shape), n_elems in zip(self.held.tensors, self.held.sizes):
            tensors.append([*what, int(self.expert_ranks > 0 and bool(EXPERT.search(what[0]))), int(self.options.rule == "muon" and muon.is_whole(what[0], what[3], shape)), shape, space])
            space += (n_elems * WIDTH[what[1]] // 64 + 1) * 64
        return json.loads(PLUGIN(json.dumps({
            "config": self.text, "overrides": options.overrides, "fetches": fetches, "space": space, "is_cpu": is_cpu, "carries": carries,
            "n_ranks": options.ranks, "expert_ranks": self.expert_ranks, "tensors": tensors,
            "asks": [{"rank": rank, "overrides": overrides} for rank, overrides in asks]})))

    # ---- what fits

    def find_way(self, name, moments, fetches):
        """With state on the card where the host is too small for it and the card is not."""
        way = self.measure(Way(name, moments, fetches, carries=name == "carried" or self.can_carry and not name == "streamed"))
        if not way.does_fit and not way.on_host and way.card_nbytes <= self.card_nbytes < math.inf and self.keys["device.state_mib"] == "0":
            free_mib = int((self.card_nbytes - min(sum(self.card(way, *of).values()) for of in self.ways_to_compute())) / MIB) - 1
            more = self.measure(Way(name, moments, fetches, free_mib)) if free_mib > 0 else way
            way = more if more.does_fit else way
        return way

    def measure(self, way):
        """Fills in what it takes, with the quickest way to compute for which the card has room."""
        way.beside_nbytes = (2 * way.on_host + way.carries) * self.held.nbytes * (not self.limit_nbytes and self.has_limits)
        asks = [(rank, way.overrides()) for rank in self.ranks]
        way.plans = self.ask(asks, way)
        for plan in way.plans:
            if "error" in plan:
                raise Failed(plan["error"])
        way.most, way.slowest = (max(range(len(asks)), key=lambda i, of=of: way.plans[i][of]) for of in ("host_nbytes", "most_close_elems"))
        both = [*dict.fromkeys((way.most, way.slowest))]
        for i, plan in zip(both, self.with_room([way.plans[i] for i in both], [asks[i] for i in both], way, self.room_nbytes - way.beside_nbytes)):
            way.plans[i] = plan
        way.beside_nbytes += max(plan["device_nbytes"] for plan in way.plans) * way.is_cpus

        def worth(of):
            way.recomputes, way.n_micro_batches = of
            lacks = max(sum(self.card(way, *of).values()) - self.card_nbytes, 0) + max(way.least_nbytes - self.room_nbytes, 0) * way.carries
            return lacks, sum(self.compute_s(way.name, *of)), of
        way.recomputes, way.n_micro_batches = min(self.ways_to_compute(), key=worth)
        way.card = self.card(way, way.recomputes, way.n_micro_batches)
        way.does_fit = way.card_nbytes <= self.card_nbytes and way.least_nbytes <= self.room_nbytes
        return way

    def ways_to_compute(self):
        """(whether activations are computed again, micro-batches of a step): as asked for, or what makes a step fit a card."""
        options, speeds, is_free = self.options, self.speeds, self.card_nbytes < math.inf
        counts = [int(speeds["micro-batches"])]
        while is_free and getattr(options, "micro-batches") is None and counts[-1] * 2 * max(speeds["sequence"], 1) <= speeds["tokens"]:
            counts.append(counts[-1] * 2)
        return [(again, n) for again in ((False, True) if is_free and not options.recompute else (options.recompute,)) for n in counts]

    def card(self, way, recomputes, n_micro_batches):
        """Bytes on the card by what they are. Of weights in host memory the card has two layers, another one's gradient, and what is outside
        of layers; gradients that are given back are two at a time, and of several micro-batches the plugin adds them up, in fp32."""
        model, nbytes = self.held, self.held.nbytes
        if way.name == "cpu":
            return {}
        weights = 0 if self.stage == 3 and self.is_sharded else nbytes
        gradients = nbytes
        if way.name == "streamed":
            layer, outside = model.layer_nbytes()
            weights, gradients = 2 * layer + outside, layer + outside
        elif way.name == "released":
            gradients = 2 * model.largest_nbytes()
        plugin = 0 if way.is_cpus else way.bytes["device_nbytes"]
        if way.name == "carried":  # what is iterated, its product with itself, and what comes of it
            plugin = 3 * 2 * min(max(self.held.sizes), muon.MOST_ITERATED)
        in_parts = way.name == "released" and n_micro_batches > 1 and not way.carries
        plugin += way.bytes["staging_nbytes"] * (self.options.ranks > 1 and not way.is_cpus or in_parts) + way.bytes["sums_nbytes"] * in_parts
        return {"weights": weights, "gradients": gradients, "activations": self.activations(recomputes, n_micro_batches), "plugin": plugin}

    def activations(self, recomputes, n_micro_batches):
        """Each matrix keeps what goes in and comes out, of each token, but no attention matrix; computed again, each layer what goes in, and one
        of them all of it. Logits are kept with their copy in fp32."""
        model, options = self.model, self.options
        if options.activations:
            return options.activations * GIB
        width, n_layers = model.nbytes / model.n_elems, max(model.n_layers, 1)
        kept = KEPT_NBYTES * width * model.n_passed
        if recomputes:
            kept = kept / n_layers + width * model.hidden * n_layers
        return self.speeds["tokens"] / n_micro_batches * (kept + LOGIT_NBYTES * model.n_logits)

    def take_way(self):
        """Of those that fit the first that is about as quick as any; else the first of all."""
        fitting = [way for way in self.ways if way.does_fit]
        for way in fitting or self.ways[:1]:
            if self.has_windows:
                way.row = Row(way.plans[way.slowest], *self.times(way, way.plans[way.slowest]))
        steps = [way.row.times["step_s"] if way.row else 0 for way in fitting]
        return next((way for way, step_s in zip(fitting, steps) if step_s <= MUCH_QUICKER * min(steps)), self.ways[0])

    @property
    def does_fit(self):
        return self.taken.does_fit

    def disk_nbytes(self):
        """Masters and both moments of all ranks, in fp32 however they lie in memory."""
        return 12 * self.model.n_elems

    @functools.cached_property
    def rows(self):
        """The settings of the way that is taken, but for those that are refused."""
        if not self.has_windows:
            return []
        way, out = self.taken, []
        rank, room_nbytes = self.ranks[way.slowest], self.room_nbytes - 2 * self.held.nbytes * way.on_host
        settings = [[f"zenflow.mode={'exact' if (interval, lag) == (1, 0) else 'windows'}", f"zenflow.update_interval={interval}", f"zenflow.publish_lag={lag}"]
                    for lag in (0, 1) for interval in INTERVALS]
        asks = [(rank, way.overrides() + overrides) for overrides in settings]
        for of, some in ((way, asks[:1]), (replace(way, carries=False), asks[1:])):  # windows are the plugin's own way
            found = [(plan, ask) for plan, ask in zip(self.ask(some, of), some) if "error" not in plan]
            out += self.with_room([plan for plan, _ in found], [ask for _, ask in found], of, room_nbytes)
        return [Row(plan, *self.times(way, plan)) for plan in out]

    # ---- times

    def replay_speed(self, interval, grad_nbytes):
        """Elements x steps per second of a rank's workers; between two measured windows by the bytes per second of the shorter."""
        def traffic_nbytes(interval, grad_nbytes):
            return 24 + grad_nbytes * interval + grad_nbytes
        shorter = max((measured for measured in self.machine.windows if measured <= interval), default=0)
        nbytes_per_s = self.speeds["host"] * 1e9
        if shorter:
            nbytes_per_s = self.machine.windows[shorter] / shorter * traffic_nbytes(shorter, 2)
        return nbytes_per_s / traffic_nbytes(interval, grad_nbytes) * interval / self.options.local_ranks

    def forward_s(self, n_micro_batches):
        """The seconds of a micro-batch, where its weights are there."""
        speeds, model = self.speeds, self.model
        per_token = 2 * model.n_active + 4 * model.attended * speeds["sequence"]
        return speeds["tokens"] / n_micro_batches * per_token / (speeds["tflops"] * 1e12 * speeds["efficiency"])

    def compute_s(self, name, recomputes, n_micro_batches):
        """Forward and backward of a step. Weights in host memory come twice, and gradients go the other way meanwhile."""
        forward = self.forward_s(n_micro_batches)
        streamed = self.model.nbytes / (self.speeds["link"] * 1e9) if name == "streamed" else 0
        return n_micro_batches * max(forward, streamed), n_micro_batches * max(forward * (3 if recomputes else 2), streamed)

    def plain_s(self):
        """The seconds of a step without offload, on a card that has room for everything."""
        n = self.taken.n_micro_batches
        return n * self.forward_s(n) * (4 if self.options.recompute else 3)

    def owned_elems(self, way):
        """Parameters whose state the busiest rank keeps."""
        return max(plan["n_owned_elems"] for plan in way.plans)

    def travelling(self):
        """The share of all gradients and values that goes to other ranks, since experts go to those alone that have the same."""
        n_ranks, n_same = self.options.ranks, self.expert_ranks
        n_elems = sum(n for (name, *_), n in zip(self.held.tensors, self.held.sizes) if n_same and EXPERT.search(name))
        return 1 - n_elems / self.held.n_elems * (1 - (1 - 1 / n_same) / (1 - 1 / n_ranks)) if n_elems else 1

    def times(self, way, plan, resident_elems=None):
        options, speeds, n = self.options, self.speeds, self.held.n_elems
        is_sharded, own, (host_nbytes, card_nbytes) = self.is_sharded, self.owned_elems(way), way.state_nbytes
        shards_params = is_sharded and self.stage == 3
        if resident_elems is None:
            mib = way.state_mib or self.keys["device.state_mib"]
            resident_elems = (float(mib) if str(mib).isdigit() else 0) * MIB / card_nbytes  # auto: what nobody knows here
        forward, backward = self.compute_s(way.name, way.recomputes, way.n_micro_batches)
        elem_nbytes = self.held.nbytes / n
        return timeline.run(timeline.Job(
            # of one rank, without an exchange, gradients and values travel in much smaller pieces
            buckets=tuple(cut_buckets(self.held.sizes, plan["n_buckets"] or MOST_BUCKETS)),
            forward_s=forward / way.n_micro_batches,
            backward_s=backward / way.n_micro_batches,
            n_micro_batches=way.n_micro_batches,
            update_interval=plan["update_interval"],
            publish_lag=plan["publish_lag"],
            fetches=way.fetches and not shards_params and way.name != "streamed",  # FSDP gathers before any hook of a module
            n_ranks=options.ranks,
            travelling=self.travelling(),
            is_sharded=is_sharded,
            shards_params=shards_params,
            owned_share=own / n,
            elem_nbytes=elem_nbytes,
            reduce_factor=(1 if shards_params else 1 + plan["n_selected_elems"] / n) if is_sharded else 2,
            link=math.inf if way.name == "streamed" else speeds["link"] * 1e9,
            net=speeds["net"] * 1e9,
            n_machines=self.n_machines,
            inside=speeds["inside"] * 1e9,
            net_latency_s=speeds["latency"] * 1e-6,
            replay=self.replay_speed(plan["update_interval"], elem_nbytes),
            spare_elems=plan["host_early_nbytes"] / host_nbytes * plan["update_interval"],  # each closes a part of its parameters
            resident_elems=resident_elems,
            most_close=plan["most_close_elems"] / own if is_sharded else 0,
            own_s=speeds["own"] * 1e-9 * n))

    def fits(self, row):
        """The way that is taken, with this setting: of the device's bytes, which are in the host's memory where the parameters are."""
        way, more = self.taken, row.bytes["device_nbytes"] - self.taken.bytes["device_nbytes"]
        if way.carries:
            is_own = row.setting != (1, 0)  # windows are the plugin's own way
            return way.does_fit and not is_own or is_own and (row.bytes["host_least_nbytes"] <= self.room_nbytes
                                                              and way.card_nbytes + row.bytes["device_nbytes"] <= self.card_nbytes)
        return (row.bytes["host_least_nbytes"] + way.beside_nbytes + more * way.on_host <= self.room_nbytes
                and way.card_nbytes + more * (not way.on_host) <= self.card_nbytes)

    def choose(self):
        """The least late of the rows that costs at most MAX_STALL of a step: lag 0 before lag 1, then small S; where none does,
        the quickest. What takes more than the machine has is not chosen. None: nothing is left."""
        rows = [row for row in self.rows if row.setting[0] <= LONGEST_CHOSEN and self.fits(row)]
        quickest = min(rows, key=lambda row: row.times["step_s"], default=None)
        return next((row for row in rows if row.stall <= MAX_STALL), quickest) if self.does_fit else None

    def exact_state_mib(self):
        """The least state on a rank's device with which the exact setting waits for at most MAX_STALL of a step; 0: it does without,
        all of it would not do, the card has no room for it, or nobody can say."""
        exact, way = next((row for row in self.rows if row.setting == (1, 0)), None), self.taken
        if way.on_host or not exact or exact.stall <= MAX_STALL:
            return 0
        own, free = self.owned_elems(way), self.card_nbytes - way.card_nbytes

        def waits_little(share):
            return Row(exact.bytes, *self.times(way, exact.bytes, share * own)).stall <= MAX_STALL
        if not waits_little(1):
            return 0
        least, most = 0, 1
        for _ in range(12):
            share = (least + most) / 2
            if waits_little(share):
                most = share
            else:
                least = share
        nbytes = most * own * way.state_nbytes[1]
        return math.ceil(nbytes / MIB) if nbytes <= free else 0


def as_json(plan):
    ranks = plan.of_ranks if plan.options.ranks > 1 else [dict.fromkeys(plan.bytes, 0)]
    choice = plan.choose()
    names = ("n_elems", "n_owned_elems", "host_nbytes", "host_least_nbytes", "host_state_nbytes", "host_slots_nbytes", "host_publish_nbytes",
             "host_exchange_nbytes", "host_early_nbytes", "device_nbytes", "staging_nbytes", "sums_nbytes")
    return {"tensors": len(plan.model.tensors), "ranks": plan.options.ranks, "buckets": plan.bytes["n_buckets"], "does_fit": plan.does_fit,
            **{name: plan.bytes[name] for name in names}, "weights_nbytes": plan.model.nbytes, "n_active_elems": plan.model.n_active,
            "checkpoint_nbytes": plan.disk_nbytes(), "card_room_nbytes": plan.card_nbytes if plan.card_nbytes < math.inf else None,
            "room_nbytes": plan.room_nbytes if plan.room_nbytes < math.inf else None,
            "owned_of_ranks": [end(of["n_owned_elems"] for of in ranks) for end in (min, max)],
            "closes_of_ranks": [min(of["least_close_elems"] for of in ranks), max(of["most_close_elems"] for of in ranks)],
            "carried": muon.carried(plan.held) if plan.options.rule == "muon" else None, "exact_state_mib": plan.exact_state_mib(),
            "configured": plan.taken.row and plan.taken.row.as_json(),
            "ways": [way.as_json() for way in plan.ways], "taken": plan.taken.as_json(), "plain_s": plan.plain_s(),
            "choices": [row.as_json() | {"does_fit": plan.fits(row)} for row in plan.rows], "recommended": choice and choice.as_json()}


def make(options):
    """Plans of the model, or without one of some shapes up to the largest that fits; and what is said of them."""
    if options.model:
        with Progress(f"planning {options.model}"):
            plan = Plan(options, read_model(options.model, options.dtype))
        return [plan], as_json(plan) if options.json else plan_text.of_one(plan, NUMBERS, MAX_STALL)
    plans = []
    for name in SHAPES:
        with Progress(f"planning {name}"):
            plans.append(Plan(options, read_shape(name, options.dtype)))
        if plans[-1].does_fit:
            break
    return plans, [as_json(plan) for plan in plans] if options.json else plan_text.of_several(plans, NUMBERS, MAX_STALL)


@command()
def main():
    options = read_options()
    plans, out = make(options)
    if options.json:
        print(json.dumps(out, indent=2))
    else:
        for line in out:
            print("\n".join(map(printable, line.split("\n"))))
    return 0 if plans[-1].does_fit else 1


if __name__ == "__main__":
    sys.exit(main())
