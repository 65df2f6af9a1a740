# SPDX-License-Identifier: Apache-2.0
"""How gradients reach the plugin: at step(), or in hooks during backward and compared at step.

Model: a hook on every trainable parameter fires when autograd has added to its .grad. .grad is a running total, so the
gradient of a step is what .grad holds when step() is called. With overlap a gradient is given to the plugin when its hook has fired for
the last time, as the final one, and the step is announced with what param_groups say by then: so the plugin updates what is deferred during
backward (early replay), into memory of its own, and sends the gradient to other ranks. At step each .grad is compared with what was given
(object, address, version counter, digest of the contents), and what changed is given again: it costs time, never bits. One operation in
place that left the contents as they were (clipping by a factor of 1) is no difference; after two, something else may have been read between
them. What is written past the version counter (.data, numpy) and undone before step leaves no trace, though the plugin may have read it.

A gradient on a device that torch alone reaches (carried.py) is copied into its place in host memory first, in its hook where copies run beside
the trainer's kernels, and goes on from there once it has arrived. Its digest is made on the device.

On the plugin's own CUDA backend a digest would make the CPU wait in the middle of backward. So there gradients are read at step() unless overlap=True
says that nobody writes them through .data or numpy; a gradient is shipped on the stream on which it was added to .grad, and is free, in
stream order, with the step.

Other ranks: what is on its way to them cannot be called back by one alone. So at each step all ranks agree on one bit, whether some rank's
gradients changed; then all drop what has travelled and deliver everything again.

Accumulation: how often a parameter's hook fired in the last step is how often it is expected in this one, and only the last firing ships
(fewer count when they come twice: the rest of an epoch's batches). If most gradients change after backward in some steps in a row (a host
that clips, a GradScaler that unscales), shipping early ends, since each would travel twice.

Released gradients (release_gradients=N, of N backwards) are no longer the trainer's once their hook has fired: nothing is compared.

Memory of a shipped gradient is read asynchronously until the step's report, so the tensor and its storage are held until then. With
fetch=True step() returns before that: it waits for the fence of the last bucket instead.
"""
import ctypes as C
import logging
import math
import weakref

from .. import _abi, errors
from ..signals import whole
from .bucket import Bucket
from .carried import is_carried
from .cut import grad_of, is_on_its_way, is_settled, local
from .lanes import Packer

STEPS_UNTIL_OFF = 3         # steps in which most early gradients were changed afterwards
IN_FLIGHT_NBYTES = 1 << 26  # of gradients that were given back, being read
NEVER = 1 << 30

_AT_STEP = _abi.GRAD_TOTAL | _abi.GRAD_UNKNOWN | _abi.GRAD_ASYNC_READ
_FINAL = _abi.GRAD_TOTAL | _abi.GRAD_LAST | _abi.GRAD_ASYNC_READ
_PART = _abi.GRAD_PART | _abi.GRAD_ASYNC_READ


class _Gradient:
    """The facts known of one parameter's gradient in this step."""

    __slots__ = ("expected", "fired", "fired_before", "held", "storage", "version", "address", "fired_at", "digest", "load", "at")

    def __init__(self, expected, fired):
        self.expected, self.fired, self.fired_before = expected, fired, 0  # firings of its hook
        self.version, self.address, self.fired_at, self.digest = 0, 0, 0, 0  # of what was shipped; version NaN: it does not count
        self.load, self.at = None, 0  # what it came with from a device, and its number there
        self.let_go()

    def let_go(self):
        self.held = self.storage = None  # what was shipped

    def end_step(self, is_fixed):
        self.let_go()
        self.load = None
        fired = self.fired
        if not is_fixed and self.expected != NEVER and fired and (fired >= self.expected or fired == self.fired_before):
            self.expected = fired
        self.fired_before, self.fired = fired, 0


class GradientFeed:
    """Ships the gradients of a ParameterTable to an Instance. overlap: during backward; None: where changes are told for nothing, to other
    ranks on a CPU. agree: a function of all ranks, whether one of them says so (ranks.py), or None: there are no others."""

    def __init__(self, instance, table, *, overlap=None, log=None, agree=None, n_releasing=0):
        self.instance, self.table, self.place = instance, None, instance.place
        self.log = log or logging.getLogger("zfplugin")
        self.lock = instance.lock
        self.is_alone, self.agree = agree is None, agree
        self.fixed_count = n_releasing or None
        if agree is not None:
            is_sharded = instance.config()["shard.stage"] != "0"
            together = ("flush", "save", "load", *(("export", "params_changed") if is_sharded else ()))
            instance.come_together = lambda doing: doing in together and self._come_together(doing)
        if overlap is None:  # on a CPU alone it costs more than it hides: every gradient is read once more for its digest
            overlap = table.mirrors.are_beside(table.trained) if table.is_carried else not self.is_alone and not self.place.is_stream
        self.is_shipping = overlap or self.is_releasing
        self.begin = None               # called before the first delivery of a step during backward
        self.released = []              # no longer the gradient, but perhaps still being read
        self.being_read = set()         # ids of those whose gradient comes from a device: its place is written or read
        self.packer, self.on_its_way = Packer(), []  # of those that travel next; (load, [(id, flags)]) of those that travel
        self.lent, self.in_flight = [], []  # given back by the trainer: of the open bucket; [(fence, tensors, bytes)] of shipped ones
        self.gradients, self.handles = [], []
        self.has_warned = False
        self.adopt(table)

    @property
    def is_releasing(self):
        """Whether .grad is None once it was shipped."""
        return self.fixed_count is not None

    def adopt(self, table):
        """From now on the gradients of this table; what was delivered of the one before was discarded."""
        learned = {} if self.table is None else {name: (of.expected, of.fired) for name, of in zip(self.table.names, self.gradients)
                                                 if of.expected != NEVER}
        self.table, self.tied_sets = table, _tied_sets(table)
        self.bucket = Bucket(self.instance, table, self.is_releasing or self.instance.is_fetching and not self.place.is_stream)
        self.gradients = [_Gradient(*learned.get(name, (self.fixed_count or 1, 0))) for name in table.names]
        for i in (i for ids in self.tied_sets for i in ids):
            self.gradients[i].expected = NEVER
        is_shipping = self.is_shipping and (table.is_carried or (self.bucket.has_digests() or self.place.is_stream) and not is_on_its_way(table.spread))
        self.is_shipping = not self._is_said_by_one(not is_shipping)
        self.instance.keepalive = (self.gradients, self.released, table)
        self.being_read.clear()
        table.mirrors.free()
        self.at_rest = []               # frozen, and without a gradient in the last step
        self.n_changed_steps = 0
        table.mirrors.lose = lambda params: self.lose([table.numbers[id(p)] for p in params])
        table.mirrors.newest = lambda param: table.newest(table.numbers[id(param)])
        table.mirrors.digests = self.instance.digests
        self.is_first = True            # nothing of the coming step was delivered early
        self.problem = None             # of a hook; step() meets it again and raises
        self.detach()
        self._attach()

    def _come_together(self, doing):
        """Before a call of the plugin that all ranks make. A rank that is at step instead learns here: it waits for this one's word."""
        if self.is_shipping and not self.is_releasing:
            self._is_said_by_one(False, doing)

    def _is_said_by_one(self, flag, doing="step"):
        """The answer of all ranks."""
        said = self.agree(flag, doing) if self.agree is not None else flag
        if said is None:  # it failed, as the plugin will, where a rank is gone, or where one alone drops something
            self.agree = None
        return flag if said is None else said

    # ---- during backward ---------------------------------------------------------------------------------------------

    def _attach(self):
        feed = weakref.ref(self)

        def make_hook(i):
            def hook(param):
                this = feed()
                if this is not None:
                    this.on_gradient(i, param)
            return hook

        for i, param in self.table.trainable:
            is_hole = not param.requires_grad  # frozen since: torch takes no hook then, but keeps one
            if is_hole:
                param.requires_grad_(True)
            self.handles.append(param.register_post_accumulate_grad_hook(make_hook(i)))
            if is_hole:
                param.requires_grad_(False)

    def detach(self):
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def on_gradient(self, i, param):
        """Autograd has added to param.grad. Never raises: what is wrong is said by step(), where it can be handled."""
        with self.lock:
            of, is_releasing = self.gradients[i], self.is_releasing and not self.instance.is_closed
            try:
                if is_releasing:
                    self._say_first()
                of.fired += 1
                if of.expected != NEVER and (is_releasing or self.is_shipping and of.fired == of.expected) and not self.instance.is_closed:
                    self._give(i, param)
            except Exception as problem:  # noqa: BLE001
                self.problem = problem

    @whole
    def _give(self, i, param):
        """It is the last one, as far as is known."""
        if self.is_releasing:
            self._hand_over(i, param)
        elif i not in self.table.turned and self._is_in_place(i, param) and self._is_free(i):  # else step() delivers another one
            if len(self.released) > len(self.gradients):
                self._release_all()
            self._say_first()
            self._begin(i, grad_of(param), _FINAL)
            if self.bucket.is_full():
                self._ship()

    def _is_in_place(self, i, param):
        """Else it moved, and step() follows it, or refuses it; or it is a share of a gradient."""
        return self.table.is_in_place(i) and not (self.table.is_cut and not is_settled(param))

    def _is_free(self, i):
        """Whether no value stands in the gradient's place that did not go up yet, or that others wrote."""
        table, param = self.table, self.table.params[i]
        return not table.carries or not (table.mirrors.late([param]) or table.mirrors.may_be_edited(param))

    def _fetch_late(self, ids):
        late = self.table.mirrors.late(self.table.params[i] for i in ids)
        if late:
            self.table.mirrors.fetcher.fetch(late)

    def _hand_over(self, i, param):
        """The gradient is shipped, and no longer the trainer's: its memory is free as soon as it was read."""
        of = self.gradients[i]
        if of.fired > self.fixed_count:
            raise errors.StateError(f'release_gradients=True: a gradient of "{self.table.names[i]}" came {of.fired} times before step(), '
                                    f"{self.fixed_count} expected; say release_gradients={of.fired}, the backwards of a step")
        if not self.table.is_in_place(i):
            raise errors.StateError(f'release_gradients=True: "{self.table.names[i]}" was moved between step() and backward: call bind() or '
                                    "step() after a move")
        is_last = of.fired == self.fixed_count
        self._fetch_late([i])
        if i in self.table.turned:
            param.grad.neg_()
        self._begin(i, param.grad, _PART | (_abi.GRAD_LAST if is_last else _abi.GRAD_MORE))
        if not self._is_copied(of.held):
            self.lent.append((of.held, of.storage))
        of.let_go()
        param.grad = None
        if self.bucket.is_full():
            self._ship(is_last=True)

    def _say_first(self):
        if self.is_first:
            self.is_first = False
            if self.begin is not None:
                self.begin()

    def _free(self, most_nbytes):
        """Lets go of what was read, and waits until at most so much is being read."""
        while self.in_flight:
            fence, _, _ = self.in_flight[0]
            if not self.instance.is_over(fence) and sum(nbytes for _, _, nbytes in self.in_flight) <= most_nbytes:
                return
            self.instance.wait(fence)
            self.in_flight.pop(0)

    def _begin(self, i, grad, flags):
        """Adds a gradient to the bucket, or one on a device to those that are on their way into host memory."""
        if not self._is_copied(grad):
            self._collect(i, grad, flags)
            return
        self.bucket.check(i, grad)
        if grad.device != local(self.table.params[i]).device:
            raise errors.DeviceError(f'the gradient of "{self.table.names[i]}" is on {grad.device}, the parameter on {local(self.table.params[i]).device}: '
                                     "move a model after step(), or its gradients, too", scope="param")
        if i in self.being_read:
            self._release_all()
        item = i, flags | (_abi.GRAD_REPLACE if self.gradients[i].held is not None else 0), grad
        self.table.mirrors.take(self.table.params[i])
        self._note(i, grad)
        self._send(self.packer.add(grad, item) if self.gradients[i].load is None else [[item]])
        self.being_read.add(i)
        self._arrive()

    def _send(self, packs):
        """Starts to copy them into host memory."""
        for items in packs:
            first = self.gradients[items[0][0]]
            try:
                load = self.table.mirrors.send([self.table.params[i] for i, _, _ in items], [grad for _, _, grad in items],
                                               first.load.place(first.at) if first.load is not None else None, items[0][1] & _FINAL == _FINAL)
            except BaseException:
                self._discount(i for unsent in packs for i, _, _ in unsent)
                raise
            self.on_its_way.append((load, [(i, flags) for i, flags, _ in items]))
            for at, (i, _, _) in enumerate(items):
                self.gradients[i].load, self.gradients[i].at = load, at

    def _is_copied(self, grad):
        """Whether the plugin reads it in its place in host memory."""
        return not self.place.is_stream and is_carried(grad)

    def _arrive(self, is_all=False):
        """What has come into host memory goes into the bucket. is_all: waits for the rest."""
        if is_all:
            self._send(self.packer.rest())
        while self.on_its_way:
            load, items = self.on_its_way[0]
            if not is_all and not load.is_over():
                return
            load.wait()
            for (i, flags), place in zip(items, load.places()):
                self.bucket.add(i, place, flags, None)
            self.on_its_way.pop(0)

    def _collect(self, i, grad, flags):
        """Adds a gradient to the bucket."""
        current = self.place.current() if self.place.is_stream else None
        if self.bucket.is_open_on_another(current):
            self._ship()
        if grad.is_neg():  # its memory holds the other sign
            grad = grad.resolve_neg()
        of = self.gradients[i]
        self.bucket.check(i, grad)
        self.bucket.add(i, grad, flags | (_abi.GRAD_REPLACE if of.held is not None else 0), current)
        self._note(i, grad)
        if self.place.is_stream:
            self.place.keep(grad)

    def _note(self, i, grad):
        """It is what step() compares with."""
        of = self.gradients[i]
        if of.held is not None:
            self._release(i)
        of.held, of.storage, of.address = grad, grad.untyped_storage(), grad.data_ptr()
        of.version = math.nan if grad.is_inference() else grad._version
        of.fired_at = of.fired

    def _release(self, i):
        """Something else will be this gradient; what was may still be being read."""
        of = self.gradients[i]
        if not self._is_copied(of.held):
            self.released.append((of.held, of.storage))
        of.let_go()

    def _release_all(self):
        """Waits for the reads in flight: backwards without a step would keep one gradient each."""
        self._arrive(is_all=True)
        self._ship()
        self.instance.drain()
        self._forget_reads()

    def _forget_reads(self):
        self.released.clear()
        self.being_read.clear()

    def _ship(self, is_last=False):
        """Ships the bucket, and notes what it holds; is_last: nothing can change it any more."""
        bucket = self.bucket
        ids, nbytes = bucket.ids, bucket.pending_nbytes
        if not ids:
            return
        try:
            bucket.ship()
        except errors.ZfError:
            self._discount(ids)  # an earlier shipment of these still counts: REPLACE it next time
            raise
        finally:
            bucket.clear()
        if self.lent:
            self.in_flight.append((_abi.Fence.from_buffer_copy(bucket.fence), self.lent, nbytes))
            self.lent = []
            self._free(IN_FLIGHT_NBYTES)
        if not is_last:
            ids = [i for i in ids if i not in self.being_read]
            for i, digest in zip(ids, bucket.digests(ids)):
                self.gradients[i].digest = digest

    def lose(self, ids):
        """Gradients of these make room for values, and are sent again at step(). Nothing is being read afterwards."""
        self._refuse_given_back(ids)
        self._arrive(is_all=True)
        self._ship()
        with self.instance.unfetched():
            self.instance.drain()
        self._discount(i for i in ids if self.gradients[i].held is not None)
        self.table.mirrors.settle()

    def _discount(self, ids):
        """Forgets what was shipped: of these it does not count."""
        for of in (self.gradients[i] for i in ids):
            of.version, of.fired_at = math.nan, -1

    # ---- at step -----------------------------------------------------------------------------------------------------

    def quiet_ids(self):
        """ids of trainable parameters whose hook has not fired since the last step."""
        return tuple(i for i, _ in self.table.trainable if not self.gradients[i].fired)

    def has_fired(self):
        return any(of.fired for of in self.gradients)

    def has_delivered(self):
        """Whether something of the coming step was delivered, here or perhaps on another rank."""
        return not self.is_alone and self.is_shipping or any(of.held is not None for of in self.gradients)

    def is_without_gradients(self):
        """Whether no parameter has a gradient, and no other process may have one. What was delivered is dropped then."""
        with self.lock:
            if not self.is_alone or self.table.spread is not None or any(p.grad is not None for _, p in self.table.trainable):
                return False
            if self.is_releasing and (self.has_fired() or self.problem is not None):
                return False
            if self.has_delivered():
                self.discard()
            self.forget_firings()
            return True

    def complete(self):
        """Ships what has not travelled yet or has changed; returns the ids of all that have a gradient. Raises GradientError
        where there is none of this process's parts of parameters."""
        with self.lock:
            if self.is_releasing and self.problem is not None:  # its gradient is gone
                problem = self.problem
                self.drop_released()
                raise problem
            self._arrive(is_all=True)
            present, late, changed, is_withdrawn = self._compare()
            if not present and self.is_alone:  # else another rank may have some
                raise errors.GradientError("step: no part of a parameter in this process has a gradient: call backward() before step(), "
                                           "in all processes")
            if self._is_to_be_repeated(changed, is_withdrawn):
                self.discard()
                late, changed = present, []
            in_sets, params = {i for ids in self.tied_sets for i in ids}, self.table.params
            self._collect_all({i: self._to_deliver(i) for i in (*late, *changed) if i not in in_sets}, dict.fromkeys(late + changed, _AT_STEP))
            self._ship(is_last=True)
            for ids in self.tied_sets:
                self._ship_tied([i for i in ids if params[i].grad is not None])
            self.problem = None
            return present

    def _compare(self):
        """ids with a gradient; of these what was not shipped, and what is another one now; whether one that was shipped has none any more."""
        is_cut, self.at_rest = self.table.is_cut, []
        pending = {i for i in self.bucket.ids if i not in self.being_read}
        present, late, changed, same, is_withdrawn = [], [], [], [], False
        most = 1 if self.bucket.has_digests() else 0  # operations in place that may have left the contents as they were
        for i, p in self.table.trainable:
            grad, of = grad_of(p) if is_cut else p.grad, self.gradients[i]
            if self.is_releasing and of.fired and of.expected != NEVER:
                self._check_released(i, grad)
                present.append(i)
            elif grad is None:
                is_withdrawn = is_withdrawn or of.held is not None
                if not p.requires_grad:
                    self.at_rest.append(i)
            else:
                present.append(i)
                is_in_place = grad is of.held and grad.data_ptr() == of.address
                if of.held is None:
                    late.append(i)
                elif i in self.table.turned:  # since it was shipped
                    changed.append(i)
                elif is_in_place and not grad.is_inference() and 0 <= grad._version - of.version <= most and i not in pending:
                    same.append(i)
                elif not (is_in_place and i in pending):  # it has not been read yet
                    changed.append(i)
        copied = [i for i in same if self._is_copied(self.gradients[i].held)]
        loads = {id(load): load for load in (self.gradients[i].load for i in copied)}
        others = {id(load) for load in loads.values() if not load.is_compared}
        others.update(map(id, self.table.mirrors.changed(load for load in loads.values() if load.is_compared)))
        changed += [i for i in copied if id(self.gradients[i].load) in others]
        same = [i for i in same if i not in self.being_read]
        changed += [i for i, now in zip(same, self.bucket.digests(same)) if now != self.gradients[i].digest]
        return present, late, changed, is_withdrawn

    def _check_released(self, i, grad):
        if grad is not None:
            raise errors.StateError(f'release_gradients=True: "{self.table.names[i]}" was given another .grad after its own had been '
                                    "given back")

    def _is_to_be_repeated(self, changed, is_withdrawn):
        """Whether what was delivered is dropped, all of it. Ends early shipping where it only makes gradients travel twice: on all ranks at
        the same step."""
        if not self.is_shipping or self.is_releasing:
            return is_withdrawn
        edited = [i for i in changed if self.gradients[i].fired_at == self.gradients[i].fired]
        if self.is_alone:
            is_lost = 2 * len(edited) > sum(of.held is not None for of in self.gradients)
        else:
            is_lost = self._is_said_by_one(bool(changed) or is_withdrawn)
            self._say_local(edited)
        self.n_changed_steps = self.n_changed_steps + 1 if is_lost else 0
        if self.n_changed_steps == STEPS_UNTIL_OFF:
            self.is_shipping = False
            self.log.warning("gradients were changed after backward in %d steps in a row (clipped, unscaled or averaged over "
                             "processes by the host): from now on they travel at step, without overlap. clip_norm=... keeps the "
                             "overlap", STEPS_UNTIL_OFF)
        return is_withdrawn or is_lost and not self.is_alone

    def _say_local(self, edited):
        if edited and not self.has_warned:
            self.has_warned = True
            self.log.warning("gradients were changed between backward and step: with group=... .grad is this rank's own until "
                             "step() adds them up, so clip with clip_norm=..., which knows the norm over all ranks")

    def _to_deliver(self, i):
        """The gradient of what is minimized."""
        grad = grad_of(self.table.params[i])
        return grad.neg() if i in self.table.turned else grad

    def _collect_all(self, grads, flags):
        """{id: gradient}, {id: its flags}; copies from devices are waited for together."""
        self._fetch_late(grads)
        for i, grad in grads.items():
            self._begin(i, grad, flags[i])
        self._arrive(is_all=True)

    def _ship_tied(self, ids):
        """Parameters on one storage have one gradient: the sum of theirs."""
        for i in ids[1:]:
            if self.gradients[i].held is not None:
                self._release(i)  # what is held is replaced by the first one's; parts must add up
        flags = {i: _PART | (_abi.GRAD_LAST if i == ids[-1] else _abi.GRAD_MORE) | (_abi.GRAD_REPLACE if i == ids[0] else 0) for i in ids}
        self._collect_all({i: self._to_deliver(i) for i in ids}, flags)
        self._ship(is_last=True)

    def discard(self):
        """Drops everything that was delivered since the last step."""
        self.is_first, self.lent, self.problem = True, [], None
        self.packer.rest()  # has not begun to travel, and does not
        self._arrive(is_all=True)
        self.bucket.clear()
        args = _abi.StepArgs(struct_size=C.sizeof(_abi.StepArgs), flags=_abi.STEP_DISCARD,
                             stream=C.addressof(self.instance.stream))
        self.instance.call(self.instance.table.step, C.byref(args), None, doing="discard")
        for i, of in enumerate(self.gradients):
            if of.held is not None:
                self._release(i)

    def drop_released(self):
        """Gradients of the coming step that were given back do not count: the trainer has nothing of them to drop."""
        if self.is_releasing and (self.has_fired() or self.has_delivered() or self.problem is not None):
            self.discard()
            self.forget_firings()

    def forget_firings(self):
        """The gradients of this step were dropped; the next backward is the first again."""
        for of in self.gradients:
            of.fired = 0

    def forget(self, ids):
        """The plugin dropped what was delivered of these (params_changed)."""
        self._ship()
        self._refuse_given_back(ids)
        self._discount(i for i in ids if self.gradients[i].held is not None)

    def _refuse_given_back(self, ids):
        gone = [self.table.names[i] for i in ids if self.is_releasing and self.gradients[i].fired]
        if gone:
            raise errors.StateError(f'release_gradients=True: "{gone[0]}" was written, moved or bound again between backward and step(), or on a device '
                                    "through .data before backward, and its gradient was given back: do that after step(), and call flush() "
                                    "before the next backward")

    def end_step(self):
        """The step is done and reported, or the fence waited for: nothing is being read any more, or nothing by the time that
        the stream comes to what is enqueued now."""
        with self.lock:
            if self.bucket.has_fence and not self.place.is_stream:
                self.instance.wait(self.bucket.fence)
            self._free(0 if not self.place.is_stream else IN_FLIGHT_NBYTES)
            for of in self.gradients:
                of.end_step(self.fixed_count is not None)
            self._forget_reads()
            self.table.mirrors.free()
            self.is_first = True


def _tied_sets(table):
    """Lists of ids that share their memory."""
    sets = {}
    for i, owner in enumerate(table.tied_to):
        if owner is not None:
            sets.setdefault(owner, [owner]).append(i)
    return list(sets.values())
