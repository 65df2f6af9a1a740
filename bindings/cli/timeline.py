# SPDX-License-Identifier: Apache-2.0
"""A step of training as events on the machine's resources: which of them hide behind compute.

Model. A bucket is a stretch of the model. Five resources do one thing at a time, each in its own order: the device (forward
and backward of a bucket), the network, the link down, the host's workers (replay), the link up. An event begins when its
resource is free and what it needs is over:

  forward     in forward order; needs the bucket's published values as publish_lag says
  backward    in backward order
  fetch       stage 3 alone: a bucket's parameters to every rank, in forward and in backward order, before it is computed with. One is
              under way while the one before it is computed with; the last two stay
  reduce      needs the bucket's backward: the sum over ranks
  down        needs the sum: gradients to the host
  replay      in forward order; needs all gradients of the step, for the norm decides the clip factor: what closes in a step
              is 1/S of each bucket, with S slots. Of several ranks each waits for all: at every step one of them closes
              most_close of what it has, after steps in which it closed less. With spares a bucket may be replayed once its
              own gradients are there (plugin/replay/early.h): the newest first, and where no spare is left in place of the
              oldest; so does the one that others wait for. No step clips
  up, gather  needs the replay: values to the device, and to the other ranks where each has a part. Residents' values need none; with
              publish_lag = 1 the step waits for them
  own         after the last backward, on the device: the plugin's own passes (statistics of gradients, the check of weights,
              updates of selected channels), which nothing hides; it does not hold up the replay

What uses the network takes the first gap that it finds: gradients do not wait for values that come later.

Several steps are run through; the last ones, whole windows, are the answer. Not in the model: reading a batch, and other
users of the machine.
"""
import functools
import heapq
from bisect import bisect_right
from dataclasses import dataclass

EARLY_SPEED = 0.88  # an early replay writes elsewhere than it reads, which takes longer
WINDOWS_BEFORE, WINDOWS_COUNTED, LEAST_STEPS = 3, 3, 4


@dataclass(frozen=True)
class Job:
    """The simulated rank. Bytes are of one element, speeds per second."""

    buckets: tuple  # elements, in forward order
    forward_s: float  # of the whole model and one micro-batch, if nothing is waited for
    backward_s: float
    n_micro_batches: int
    update_interval: int
    publish_lag: int
    fetches: bool  # lag 0: a bucket is waited for when it is used, else all of them before the forward
    n_ranks: int
    travelling: float  # of gradients and values, the share that goes to other ranks; 1 without experts that other ranks have others of
    is_sharded: bool  # each rank has a part of the state: else all of it
    shards_params: bool  # each rank has its slices of the parameters, too
    owned_share: float  # of the whole state, what the rank has
    elem_nbytes: float  # of gradients and values
    reduce_factor: float  # network bytes per gradient byte: 1 reduce-scatter (and what is gathered again), 2 all-reduce
    link: float
    net: float
    n_machines: int  # between which ranks exchange at `net`, and in each of them first at `inside`; n_ranks: in one level
    inside: float
    net_latency_s: float  # of each collective
    replay: float  # elements x steps, of this rank's workers
    spare_elems: float  # that may be replayed before their step; 0: none
    resident_elems: float  # of this rank's, the first in forward order, which are updated on the device
    most_close: float  # share of the rank's elements that close at one step; 0: 1/S
    own_s: float  # per step


class Busy(dict):
    """{what: seconds}, of all resources together. spans: where they are kept, (what, begin, end) of each event."""

    spans = None

    def add(self, what, begin, seconds):
        self[what] += seconds
        if self.spans is not None:
            self.spans.append((what, begin, begin + seconds))


class Resource:
    """Does one thing at a time."""

    def __init__(self, busy):
        self.busy, self.free_at = busy, 0.0

    def run(self, what, ready, seconds):
        """The event's end."""
        begin = max(self.free_at, ready)
        self.busy.add(what, begin, seconds)
        self.free_at = begin + seconds
        return self.free_at


class Network(Resource):
    """The same, of several users, each in an order of its own."""

    def __init__(self, busy):
        super().__init__(busy)
        self.begins, self.ends = [], []  # of what it does

    def run(self, what, ready, seconds):
        i = bisect_right(self.ends, ready)
        while i < len(self.begins) and self.begins[i] < ready + seconds:
            ready = max(ready, self.ends[i])
            i += 1
        self.begins.insert(i, ready)
        self.ends.insert(i, ready + seconds)
        self.busy.add(what, ready, seconds)
        return ready + seconds


class Simulation:
    def __init__(self, job):
        self.job, self.total, left = job, sum(job.buckets), job.resident_elems
        self.gathers = job.is_sharded and not job.shards_params and job.n_ranks > 1  # values
        self.on_host = []  # elements of each bucket whose state this rank has there
        for elems in job.buckets:
            elems *= job.owned_share
            self.on_host.append(max(elems - left, 0.0))
            left = max(left - elems, 0.0)
        self.now = 0.0  # the device is free from then on
        self.busy = Busy.fromkeys(("forward_s", "backward_s", "reduce_s", "down_s", "replay_s", "up_s", "gather_s", "own_s"), 0.0)
        self.net = Network(self.busy)
        self.down, self.host, self.up = (Resource(self.busy) for _ in range(3))
        self.fetched, self.fetch_s = [], 0.0  # buckets that are here, at most two; when the next may be on its way
        none = [0.0] * len(job.buckets)
        self.reduced = none[:]  # when the step's sums of a bucket are there
        self.due = [none[:], none[:]]  # when the values that closed at this step, and at the one before, are in place

    def collective_s(self, nbytes):
        """(P-1)/P of what all ranks have together cross each rank's network. In two levels (plugin/ranks/nodes.h) (L-1)/L of it stay
        on its machine with L ranks, and of N machines (N-1)/N of an L-th cross."""
        job, seconds, n = self.job, 0.0, self.job.n_ranks // self.job.n_machines
        for n_there, speed, part in ((n, job.inside, nbytes), (job.n_machines, job.net, nbytes / n)):
            seconds += job.net_latency_s + job.travelling * part * (n_there - 1) / n_there / speed if n_there > 1 else 0.0
        return seconds

    def forward(self, is_first):
        """The first one of a step waits for values: with lag 0 for what the last step closed, with lag 1 for what closed one
        earlier; all at once, or bucket by bucket."""
        job, now = self.job, self.now
        waits_at_once = job.publish_lag > 0 or not job.fetches
        if is_first and waits_at_once:
            now = max(now, *self.due[job.publish_lag > 0])
        for b, (elems, due) in enumerate(zip(job.buckets, self.due[0])):
            if is_first and not waits_at_once and due > now:
                now = due
            now = self.compute("forward_s", b, now, job.forward_s * elems / self.total)
        self.now = now

    def compute(self, what, b, now, seconds):
        """The end of a pass through a bucket that is asked for now."""
        begin = self.fetch(b, now) if self.job.shards_params else now
        self.busy.add(what, begin, seconds)
        return begin + seconds

    def fetch(self, b, now):
        """When a bucket is there that is asked for now."""
        job = self.job
        if b not in self.fetched:
            now = max(now, self.net.run("gather_s", self.fetch_s, self.collective_s(job.buckets[b] * job.elem_nbytes)))
            self.fetched = [*self.fetched[-1:], b]
        self.fetch_s = now
        return now

    def backward(self, is_last):
        job = self.job
        for b in reversed(range(len(job.buckets))):
            self.now = self.compute("backward_s", b, self.now, job.backward_s * job.buckets[b] / self.total)
            if is_last:
                seconds = job.reduce_factor * self.collective_s(job.buckets[b] * job.elem_nbytes)
                self.reduced[b] = self.net.run("reduce_s", self.now, seconds)
        self.now = max(self.now, *self.reduced)  # the step on the device begins with all sums

    def replay_early(self, arrived, norm_s):
        """{bucket: when it was over}, of what is replayed before the norm is known."""
        job, host = self.job, self.host
        done, oldest, there, used = {}, [], [], 0.0
        left = [b for b in range(len(arrived)) if self.on_host[b] > 0]  # they arrive from the last on
        while job.spare_elems > 0 and host.free_at < norm_s and (there or left):
            while left and arrived[left[-1]] <= host.free_at:
                there.append(left.pop())
            if not there:
                host.free_at = arrived[left[-1]]
                continue
            b = there.pop()
            while oldest and used + self.on_host[b] > job.spare_elems:
                given_up = -heapq.heappop(oldest)
                del done[given_up]
                used -= self.on_host[given_up]
            used += self.on_host[b]
            done[b] = host.run("replay_s", 0.0, self.on_host[b] / (EARLY_SPEED * job.replay))
            heapq.heappush(oldest, -b)
        return done

    def show_residents(self):
        """With publish_lag = 1 all ranks show them in their own step."""
        job = self.job
        for elems, mine in zip(job.buckets, self.on_host):
            resident = elems - mine / job.owned_share
            if self.gathers and job.publish_lag > 0 and resident > 0:
                self.now = self.net.run("gather_s", self.now, self.collective_s(resident * job.elem_nbytes))

    def replay(self, norm_s):
        """From when all sums are there on."""
        job, n = self.job, len(self.job.buckets)
        arrived = [0.0] * n
        for b in reversed(range(n)):
            arrived[b] = self.down.run("down_s", self.reduced[b], self.on_host[b] * job.elem_nbytes / job.link)
            norm_s = max(norm_s, arrived[b])
        early, slowest = self.replay_early(arrived, norm_s), norm_s
        closed_nbytes = job.elem_nbytes / job.update_interval
        self.due = [[0.0] * n, self.due[0]]
        for b, mine in enumerate(self.on_host):
            end = norm_s  # where the device has all of it
            if b in early:
                end = max(norm_s, early[b])
            elif mine > 0:
                end = self.host.run("replay_s", norm_s, mine / job.replay)
            if b not in early:
                slowest += mine * job.most_close * job.update_interval / job.replay
            end = self.up.run("up_s", max(end, slowest), mine * closed_nbytes / job.link)
            if self.gathers:
                closed = mine / job.owned_share  # of all ranks; what is resident is shown at every step
                resident_nbytes = (job.buckets[b] - closed) * job.elem_nbytes if job.publish_lag == 0 else 0.0
                end = self.net.run("gather_s", end, self.collective_s(closed * closed_nbytes + resident_nbytes))
            self.due[0][b] = end

    def step(self):
        for i in range(self.job.n_micro_batches):
            self.forward(i == 0)
            self.backward(i + 1 == self.job.n_micro_batches)
        norm_s = self.now
        self.show_residents()
        self.replay(norm_s)
        self.busy.add("own_s", self.now, self.job.own_s)
        self.now += self.job.own_s
        self.fetched, self.fetch_s = [], self.now

    def figures(self):
        return {"step_s": self.now, "compute_s": self.busy["forward_s"] + self.busy["backward_s"], **self.busy}


@functools.lru_cache(maxsize=256)
def run(job):
    """Seconds of a step, from one step's end to the next's, and how long each resource was busy; of the last one the length and spans."""
    simulation, period = Simulation(job), max(job.update_interval, LEAST_STEPS)
    for _ in range(WINDOWS_BEFORE * period):
        simulation.step()
    before = simulation.figures()
    for left in reversed(range(WINDOWS_COUNTED * period)):
        if left == 1:
            simulation.busy.spans = []  # updates of this step run into the last one
        began = simulation.now
        simulation.step()
    spans = [(what, max(begin, began) - began, min(end, simulation.now) - began) for what, begin, end in simulation.busy.spans]
    figures = {name: (value - before[name]) / (WINDOWS_COUNTED * period) for name, value in simulation.figures().items()}
    return figures, simulation.now - began, spans
