# SPDX-License-Identifier: Apache-2.0
"""The words of `zf plan` on plans (plan.py), line by line."""
import math

import muon
from machine import ONE_MEMORY
from models import EXPERT, WIDTH

MANY_COLUMNS = 64  # more than a kernel's side
MUCH_SPREAD = 1.25  # what is less is said by `zf doctor` alone
WAYS = {  # where weights and gradients lie
    "kept": "weights and gradients on the card", "released": "weights on the card, gradients given back",
    "streamed": "weights and gradients in host memory", "cpu": "weights and gradients in host memory",
    "carried": "weights and gradients on the card, torch carries",
}
N_DRAWN = 60  # parts of a step
DRAWN = {"forward": "forward_s", "backward": "backward_s", "the plugin's own": "own_s", "sums over ranks": "reduce_s", "gradients down": "down_s",
         "updates": "replay_s", "values up": "up_s", "values to ranks": "gather_s"}
COLUMNS = " card GiB   host GiB    step ms  speed   !: more than there is; speed: of a step without offload on a card with room for it"


def gib(nbytes):
    return nbytes / 2**30


def count(n):
    unit, name = next(((unit, name) for unit, name in ((1e9, " G"), (1e6, " M")) if n >= unit), (0, ""))
    return f"{n / unit:.4g}{name}" if unit else str(n)


def example(shape, n_batch):
    return "|".join("x".join(map(str, part)) for part in (shape[:n_batch], shape[n_batch:]) if part)


# ---- the model ------------------------------------------------------------------------------------------------------


def head(plan):
    options, model = plan.options, plan.model
    dtypes = " and ".join(name for name in WIDTH if any(tensor[1] == name for tensor in model.tensors))
    source = ("(--dtype)" if options.dtype else f'(its "{model.dtype_said}")' if model.dtype_said else
              "(assumed where it says none)" if model.n_assumed else "(of its tensors)")
    left_out = f"; {model.n_not_trained} that are not trained left out" if model.n_not_trained else ""
    yield (f"model      {model.path}: {len(model.tensors)} tensors, {count(model.n_elems)} parameters, {gib(model.nbytes):.2f} GiB: "
           f"{dtypes} {source}{left_out}")
    if model.n_active < model.n_elems:
        yield f"           each token passes {count(model.n_active)} of them: {model.experts_per_token} experts of a layer"
    elif any(EXPERT.search(name) for name, *_ in model.tensors):
        yield "           each token counts as passing all experts: no config.json beside it says how many it does"
    if plan.expert_ranks:
        yield (f"           a rank has {model.n_experts // options.expert_parallel} of {model.n_experts} experts of a layer, {count(plan.held.n_elems)} parameters; "
               f"{plan.expert_ranks} rank{'s'[:plan.expert_ranks > 1]} have the same. Tokens on their way to experts are not simulated")
    experts = [tensor for tensor in model.tensors if tensor[3] and EXPERT.search(tensor[0])]
    if experts:
        yield (f"           {len(experts)} tensors such as {example(experts[0][4], 1)} are a matrix for each expert: in PyTorch "
               'n_batch_axes=lambda name, p: p.ndim == 3 and "experts" in name says so')
    stacked = [shape for *_, n_batch, shape in model.tensors if len(shape) - n_batch > 2 and min(shape[-2:]) >= MANY_COLUMNS]
    if stacked:  # kernels of convolutions are smaller
        yield (f"           {len(stacked)} tensors such as {example(stacked[0], 0)} are one matrix each; a list of shapes says where they are "
               f"several: {example(stacked[0], 1)}")
    yield (f"job        {options.ranks} rank{'s'[:options.ranks > 1]}, {options.local_ranks} on a machine, stage {plan.stage}, "
           f"{options.device.upper()}; the trainer {'does not fetch' if options.no_fetch else 'fetches'}")


# ---- what fits ------------------------------------------------------------------------------------------------------


def setting(way):
    """In words."""
    also = [WAYS[way.name], "torch carries" if way.carries and way.name != "carried" else "", f"{way.state_mib} MiB of state on the card" if way.state_mib else "",
            "activations computed again" if way.recomputes else "", f"{way.n_micro_batches} micro-batches" if way.n_micro_batches > 1 else ""]
    return f"{way.moments.removesuffix('_stochastic')} moments, {'' if way.fetches or way.on_host else 'no fetching, '}" + ", ".join(filter(None, also))


def way_line(plan, way):
    """Its needs, with a mark where the machine has less, and how long a step takes where it fits."""
    card, host = (f"{gib(need):9.2f}{'!' if need > have else ' '}" for need, have in
                  ((way.card_nbytes, plan.card_nbytes), (way.least_nbytes, plan.room_nbytes)))
    times = f"{1e3 * way.row.times['step_s']:9.1f}  {plan.plain_s() / way.row.times['step_s']:5.2f}" if way.does_fit and way.row else f"{'-':>9}  {'-':>5}"
    return f"{card}  {host} {times}   {setting(way)}"


def lacks(plan, way):
    """Bytes on the card and on the host that are not there."""
    return max(way.card_nbytes - plan.card_nbytes, 0), max(way.least_nbytes - plan.room_nbytes, 0)


def nearest(plan):
    return min(plan.ways, key=lambda way: sum(lacks(plan, way)))


def lacking(plan):
    way = nearest(plan)
    parts = [f"{name} need {gib(need):.2f} GiB, have {gib(have):.2f}" for name, need, have, lack in (
        ("card:", way.card_nbytes, plan.card_nbytes, lacks(plan, way)[0]),
        ("host memory:", way.least_nbytes, plan.room_nbytes, lacks(plan, way)[1])) if lack]
    copies = way.bytes["host_exchange_nbytes"] if lacks(plan, way)[1] and plan.copies_what_travels else 0
    if copies:
        parts.append(f"of it {gib(copies):.2f} are copies of what ranks exchange, and [shard] transport = nccl needs none")
    return f"nothing fits; least is missing with {setting(way)}: {'; '.join(parts)}"


def machine_line(plan):
    options, machine = plan.options, plan.machine
    host = ("[host] memory_limit_mib" if plan.limit_nbytes else "--ram, less 4 for the system and the trainer" if options.ram else f"available, {machine.path}")
    parts = [f"card {gib(plan.card_nbytes):.2f} GiB beside CUDA's own" if plan.card_nbytes < math.inf else "",
             f"host memory {gib(plan.room_nbytes):.2f} GiB for a rank ({host})" if plan.room_nbytes < math.inf else ""]
    return f"machine    {', '.join(filter(None, parts))}"


def ways_of(plan):
    if not plan.has_limits:
        return
    yield "\n" + machine_line(plan)
    yield COLUMNS
    for way in plan.ways:
        yield way_line(plan, way)
    yield ("taken: " + setting(plan.taken)) if plan.does_fit else lacking(plan)


# ---- bytes ----------------------------------------------------------------------------------------------------------


def bytes_of(plan):
    b, options, way = plan.bytes, plan.options, plan.taken
    host, owned = b["host_nbytes"], max(b["n_owned_elems"], 1)
    parts = [b[f"host_{name}_nbytes"] for name in ("state", "slots", "publish", "exchange", "early")]
    exchange = f"copies of what ranks exchange {gib(parts[3]):.3f}, " if parts[3] else ""
    yield (f"\nhost       {gib(b['host_least_nbytes']):9.3f} GiB per rank, {gib(b['host_least_nbytes']) * options.local_ranks:.3f} on a machine: "
           f"{b['host_least_nbytes'] / owned:.2f} bytes per parameter that the rank keeps")
    yield (f"           state {gib(parts[0]):.3f}, slots {gib(parts[1]):.3f} (S = {b['update_interval']}), "
           f"published values {gib(parts[2]):.3f}, {exchange}the rest {gib(host - sum(parts)):.3f} GiB")
    if parts[4]:
        yield f"           {gib(parts[4]):.3f} GiB more, {parts[4] / owned:.2f} bytes per parameter, are room for early replays: less where memory is short"
    if options.device == "cuda":
        if plan.machine.is_integrated:
            yield f"           {ONE_MEMORY}"
        yield "           all of it is page-locked when parameters are bound: tens of seconds for tens of GiB"
    if way.on_host:
        yield f"           {gib(way.beside_nbytes):.3f} GiB beside it: weights, gradients, what the plugin has on the device"
    elif way.carries:
        yield f"           {gib(way.beside_nbytes + way.sums_nbytes):.3f} GiB beside it: memory that carries gradients and values, what the plugin has on its own side"
    if plan.has_limits and not way.on_host:
        yield f"card       {gib(way.card_nbytes):9.3f} GiB: " + ", ".join(f"{name} {gib(nbytes):.3f}" for name, nbytes in way.card.items())
    more = ("where gradients are only lent, or strided" if options.ranks == 1 else
            "for what ranks exchange" + (", and the rank's part of the weights" if plan.stage == 3 else ""))
    yield (f"device     {gib(b['device_nbytes']):9.3f} GiB per rank of the plugin's; {gib(b['staging_nbytes']):.3f} more {more}; "
           f"{gib(b['sums_nbytes']):.3f} more where a step's gradient comes in parts"
           + ", which the card has not: accumulate micro-batches in the trainer" * (not way.is_cpus and plan.card_nbytes - way.card_nbytes < b["sums_nbytes"]))
    yield f"disk       {gib(plan.disk_nbytes()):9.3f} GiB for a checkpoint of all ranks"


def range_of(plan, least, most):
    """Over the ranks that were asked."""
    return f"{min(of[least] for of in plan.of_ranks) / 1e6:.4g} to {max(of[most] for of in plan.of_ranks) / 1e6:.4g} M"


def carried_of(plan):
    """The share of Muon, and what a step carries."""
    if plan.options.rule != "muon":
        return
    n = sum(size for (name, _, _, n_batch, shape), size in zip(plan.held.tensors, plan.held.sizes) if muon.is_whole(name, n_batch, shape))
    yield f"muon       {count(n)} parameters of hidden layers' matrices, with one moment; AdamW trains the rest"
    if plan.options.device == "cuda":
        found = muon.carried(plan.held)
        yield (f"link       {gib(found['down_nbytes']):9.3f} GiB down and {gib(found['up_nbytes']):.3f} up at a step, "
               f"in {found['copies']} copies and those of small tensors, which travel together")


def balance(plan):
    if plan.options.ranks == 1:
        return
    closes = range_of(plan, "least_close_elems", "most_close_elems")
    windows = f"; at a step, windows of {closes} of them close on a rank" if plan.has_windows else ""
    n_asked = len(plan.of_ranks)
    asked = f" (of {n_asked} ranks)" if n_asked < plan.options.ranks else ""
    yield f"work       ranks keep {range_of(plan, 'n_owned_elems', 'n_owned_elems')} parameters{windows}{asked}"


# ---- times ----------------------------------------------------------------------------------------------------------


def speeds_of(plan, numbers):
    machine = plan.machine
    yield "\ntimes are a simulation of"
    for name, (unit, *_) in numbers.items():
        value, replays = plan.speeds[name], name == "host" and machine.windows
        what, spread = "replays" if replays else f"{value:{'.3g' if name in plan.measured else 'g'}} {unit}", 0
        if name in plan.measured or replays:
            what += f", as measured in {machine.path}"
            spread = {"own": machine.own_spread, "host": machine.spread}.get(name, 0)
        elif name == "micro-batches" and plan.taken.n_micro_batches != value:
            what = f"{plan.taken.n_micro_batches} {unit} (taken)"
        elif getattr(plan.options, name) is None:
            what += " (assumed)"
        yield f"           {what}" + (f", which differed by a factor of {spread:.1f}: so may these times" if spread > MUCH_SPREAD else "")


def shares_of(spans, length, *names):
    """The share of each of a step's N_DRAWN parts in which something of these names is done."""
    out = [0.0] * N_DRAWN
    for what, begin, end in spans:
        first, last = begin * N_DRAWN / length, end * N_DRAWN / length
        for i in range(int(first), min(math.ceil(last), N_DRAWN)) if what in names else ():
            out[i] += min(last, i + 1) - max(first, i)
    return out


def timeline_of(row):
    """The step as lines, what takes no time left out."""
    (interval, lag), ms = row.setting, 1e3 * row.times["step_s"]
    on_device = shares_of(row.spans, row.length, "forward_s", "backward_s", "own_s")
    yield (f"\nstep       {ms:.1f} ms with S = {interval}, lag {lag}, waiting {row.stall * ms:.1f} ({100 * row.stall:.1f} %)\n"
           "           = busy, - less than half of the time, # busy while the step waits")
    for name, what in DRAWN.items():
        if row.times[what] > 0:
            drawn = "".join(" " if share < 0.02 else "-" if share < 0.5 else "#" if device < 0.5 else "="
                            for share, device in zip(shares_of(row.spans, row.length, what), on_device))
            yield f"{name:16}{1e3 * row.times[what]:9.1f} |{drawn}|"


def rows_of(plan):
    yield from timeline_of(plan.taken.row)
    yield "\n  S  lag   host GiB   step ms   waiting   step without / with"
    for row in plan.rows:
        interval, lag = row.setting
        yield (f"{interval:3}  {lag:3}  {gib(row.bytes['host_nbytes']):9.3f}  {1e3 * row.times['step_s']:8.1f}  "
               f"{100 * row.stall:6.1f} %   {plan.plain_s() / row.times['step_s']:.2f}" + "   does not fit" * (not plan.fits(row)))


def keys_of(plan, row):
    """The configuration of the way and setting that are taken, and what to say in PyTorch."""
    way, options, (interval, lag) = plan.taken, plan.options, row.setting
    yield "[zenflow]\n" + ("mode = exact" if row.setting == (1, 0) else
                           f"mode = windows\nupdate_interval = {interval}\npublish_lag = {lag}")
    if way.moments != "float32":
        yield f"\n[host]\nmoments_dtype = {way.moments}"
    if way.state_mib:
        yield f"\n[device]\nstate_mib = {way.state_mib}"
    if options.ranks > 1:
        yield f"\n[shard]\nstage = {plan.stage}"
    if way.name == "streamed":
        yield "# PyTorch: fully_shard(..., offload_policy=CPUOffloadPolicy())"
    elif options.device == "cuda":
        is_carried = way.carries and row.setting == (1, 0)
        said = ['device="cuda"'] * (not is_carried) + ["fetch=True"] * way.fetches + ["release_gradients=True"] * (way.name == "released")
        yield f"# PyTorch: ZenFlow({', '.join(['...', *said])})"
        if is_carried:
            yield "# torch carries gradients and values; with device=\"cuda\" the plugin does it, and may keep state on the card (state_mib)"


def choice_of(plan, max_stall):
    row, exact_mib = plan.choose(), plan.exact_state_mib()
    if not row:
        yield "\n# nothing that is simulated fits: what is configured does"
        return
    none = ": none does, this one is the quickest" if row.stall > max_stall else ""
    yield f"\n# the least late setting that waits for less than {100 * max_stall:.0f} % of a step{none}"
    yield from keys_of(plan, row)
    if exact_mib:
        share = exact_mib * 2**20 / (plan.taken.state_nbytes[1] * plan.owned_elems(plan.taken))
        whose = " of each rank" if plan.options.ranks > 1 else ""
        yield (f"\n# mode = exact waits no longer than that from [device] state_mib = {exact_mib} on: {100 * share:.1f} % of the "
               f"state{whose}" + ("; no --gpu says whether the card has room for it" if plan.card_nbytes == math.inf else ""))


def of_one(plan, numbers, max_stall):
    yield from head(plan)
    yield from ways_of(plan)
    yield from bytes_of(plan)
    yield from carried_of(plan)
    yield from balance(plan)
    if not plan.does_fit:
        return
    if plan.has_windows:
        yield from speeds_of(plan, numbers)
        yield from rows_of(plan)
        yield from choice_of(plan, max_stall)
    else:
        yield "\ntimes are simulated for AdamW in mode = exact and windows, with state on the host"


def of_several(plans, numbers, max_stall):
    """The last one fits, if any does."""
    yield machine_line(plans[0])
    yield "\n                 parameters" + COLUMNS
    for plan in plans:
        yield f"{plan.model.path:17}  {count(plan.model.n_elems):>8}" + way_line(plan, plan.taken if plan.does_fit else nearest(plan))
    yield f"the largest that fits: {plans[-1].model.path}" if plans[-1].does_fit else "nothing fits"
    if plans[-1].does_fit and plans[-1].has_windows:
        yield from speeds_of(plans[-1], numbers)
        yield from choice_of(plans[-1], max_stall)
