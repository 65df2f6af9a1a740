# SPDX-License-Identifier: Apache-2.0
"""How gradients reach the plugin: hooks during backward, one foreign call per bucket, a check at step.

Model: a hook on every trainable parameter fires when autograd has added to its .grad. .grad is a running total, so the
gradient of a step is what .grad holds when step() is called; what is shipped before (overlap=True, final_gradients=True) is
to overlap with the rest of backward, and is allowed to be wrong: at step each .grad is compared with what was shipped (object, address,
version counter, digest of the contents) and shipped again where it differs. One operation in place that left the contents
as they were (clipping by a factor of 1) is no difference; after two, something else may have been read between them.
What is written past the version counter (.data, numpy) and undone before step leaves no trace at all, though the plugin may
have read it: that would take a digest of what was read, by the plugin; the README says so.
Correctness never depends on the hooks.

Final gradients: where none was changed after it was shipped in some steps, or the caller promises that none is, they are delivered as the last
ones, and the step is announced with what param_groups say when backward begins. So the plugin updates what is deferred during backward
(early replay), into memory of its own. One that was changed all the same is delivered again, and what was updated early is dropped: a
wrong expectation costs time, never bits.

Other ranks: what is final is on its way to them, and cannot be called back by one alone. So nothing is shipped early until all ranks have
seen some steps without a change, of which they vote; from then on they vote at every step whether one of them has changed something: then all
of them drop what has travelled, deliver everything again at this step, and vote anew after twice as many steps.

Accumulation: a gradient that is shipped before the last backward is lost overlap. How often a parameter's hook fired in
the last step is how often it is expected in this one, and only the last firing ships (fewer count when they come twice: the rest of an
epoch's batches); accumulation_steps says it beforehand. If gradients keep being changed after backward (a host that clips, a GradScaler that
unscales), early shipping is switched off, since each would travel twice.

Cost: all descriptors live in two ctypes arrays that are written through memoryviews as 64-bit words; a hook makes no
ctypes object. Memory of a shipped gradient is read asynchronously until the step's report, so the tensor and its storage
are held until then. With fetch=True step() returns before that: it waits for the fence of the last bucket instead.

On a stream (CUDA) a gradient is shipped on the stream on which it was added to .grad, and is free, in stream order, with the
step. A digest would make the CPU wait in the middle of backward, so version counters, objects and addresses alone are compared there,
and gradients travel early only once some steps were seen in which nobody changed any (watched.py), or final_gradients promises it.
"""
import ctypes as C
import logging
import math
import weakref

import torch

from .. import _abi, errors, places
from ..signals import whole
from .cut import grad_of, is_on_its_way, is_settled, local
from .watched import CLEAN_STEPS, WATCHED_EVERY, Watched

BUCKET_PARAMS = 64          # the plugin's own batch
BUCKET_NBYTES = 1 << 20
STEPS_UNTIL_OFF = 3         # steps in which most early gradients were changed afterwards
STEPS_UNTIL_FINAL = 3       # steps in which none was, after which they count as final until one is
IN_FLIGHT_NBYTES = 1 << 26  # of gradients that were given back, being read
NEVER = 1 << 30

_TENSOR_WORDS = C.sizeof(_abi.Tensor) // 8
_DATA = (_abi.Tensor.dl.offset + _abi.DlTensor.data.offset) // 8
_STRIDES = (_abi.Tensor.dl.offset + _abi.DlTensor.strides.offset) // 8
_NBYTES = _abi.Tensor.nbytes.offset // 8
_ITEM_WORDS = C.sizeof(_abi.GradItem) // 8
assert (_abi.GradItem.id.offset, _abi.GradItem.flags.offset, _abi.GradItem.tensor.offset) == (4, 8, 16)

_WHOLE = _abi.GRAD_TOTAL | _abi.GRAD_UNKNOWN | _abi.GRAD_ASYNC_READ
_FINAL = _abi.GRAD_TOTAL | _abi.GRAD_LAST | _abi.GRAD_ASYNC_READ
_PART = _abi.GRAD_PART | _abi.GRAD_ASYNC_READ


def _words(array):
    return memoryview(array).cast("B").cast("Q")


class GradientFeed:
    """Ships the gradients of a ParameterTable to an Instance. is_alone: there are no other ranks. is_promised: gradients do not change
    after the last backward, so they are on their way to other ranks at once. vote: a function of all ranks (ranks.py), where nothing was
    promised."""

    def __init__(self, instance, table, *, overlap=None, accumulation_steps=None, log=None, is_alone=True, is_promised=False,
                 is_releasing=False, vote=None):
        self.instance, self.table, self.place = instance, None, instance.place
        self.log = log or logging.getLogger("zfplugin")
        self.lock = instance.lock
        if overlap is None:  # on a CPU alone it costs more than it hides: every gradient is read once more for its digest
            overlap = is_promised or self.place.is_stream or not is_alone
        self.is_releasing = is_releasing  # .grad is None once it was shipped
        overlap = overlap or is_releasing
        self.is_shipping = overlap  # early shipping at all
        is_told = is_promised or is_releasing or not self.place.is_stream
        self.watched = Watched(self.place) if overlap and not is_told else None
        self.fixed_count = accumulation_steps or (1 if is_releasing else None)
        self.is_alone = is_alone
        self.is_promised = is_promised
        self.begin = None               # called before the first delivery of a step; with whether it is early
        self.n_unchanged_steps = 0
        self.vote = vote
        self.is_agreed = False          # all ranks count gradients as final
        self.n_between_votes = STEPS_UNTIL_FINAL
        self.n_until_vote = 1 + (CLEAN_STEPS + 1 if self.place.is_stream else STEPS_UNTIL_FINAL)  # the first step may have had no hooks
        self._has_warned_local = is_alone
        self.held, self.held_storage = [], []
        self.released = []              # no longer the gradient, but perhaps still being read
        self.released_nbytes = 0
        self.lent, self.in_flight = [], []  # given back by the trainer: of the open bucket; [(fence, tensors, bytes)] of shipped ones
        self.handles = []
        self.adopt(table)

    def adopt(self, table):
        """From now on the gradients of this table; what was delivered of the one before was discarded."""
        learned = {} if self.table is None else \
            {name: (expected, fired) for name, expected, fired in zip(self.table.names, self.expected, self.fired)
             if expected != NEVER}
        n, accumulation_steps = len(table.params), self.fixed_count
        self.table = table
        self._make_descriptors(n)
        tied = {i for i, owner in enumerate(table.tied_to) if owner is not None}
        tied |= {owner for owner in table.tied_to if owner is not None}
        self.tied_sets = self._tied_sets(tied)
        self.expected, self.fired = [], []
        for i, name in enumerate(table.names):
            expected, fired = learned.get(name, (accumulation_steps or 1, 0))
            self.expected.append(NEVER if i in tied else expected)
            self.fired.append(fired)
        self.fired_before = [0] * n     # in the step before
        self.noted = {}                 # of this step, where nothing is shipped yet: {id: (gradient, firings, what it looked like)}
        self.held = [None] * n          # shipped gradients, and what they looked like
        self.held_storage = [None] * n
        self.version = [0] * n          # NaN: nothing that was shipped counts
        self.address = [0] * n
        self.fired_at = [0] * n
        self.digest = [0] * n
        self.at_rest = []               # frozen, and without a gradient in the last step
        self.digest_function = self.instance.digest_function if not self.place.is_stream else None
        self.is_shipping = self.is_shipping and (self.digest_function or self.place.is_stream) and not is_on_its_way(table.spread)
        self.instance.keepalive = (self.held, self.held_storage, self.released, table)
        self.n_changed_steps = 0
        self.most_released = sum(self.nbytes)
        self.is_first = True            # nothing of the coming step was delivered early
        self.problem = None             # of a hook; step() meets it again and raises
        self.detach()
        self._attach()

    # ---- descriptors -------------------------------------------------------------------------------------------------

    def _make_descriptors(self, n):
        table = self.table
        self._tensors = (_abi.Tensor * n)()
        self._shapes = [(C.c_int64 * max(1, len(shape)))(*shape) for shape in table.shapes]
        self._strides = [(C.c_int64 * max(1, len(shape)))() for shape in table.shapes]
        self._items = (_abi.GradItem * (n + BUCKET_PARAMS))()
        self._tensor_words, self._item_words = _words(self._tensors), _words(self._items)
        self.nbytes = [p.numel() * p.element_size() for p in table.aliases]
        size, base = C.sizeof(_abi.Tensor), C.addressof(self._tensors)
        self._tensor_address = [base + i * size for i in range(n)]
        self._item_head = [C.sizeof(_abi.GradItem) | i << 32 for i in range(n)]
        for i, declared in enumerate(table.decls):
            self._fill_descriptor(self._tensors[i], i, declared)
        self._pending, self._pending_ids, self._pending_nbytes = 0, [], 0
        self._pending_on = None  # current() of the stream on which they are ready
        self._record = errors.new_record()
        self._has_fence = self.is_releasing or self.instance.is_fetching and not self.place.is_stream
        self._fence = _abi.Fence(struct_size=C.sizeof(_abi.Fence), kind=_abi.FENCE_NONE)
        self._arguments = (C.addressof(self._items), C.sizeof(_abi.GradItem), C.addressof(self.instance.stream),
                           C.addressof(self._fence) if self._has_fence else None, C.addressof(self._record))

    def _fill_descriptor(self, out, i, declared):
        out.struct_size, out.nbytes = C.sizeof(_abi.Tensor), self.nbytes[i]
        out.dl.device_type, out.dl.device_id = self.place.device_type, self.place.number
        out.dl.ndim = len(self.table.shapes[i])
        is_bf16 = self.table.dtypes[i] is torch.bfloat16
        out.dl.dtype.code = _abi.DTYPE_CODE_BFLOAT if is_bf16 else _abi.DTYPE_CODE_FLOAT
        out.dl.dtype.bits, out.dl.dtype.lanes = 8 * declared.tensor.element_size(), 1
        out.dl.shape = C.addressof(self._shapes[i]) if self.table.shapes[i] else None

    def _tied_sets(self, tied):
        sets = {}
        for i in sorted(tied):
            owner = self.table.tied_to[i]
            sets.setdefault(i if owner is None else owner, []).append(i)
        return list(sets.values())

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

    @whole
    def on_gradient(self, i, param):
        """Autograd has added to param.grad. Never raises: what is wrong is said by step(), where it can be handled."""
        with self.lock:
            self.fired[i] += 1
            try:
                if self.is_releasing and self.expected[i] != NEVER and not self.instance.is_closed:
                    return self._hand_over(i, param)
                if i in self.table.turned:
                    return  # step() delivers another one
                if not self.is_shipping or self.fired[i] != self.expected[i] or self.instance.is_closed:
                    return  # too early, or an unexpected one: step() delivers what is there then
                if local(param).data_ptr() != self.table.addresses[i]:
                    return  # moved: step() follows it, or refuses it
                if self.table.is_cut and not is_settled(param):
                    return  # a share of it
                if self.watched is not None and self.watched.is_on():
                    return self.watched.note(i, grad_of(param))
                if not (self.is_alone or self.is_promised or self.is_agreed):
                    self.noted[i] = grad_of(param), self.fired[i], self._look_of(i, grad_of(param))
                    return
                if self.released_nbytes > self.most_released:
                    self._release_all()
                self._collect(i, grad_of(param), self._early_flags())
                if self._pending >= BUCKET_PARAMS or self._pending_nbytes >= BUCKET_NBYTES:
                    self._ship()
            except Exception as problem:  # noqa: BLE001
                self.problem = problem

    def _hand_over(self, i, param):
        """The gradient is shipped, and no longer the trainer's: its memory is free as soon as it was read."""
        if self.fired[i] > self.fixed_count:
            raise errors.StateError(f'release_gradients=True: a gradient of "{self.table.names[i]}" came {self.fired[i]} times before step(), '
                                    f"{self.fixed_count} expected; say accumulation_steps=")
        if local(param).data_ptr() != self.table.addresses[i]:
            raise errors.StateError(f'release_gradients=True: "{self.table.names[i]}" was moved between step() and backward: call bind() or '
                                    "step() after a move")
        is_last = self.fired[i] == self.fixed_count
        self._early_flags()
        if i in self.table.turned:
            param.grad.neg_()
        self._collect(i, param.grad, _PART | (_abi.GRAD_LAST if is_last else _abi.GRAD_MORE))
        self.lent.append((self.held[i], self.held_storage[i]))
        self.held[i] = self.held_storage[i] = param.grad = None
        if self._pending >= BUCKET_PARAMS or self._pending_nbytes >= BUCKET_NBYTES:
            self._ship(is_last=True)

    def _free(self, most_nbytes):
        """Lets go of what was read, and waits until at most so much is being read."""
        while self.in_flight:
            fence, _, _ = self.in_flight[0]
            is_over = fence.kind != _abi.FENCE_HOST_COUNTER or C.c_uint64.from_address(fence.counter).value >= fence.value
            if not is_over and sum(nbytes for _, _, nbytes in self.in_flight) <= most_nbytes:
                return
            self.instance.wait(fence)
            self.in_flight.pop(0)

    def _early_flags(self):
        """A gradient that will not change, as far as is known: what needs no more than the gradient may begin. On its way to other ranks it
        cannot be called back, so there it takes a promise, or a vote; here one that changed all the same is delivered again."""
        is_final = self.is_promised or self.is_releasing or self.is_agreed or self.is_alone and self.n_unchanged_steps >= STEPS_UNTIL_FINAL
        if self.is_first:
            self.is_first = False
            if self.begin is not None:
                self.begin(is_final)
        return _FINAL if is_final else _WHOLE

    def _collect(self, i, grad, flags):
        """Adds a gradient to the bucket."""
        if self.place.is_stream:
            self._collect_on(self.place.current(), grad)
        if grad.is_neg():  # its memory holds the other sign
            grad = grad.resolve_neg()
        address = self._describe(i, grad)
        if self.held[i] is not None:
            flags |= _abi.GRAD_REPLACE
            self._release(i)
        at, words = _ITEM_WORDS * self._pending, self._item_words
        words[at] = self._item_head[i]
        words[at + 1] = flags
        words[at + 2] = self._tensor_address[i]
        self._pending += 1
        self._pending_ids.append(i)
        self._pending_nbytes += self.nbytes[i]
        self.held[i] = grad
        self.held_storage[i] = grad.untyped_storage()
        self.version[i] = math.nan if grad.is_inference() else grad._version
        self.address[i] = address
        self.fired_at[i] = self.fired[i]

    def _collect_on(self, current, grad):
        """The bucket is of one stream."""
        if self._pending and current != self._pending_on:
            self._ship()
        self._pending_on = current
        self.place.keep(grad)

    def _release(self, i):
        """Something else will be this gradient; what was may still be being read."""
        self.released.append((self.held[i], self.held_storage[i]))
        self.released_nbytes += self.nbytes[i]
        self.held[i] = self.held_storage[i] = None

    def _release_all(self):
        """Waits for the reads in flight: backwards without a step would keep one gradient each."""
        self._ship()
        self.instance.drain()
        self.released.clear()
        self.released_nbytes = 0

    def _describe(self, i, grad):
        """Points descriptor i to this gradient; its address."""
        if grad.layout is not torch.strided:
            raise errors.ShapeError(f'the gradient of "{self.table.names[i]}" is sparse ({grad.layout}): use '
                                    "nn.Embedding(sparse=False)", scope="param")
        if grad.dtype is not self.table.dtypes[i]:
            raise errors.DtypeError(f'the gradient of "{self.table.names[i]}" is {grad.dtype}, the parameter was bound '
                                    f"as {self.table.dtypes[i]}", scope="param")
        if grad.shape != self.table.shapes[i]:
            raise errors.ShapeError(f'the gradient of "{self.table.names[i]}" has the shape {list(grad.shape)}, the '
                                    f"parameter was bound as {list(self.table.shapes[i])}", scope="param")
        address = grad.data_ptr()
        at, words = _TENSOR_WORDS * i, self._tensor_words
        words[at + _DATA] = address
        if grad.is_contiguous():
            words[at + _STRIDES] = 0
            words[at + _NBYTES] = self.nbytes[i]
        else:
            self._strides[i][:] = grad.stride()
            words[at + _STRIDES] = C.addressof(self._strides[i])
            reach = 1 + sum((n - 1) * s for n, s in zip(grad.shape, grad.stride()))
            words[at + _NBYTES] = reach * grad.element_size() if grad.numel() else 0
        return address

    def _ship(self, is_last=False):
        """One foreign call for what was collected, and one for what it holds; is_last: nothing can change it any more."""
        n, ids = self._pending, self._pending_ids
        if n == 0:
            return
        items, item_nbytes, stream, fence, record = self._arguments
        nbytes = self._pending_nbytes
        self._pending, self._pending_ids, self._pending_nbytes = 0, [], 0
        instance = self.instance
        if instance.is_closed:
            raise errors.StateError("grads_ready: this optimizer was closed")
        if self.place.is_stream:
            places.tell(instance.stream, self._pending_on)
        status = instance.table.grads_ready(instance.handle, items, n, item_nbytes, stream, fence, record)
        if status < 0:
            for i in ids:  # taken whole or not at all; an earlier shipment of these still counts: REPLACE it next time
                self.version[i], self.fired_at[i] = math.nan, -1
            raise errors.from_record(status, self._record, "grads_ready")
        if self.lent:
            self.in_flight.append((_abi.Fence.from_buffer_copy(self._fence), self.lent, nbytes))
            self.lent = []
            self._free(IN_FLIGHT_NBYTES)
        if not is_last:
            for i, digest in zip(ids, self._digests_of(ids)):
                self.digest[i] = digest

    def _digests_of(self, ids):
        """64-bit digests of the contents of these, in one foreign call: one element counts. The cost is a read of the memory on this
        thread; on a stream, where that would wait, everything looks as it was."""
        if not ids or not self.digest_function:
            return [0] * len(ids)
        if self.instance.is_closed:
            raise errors.StateError("this optimizer was closed")
        addresses, out = (C.c_uint64 * len(ids))(*(self._tensor_address[i] for i in ids)), (C.c_uint64 * len(ids))()
        self.instance.lib.check(self.digest_function(self.instance.handle, addresses, len(ids), out, C.byref(self._record)), self._record, "digest")
        return list(out)

    # ---- at step -----------------------------------------------------------------------------------------------------

    def quiet_ids(self):
        """ids of trainable parameters whose hook has not fired since the last step."""
        fired = self.fired
        return tuple(i for i, _ in self.table.trainable if not fired[i])

    def is_without_gradients(self):
        """Whether no parameter has a gradient, and no other process may have one. What was delivered is dropped then."""
        with self.lock:
            if not self.is_alone or self.table.spread is not None or any(p.grad is not None for _, p in self.table.trainable):
                return False
            if self.is_releasing and (any(self.fired) or self.problem is not None):
                return False
            if any(grad is not None for grad in self.held):
                self.discard()
            self.forget_firings()
            return True

    def complete(self):
        """Ships what has not travelled yet or has changed; returns the ids of all that have a gradient. Raises GradientError
        where there is none of this process's parts of parameters."""
        with self.lock:
            if self.is_releasing and self.problem is not None:  # its gradient is gone
                problem = self.problem
                self.discard()
                self.forget_firings()
                raise problem
            present, todo, n_early, n_changed, is_withdrawn = self._compare()
            if not present and self.is_alone:  # else another rank may have some
                raise errors.GradientError("step: no part of a parameter in this process has a gradient: call backward() before step(), "
                                           "in all processes")
            if n_early:
                self._judge_changes(n_early, n_changed)
            elif self.noted:
                self._judge_changes(len(self.noted), self._n_changed_of_noted())
            elif self.watched is not None and self.watched.noted:
                n_noted = len(self.watched.noted)
                self._judge_changes(n_noted, self.watched.look({i: grad_of(self.table.params[i]) for i in present}))
            if self._is_to_discard(is_withdrawn, any(self.held[i] is not None for i in todo)):
                self.discard()
                todo = present
            in_sets = {i for ids in self.tied_sets for i in ids}
            params = self.table.params
            for i in todo:
                if i not in in_sets:
                    self._collect(i, self._to_deliver(i), _WHOLE)
            self._ship(is_last=True)
            for ids in self.tied_sets:
                self._ship_tied([i for i in ids if params[i].grad is not None])
            self.problem = None
            return present

    def _compare(self):
        """(ids with a gradient, those to ship, how many were shipped early, how many of them the host changed after
        the last backward, whether one that was shipped has no gradient any more)."""
        is_cut = self.table.is_cut
        present, todo, same, n_early, n_changed, is_withdrawn = [], [], [], 0, 0, False
        most = 1 if self.digest_function else 0  # operations in place that may have left the contents as they were
        held, version, address, pending, self.at_rest = self.held, self.version, self.address, set(self._pending_ids), []
        for i, p in self.table.trainable:
            grad = grad_of(p) if is_cut else p.grad
            before = held[i]
            if self.is_releasing and self.fired[i] and self.expected[i] != NEVER:
                if grad is not None:
                    raise errors.StateError(f'release_gradients=True: "{self.table.names[i]}" was given another .grad after its own had been '
                                            "given back")
                present.append(i)
                continue
            if grad is None:
                is_withdrawn = is_withdrawn or before is not None
                if not p.requires_grad:
                    self.at_rest.append(i)
                continue
            present.append(i)
            if before is None or i in self.table.turned:
                todo.append(i)
                continue
            is_in_place = grad is before and grad.data_ptr() == address[i]
            if is_in_place and i in pending:
                continue  # it has not been read yet
            n_early += i not in pending
            if is_in_place and not grad.is_inference() and 0 <= grad._version - version[i] <= most:
                same.append(i)
                continue
            n_changed += self.fired_at[i] == self.fired[i]
            todo.append(i)
        edited = [i for i, now in zip(same, self._digests_of(same)) if now != self.digest[i]]
        return present, todo + edited, n_early, n_changed + len(edited), is_withdrawn

    def _look_of(self, i, grad):
        """What a gradient looks like: equal where it is as it was, as far as is looked at (at the top)."""
        return self._describe(i, grad), self._digests_of([i])[0], self.place.is_stream and grad._version

    def _n_changed_of_noted(self):
        """How many of them the host changed after the last backward."""
        return sum(n_fired == self.fired[i] and (grad_of(self.table.params[i]) is not grad or self._look_of(i, grad) != look)
                   for i, (grad, n_fired, look) in self.noted.items())

    def _is_to_discard(self, is_withdrawn, is_replaced):
        """Whether what was delivered is dropped. is_withdrawn: here one has no gradient any more; is_replaced: another one. Of several
        ranks all come to the same, by a vote in steps that all of them count alike."""
        if self.vote is None:
            return is_withdrawn
        if not self.is_agreed and self.n_until_vote > 1:
            return False  # nothing was
        is_learning = self.n_unchanged_steps < STEPS_UNTIL_FINAL or self.watched is not None and self.watched.n_clean < CLEAN_STEPS
        is_against = self.vote(not self.is_shipping or (is_withdrawn or is_replaced if self.is_agreed else is_learning))
        if is_against is None:  # it failed, as the plugin will, where a rank is gone, or where one alone drops something
            self.vote, self.is_agreed = None, False
            return is_withdrawn or is_replaced
        was_agreed, self.is_agreed = self.is_agreed, not is_against
        if is_against:
            self.n_between_votes *= 2
            self.n_until_vote, self.n_unchanged_steps = self.n_between_votes + 1, 0
        return was_agreed and is_against

    def _judge_changes(self, n_early, n_changed):
        """Switches early shipping off where it only makes gradients travel twice."""
        if n_changed and not self._has_warned_local:
            self._has_warned_local = True
            self.log.warning("gradients were changed between backward and step: with group=... .grad is this rank's own until "
                             "step() adds them up, so clip with clip_norm=..., which knows the norm over all ranks")
        self.n_changed_steps = self.n_changed_steps + 1 if 2 * n_changed > n_early else 0
        self.n_unchanged_steps = self.n_unchanged_steps + 1 if n_changed == 0 else 0
        if not self.is_shipping or self.n_changed_steps < STEPS_UNTIL_OFF:
            return
        self.is_shipping = False
        self.log.warning("gradients were changed after backward in %d steps in a row (clipped, unscaled or averaged over "
                         "processes by the host): from now on they travel at step, without overlap. clip_norm=... keeps the "
                         "overlap", STEPS_UNTIL_OFF)

    def _to_deliver(self, i):
        """The gradient of what is minimized."""
        grad = grad_of(self.table.params[i])
        return grad.neg() if i in self.table.turned else grad

    def _ship_tied(self, ids):
        """Parameters on one storage have one gradient: the sum of theirs."""
        for i in ids:
            flags = _PART | (_abi.GRAD_LAST if i == ids[-1] else _abi.GRAD_MORE)
            self._collect(i, self._to_deliver(i), flags | (_abi.GRAD_REPLACE if i == ids[0] else 0))
            if i != ids[0]:  # _collect replaces what was held; parts must add up
                at = _ITEM_WORDS * (self._pending - 1) + 1
                self._item_words[at] &= ~_abi.GRAD_REPLACE
        self._ship(is_last=True)

    def discard(self):
        """Drops everything that was delivered since the last step."""
        self.is_first = True
        self._pending, self._pending_ids, self._pending_nbytes, self.lent, self.problem = 0, [], 0, [], None
        args = _abi.StepArgs(struct_size=C.sizeof(_abi.StepArgs), flags=_abi.STEP_DISCARD,
                             stream=C.addressof(self.instance.stream))
        self.instance.call(self.instance.table.step, C.byref(args), None, doing="discard")
        for i, grad in enumerate(self.held):
            if grad is not None:
                self._release(i)

    def forget_firings(self):
        """The gradients of this step were dropped; the next backward is the first again."""
        self.fired = [0] * len(self.fired)

    def forget(self, ids):
        """The plugin dropped what was delivered of these (params_changed)."""
        self._ship()
        gone = [self.table.names[i] for i in ids if self.is_releasing and self.fired[i]]
        if gone:
            raise errors.StateError(f'release_gradients=True: "{gone[0]}" was written between backward and step(), and its gradient was given '
                                    "back: write weights after step()")
        for i in ids:
            if self.held[i] is not None:
                self.version[i], self.fired_at[i] = math.nan, -1

    def end_step(self):
        """The step is done and reported, or the fence waited for: nothing is being read any more, or nothing by the time that
        the stream comes to what is enqueued now."""
        with self.lock:
            if self._has_fence and not self.place.is_stream:
                self.instance.wait(self._fence)
            self._free(0 if not self.place.is_stream else IN_FLIGHT_NBYTES)
            n = len(self.held)
            self.held[:], self.held_storage[:] = [None] * n, [None] * n
            self.released.clear()
            self.released_nbytes = 0
            if not self.fixed_count:
                self.expected = [e if e == NEVER or not f or f < e and f != before else f
                                 for e, f, before in zip(self.expected, self.fired, self.fired_before)]
            self.n_until_vote -= 1
            if self.watched is not None and self.watched.end_step():
                self._stop_shipping_unseen()
            self.fired_before, self.fired, self.noted = self.fired, [0] * n, {}
            self.is_first = True

    def _stop_shipping_unseen(self):
        has_begun = self.watched.n_clean >= CLEAN_STEPS
        self.watched, self.is_shipping = None, False
        self.log.log(logging.WARNING if has_begun else logging.INFO,
                     "gradients were changed between backward and step in a way that moves no version counter (.grad.data): from now on they "
                     "travel at step, where every change counts%s",
                     f"; those of up to {WATCHED_EVERY} steps before this were left out" if has_begun else "")
