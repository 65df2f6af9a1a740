# SPDX-License-Identifier: Apache-2.0
"""The parameters that an optimizer binds: names, ties, channel axes; and how a change of the weights is noticed.

Model: the plugin holds the fp32 masters and writes the parameters' memory itself. It keeps a digest of every parameter's
contents that moves with what it writes, and is asked before a step, and before a fetch, what has others now: that was
written by others (a checkpoint loaded after the optimizer was made, an average swapped in, a row set through .data);
what was written and written back is as it was. No step checks by itself ([zenflow] on_overwrite = ask): it would find an
average that is swapped in for an evaluation. Where the plugin keeps no digests (on_overwrite = off) the version counter
decides, which in-place operations of torch move and writes through .data do not.

On a stream (CUDA) the answer to a question is waited for: once in a step, and once in a pass through modules that fetch.

The address (.data = ..., .to(), share_memory_()) says that a parameter is in other memory. The table is made again then: where
the new memory holds what the old one does, converted to its dtype, only the address has changed; else it was written too.
What cannot be followed (another shape, device or layout) is refused by name.
"""
import contextlib
import dataclasses
import re

import torch

from .. import _abi, errors, tensors
from ..instance import Param
from ..places import HOST_THREAD
from . import cut, experts
from .carried import Mirrors, is_carried
from .lanes import words_of
from .processes import declared
from .ranks import number_of
from .values import Bound, Carried

_FLOATS = {torch.float32: tensors.FLOAT32, torch.bfloat16: tensors.BFLOAT16, torch.float16: tensors.FLOAT16}
MAX_NAMES_SHOWN = 8
OFFLOADED = "accelerate's cpu_offload() and disk_offload() take weights away between forwards, for inference alone: train without them"


def _increment_versions(params):
    for p in params:  # before torch 2.6
        torch.autograd.graph.increment_version(p)


with contextlib.suppress(Exception):
    torch.autograd.graph.increment_version([torch.zeros(1)])  # takes a list
    _increment_versions = torch.autograd.graph.increment_version


def split_names(params):
    """params as torch takes them, or (name, parameter) pairs, in groups or not: (list of groups, the names of each beside its
    parameters, {id(parameter): name})."""
    names = {}

    def strip(group):
        entries = [*group["params"]] if not isinstance(group["params"], (torch.Tensor, set)) else []
        named = {at: entry for at, entry in enumerate(entries) if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)}
        if not named:
            return {**group, **({"params": entries} if entries else {})}
        if len(named) < len(entries):
            raise errors.ArgumentError(f"{len(entries) - len(named)} of {len(entries)} parameters have no name: give a name to all of them, or to none")
        names.update({id(param): name for name, param in entries})
        return {**group, "params": [param for _, param in entries], "param_names": [name for name, _ in entries]}

    if isinstance(params, (torch.Tensor, set)):
        return params, names
    entries = [*params]
    if entries and not isinstance(entries[0], dict):
        entries = [{"params": entries}]
    return [strip(entry) if isinstance(entry, dict) and "params" in entry else entry for entry in entries], names


def is_automatic(name):
    """Whether a parameter without a name has it (_unique_names())."""
    return re.fullmatch(r"param\d+\+*", name) is not None


def names_in(model):
    """{id(parameter): name} of all parameters of the model, or {} where there is none."""
    return {id(p): name for name, p in cut.parameters_in(model).items()} if model is not None else {}


def successors(model, groups, known):
    """{id(parameter): parameter} of those in the groups in whose place the model has another one, of no group. known: what
    names_in() gave before. Raises for what cannot be trained by an optimizer that was made before."""
    now = cut.parameters_in(model) if model is not None else {}
    held, params = {id(p) for p in now.values()}, [p for group in groups for p in group["params"]]
    grouped, out = {id(p) for p in params}, {}
    for p in params:
        name = known.get(id(p))
        if id(p) in held or name not in now or id(now[name]) in grouped:
            continue
        if cut.is_cut(now[name]) != cut.is_cut(p):
            raise errors.ParamError(f'"{name}" was cut over processes after the optimizer was made: make it after '
                                    "fully_shard(model) and parallelize_module(model, ...)", scope="param")
        out[id(p)] = now[name]
    return out


def rows_of(model):
    """ids of weights kept as [in, out]: those of modules called Conv1D, GPT-2's transposed linear layer."""
    return {id(module.weight) for module in model.modules()
            if type(module).__name__ == "Conv1D" and getattr(module, "weight", None) is not None
            and module.weight.dim() == 2} if model is not None else set()


def listed(names):
    """Names for a message, cut after some."""
    names = list(names)
    text = ", ".join(f'"{name}"' for name in names[:MAX_NAMES_SHOWN])
    return text if len(names) <= MAX_NAMES_SHOWN else f"{text} and {len(names) - MAX_NAMES_SHOWN} more"


class ParameterTable:
    """The bound parameters in order of their ids, as the groups hold them when it is made. trained: names of those that
    were bound as trainable before: frozen since, they keep their state and are holes, as in torch. is_reduced: gradients are
    summed or averaged over ranks. place: where they all must be; on the host's thread those of other devices have mirrors. config: a function
    that gives the instance's. updates_beside: updates run beside the trainer, during
    backward or behind step(); None: where copies from and to its devices do. rule: of groups that name none."""

    def __init__(self, groups, names, *, rows, fused, declare=None, is_reduced=False, own_numbers=None, trained=(), place=HOST_THREAD,
                 config=None, mirrors=None, updates_beside=None, rule=None):
        self.params = [p for group in groups for p in group["params"]]
        self.group_of = [number for number, group in enumerate(groups) for _ in group["params"]]
        if len({id(p) for p in self.params}) < len(self.params):
            raise errors.ParamError("a parameter stands in the groups twice: the plugin would update it twice", scope="param")
        self.names = self._unique_names(names)
        self.frozen = [not p.requires_grad and p.grad is None and name not in trained for p, name in zip(self.params, self.names)]
        for param, name, is_frozen in zip(self.params, self.names, self.frozen):
            _check(param, name, is_frozen, place)
        self.place, self.mirrors = place, mirrors or Mirrors()
        self.is_carried = not place.is_stream and any(is_carried(cut.local(p)) for p, is_frozen in zip(self.params, self.frozen) if not is_frozen)
        if self.is_carried:
            found = [p for p, is_frozen in zip(self.params, self.frozen) if not is_frozen]
            self.mirrors.prepare(found, not is_reduced and all(is_carried(cut.local(p)) for p in found))
        self.values = (Carried if self.is_carried and self.mirrors.carry else Bound)(self)
        self.turned = frozenset()  # ids of those whose groups maximize
        self.trainable = [(i, p) for i, p in enumerate(self.params) if not self.frozen[i]]
        self.spread = cut.spread_of(self.trained, [self.names[i] for i, _ in self.trainable])
        self.is_cut = any(map(cut.is_cut, self.params))
        self.shapes = [p.shape for p in self.now()]
        self.dtypes = [p.dtype for p in self.params]
        self.tied_to = self._find_ties([0 if is_frozen else p.data_ptr() for p, is_frozen in zip(self.now(), self.frozen)])
        self._check_ties()
        self.aliases = [p.detach() for p in self.now()]  # the bound memory, alive whatever becomes of the parameter
        self.experts = []  # names of those whose first axis was found to count them
        # what threads update beside the trainer has a master of its own: what the model reads changes at a fetch, or in step, alone
        if updates_beside is None:
            updates_beside = self.is_carried and self.mirrors.are_beside(self.trained)
        home = "host" if updates_beside and not place.is_stream and config()["zenflow.mode"] == "exact" else "plugin"
        is_alone = self.spread is not None and cut.is_decided_alone(config())
        copies = {i: (self.spread.counts(at), self.spread.diverges(at, is_alone)) for at, (i, _) in enumerate(self.trainable)} if self.spread else {}
        by_matrix = {number for number, group in enumerate(groups) if (group.get("rule") or rule) == "muon"}  # in step() itself
        self.decls = [self._declare(i, declared(declare, name, param), rows, fused, is_reduced, own_numbers,
                                    "plugin" if self.group_of[i] in by_matrix else home, *copies.get(i, (True, False)))
                      for i, (name, param) in enumerate(zip(self.names, self.params))]
        self.numbers = {id(p): i for i, p in enumerate(self.params)}
        self.instance = None
        self._given_back = set()  # of these the memory is gone and there is no other
        self.ids = [i for i, _ in self.trainable if self.shapes[i].numel()]  # those that the plugin writes
        self.turn(groups)
        self.remember()

    @property
    def trained(self):
        return [p for _, p in self.trainable]

    @property
    def told(self):
        return self.values.told

    @property
    def carries(self):
        """Whether gradients come where values are: on one rank, where all lie on devices."""
        return self.values.carries

    def turn(self, groups):
        """Reads which groups maximize; whether others do than before."""
        numbers, before = {number for number, group in enumerate(groups) if group.get("maximize")}, self.turned
        self.turned = frozenset(i for i, _ in self.trainable if self.group_of[i] in numbers) if numbers else frozenset()
        return self.turned != before

    def now(self):
        """The parameters; of those that are cut this process's part, and of those on a device the mirrors."""
        if self.is_carried:
            return [cut.local(p) if is_frozen else self.mirrors.of(p) for p, is_frozen in zip(self.params, self.frozen)]
        return [cut.local(p) for p in self.params] if self.is_cut else self.params

    def names_of_16_bits(self):
        """Names of trained parameters that have an fp32 master beside their own values."""
        return {self.names[i] for i, p in self.trainable if p.element_size() < 4}

    def _unique_names(self, names):
        """Given names; "paramN" for those without; a repeated name gets its position."""
        given = [names.get(id(param), "").replace("_orig_mod.", "") for param in self.params]  # torch.compile's wrapper
        used, out = set(), []
        for i, name in enumerate(given):
            if not name:
                name = f"param{i}"
                while name in given:  # of one that was there before
                    name += "+"
            if name in used:
                name = f"{name}#{i}"
                while name in used or name in given:
                    name += "+"
            used.add(name)
            out.append(name)
        return out

    def _find_ties(self, addresses):
        """For each parameter the earlier trainable one with the same memory, or None."""
        first, ties = {}, []
        for i, shape in enumerate(self.shapes):
            owner = first.setdefault(addresses[i], i) if shape.numel() and not self.frozen[i] else None
            ties.append(None if owner == i else owner)
        return ties

    def _check_ties(self):
        """Raises where a tied parameter lies in the memory of another in another way."""
        params = self.now()
        for i, owner in enumerate(self.tied_to):
            if owner is not None and self.shapes[i] == self.shapes[owner] and params[i].stride() != params[owner].stride():
                raise errors.ParamError(
                    f'"{self.names[i]}" lies in the memory of "{self.names[owner]}" in another way (strides {params[i].stride()}, '
                    f"{params[owner].stride()}): tied weights are one matrix to the plugin. Use one Parameter for both, and turn it where "
                    "it is read (weight.t())", scope="param")

    def owner(self, i):
        """The id whose memory i shares, or i."""
        return i if self.tied_to[i] is None else self.tied_to[i]

    def _declare(self, i, said, rows, fused, is_reduced, own_numbers, home, counts, always):
        """said: by declare=. counts, always: of what is a copy (cut.py)."""
        param, name = self.params[i], self.names[i]
        axis = said["channels"] or ("rows" if id(param) in rows or (fused or {}).get(id(param)) else "columns")
        if axis not in ("rows", "columns"):
            raise errors.ArgumentError(f'declare("{name}"): channels = {axis!r}; allowed: "rows", "columns", None')
        own, second = said["reduced_over"], said["shared_over"]
        if own is not None and id(own) not in own_numbers:
            raise errors.ArgumentError(f'declare("{name}"): reduced_over is a group that no parameter had when the optimizer was made')
        if said["counts_in_norm"] is not None:
            counts = bool(said["counts_in_norm"])
        tensor = self.aliases[i]
        if self.frozen[i] and not _is_known(tensor, self.place):
            tensor = torch.empty(0, dtype=torch.float32, device=cut.local(self.trained[0]).device if self.place.is_stream and self.trained else "cpu")
        has_mirror = self.is_carried and not self.frozen[i] and is_carried(cut.local(param))
        return Param(name, tensor, group=self.group_of[i], frozen=self.frozen[i], tied_to=self.tied_to[i],
                     origin=self.mirrors.origin(param) if has_mirror else None, reduce_group=own_numbers[id(own)] if own is not None else 0,
                     reduce_group2=number_of(second) if second is not None else 0,
                     home="resident" if always else home, counts_in_norm=counts, carries=self.carries and not self.frozen[i],
                     average=is_reduced and bool(said["average"]), channels=axis, n_batch_axes=self._n_batch_axes(i, said["n_batch_axes"], fused))

    def _n_batch_axes(self, i, n, fused):
        param, name = self.params[i], self.names[i]
        if n is None and param.dim() == 3 and not self.frozen[i] and (experts.is_named_so(name) if fused is None else id(param) in fused):
            self.experts.append(name)
            return 1
        return n or 0

    # ---- changes of weights ------------------------------------------------------------------------------------------

    def watch(self, instance):
        """The instance is bound to this table."""
        self.instance = instance
        self.told.watch(instance, self.ids)

    def settle(self):
        """All updates come into place, but where others wrote: the training ends here. False: nothing came, since where it
        would come to is no longer the parameters' memory."""
        if any(self.is_gone(i) for i in self.ids) or self.has_moved(self.ids):
            return False
        with self.over_no_edit():
            self.instance.flush()
        return True

    @contextlib.contextmanager
    def over_no_edit(self):
        """Within it the plugin writes values, but over none that others wrote, whose ids it gives."""
        edited = self.find_edited(self.ids, hold=True)
        kept = self.values.kept(edited)
        yield edited
        for i, values in kept.items():
            self.aliases[i].data.copy_(values)
        self.push([i for i in self.ids if i not in edited])

    def remember(self):
        """Takes the weights of now: they is the plugin's own doing."""
        params = self.now()
        n, trained = len(params), [(i, params[i]) for i, _ in self.trainable]
        self.versions, self.addresses, self.strides, self.told.put = [0] * n, [0] * n, [()] * n, set()
        for i, p in trained:
            self.versions[i], self.addresses[i], self.strides[i] = p._version, p.data_ptr(), p.stride()

    def say_written(self, ids):
        """Moves the version counters of what the plugin wrote, as torch's optimizers do."""
        params = self.now()
        _increment_versions([cut.local(self.params[i]) for i in ids])
        for i in ids:
            self.versions[i] = params[i]._version
        self.mirrors.say_written(self.params[i] for i in ids)

    def put_edits(self, edits):
        """{id: values} into the weights, as if others had written them, whatever stood there before."""
        self.mirrors.give_back(self.params[i] for i in edits)
        for i, values in edits.items():
            self.aliases[i].copy_(values)
        self.push(edits)
        self.put(edits)

    def pull(self, ids):
        """Brings what others wrote on a device of these into their mirrors."""
        if self.is_carried:
            self.mirrors.pull(self.params[i] for i in ids if not self.frozen[i])

    def push(self, ids, is_ahead=False):
        """Brings what was written into mirrors of these to the devices. is_ahead: nobody reads it there before follow()."""
        if self.is_carried:
            self.mirrors.push([self.params[i] for i in ids])
            if not is_ahead:
                self.follow(ids)

    def follow(self, ids):
        """The next reader of these on the devices finds what was pushed."""
        if self.is_carried:
            self.mirrors.follow([self.params[i] for i in ids])

    def put(self, ids):
        """Takes these so that what they show counts as written by others, all of it."""
        self.told.put.update(ids)

    def edited_by_element(self, changed, moved):
        """{id: values} of those, written in place or in other memory, that adopt() can take over: they are in the bound memory's form."""
        params, edited = self.now(), {}
        for i in sorted({self.owner(i) for i in (*changed, *moved)} - self.told.put):
            p = params[i].detach()
            if self.is_gone(i) or p.dtype is not self.dtypes[i] or p.device != self.aliases[i].device or p.layout is not torch.strided:
                continue
            if i in changed if self.values.holds(i, p) else i in moved and not self.values.is_shown(i, p):
                edited[i] = p
        return edited

    def find_edited(self, ids, hold=False):
        """Those of ids whose bound memory others wrote since, in order. hold: the plugin leaves these alone until
        it is asked about them again."""
        self.pull(ids)
        asked = [i for i in ids if not self.frozen[i] and self.shapes[i].numel() and self.mirrors.may_be_edited(self.params[i])]
        return sorted({*self.values.edited(asked, hold), *self.told.put.intersection(ids)})

    def accept(self, ids):
        """The plugin wrote over edits of these: what they show is its own."""
        if self.told.has_digests:
            self.instance.written(ids, _abi.WRITTEN_ACCEPT)

    def find_changed(self, held=None):
        """(ids of trainable parameters that others wrote since, ids of those in other memory); raises for one that
        cannot be followed. held: ids (of Python) of the parameters that count; None = all."""
        shapes, params, ids, moved = self.shapes, self.now(), [], []
        for i, p in self.trainable:
            if held is not None and id(p) not in held:
                continue  # taken out of the groups
            ids.append(i)
            if self._lies_elsewhere(i, params[i]) or params[i].shape != shapes[i]:
                self.check_successor(i, p)
                moved.append(i)
        if any(self.is_gone(i) for i in moved):
            return [i for i in ids if params[i]._version != self.versions[i]], moved
        return self.find_edited(ids), moved

    def is_in_place(self, i):
        """Whether it is in the memory that is bound."""
        p = self.params[i]
        return (self.mirrors.of(p) if self.is_carried else cut.local(p)).data_ptr() == self.addresses[i]

    def has_moved(self, ids):
        """Whether one of these is in other memory than is bound, or lies in it in another way."""
        params = self.now()
        return any(self._lies_elsewhere(i, params[i]) for i in ids)

    def _lies_elsewhere(self, i, p):
        """p: the parameter i of now()."""
        return p.data_ptr() != self.addresses[i] or p.stride() != self.strides[i]

    def relocate(self):
        """Binds again what is in other memory with the same values, whatever waits to be fetched: it comes there. What cannot
        go on so (other values, another dtype) is left to follow()."""
        params, moved = self.now(), {}
        for i in self.ids:
            if params[i].data_ptr() == self.addresses[i]:
                continue
            if self._is_same_elsewhere(i, params[i]):
                moved[i] = params[i].detach()
            elif self.is_gone(i) and i not in self._given_back:  # what is on its way needs a place to go to
                owner = self.owner(i)
                moved[i] = moved[owner] if owner in moved else torch.zeros_like(params[i], memory_format=torch.contiguous_format)
        addresses = [moved[i].data_ptr() if i in moved else address for i, address in enumerate(self.addresses)]
        if not moved or self._find_ties(addresses) != self.tied_to:
            return
        decls = [dataclasses.replace(decl, tensor=moved[i]) if i in moved else decl for i, decl in enumerate(self.decls)]
        with self.instance.unfetched():  # nothing is written
            self.instance.bind(decls)
        self.decls = decls
        for i, alias in moved.items():
            if alias.data_ptr() == params[i].data_ptr():
                self.aliases[i], self.addresses[i], self.strides[i] = alias, alias.data_ptr(), alias.stride()
                self._given_back.discard(i)
            else:
                self._given_back.add(i)

    def _is_same_elsewhere(self, i, p):
        return p.dtype is self.dtypes[i] and p.shape == self.shapes[i] and p.device == self.aliases[i].device \
            and p.layout is torch.strided and not p.is_neg() and not p.is_inference() and p.untyped_storage().nbytes() > 0 \
            and (self.values.holds(i, p.detach()) or self.values.is_shown(i, p.detach()))

    def is_gone(self, i):
        """The bound memory was given back or exchanged under its storage (resize_(0), share_memory_())."""
        return self.aliases[i].data_ptr() != self.addresses[i]

    def check_successor(self, i, p):
        """Raises where p cannot take the place of the parameter that was bound as i."""
        name = self.names[i]
        _check(p, name, self.frozen[i], self.place, f"after {_form(self.aliases[i])} was bound, ")
        p = cut.local(p)
        if p.shape != self.shapes[i]:
            raise errors.ShapeError(f'"{name}" has the shape {list(p.shape)} now, {list(self.shapes[i])} when it was '
                                    "bound: its moments do not fit; make a new optimizer for the new model", scope="param")

    def find_rewritten(self, before, written):
        """ids of parameters that before's table trained too and that hold other values now; written: ids of before's
        that were written in place."""
        numbers = {name: number for number, name in enumerate(before.names)}
        edited = []
        for i, _ in self.trainable:
            old = numbers.get(self.names[i])
            if old is None or before.frozen[old]:
                continue  # begins from the values it has
            is_moved = (self.addresses[i], self.strides[i]) != (before.addresses[old], before.strides[old])
            is_other = is_moved and not before.values.holds(old, self.aliases[i])
            if not before.values.is_shown(old, self.aliases[i]) if is_other else old in written:
                edited.append(i)
        return edited

    def newest(self, i):
        """The values of i as the plugin's masters are, in host memory."""
        master = torch.empty(self.shapes[i], dtype=torch.float32, device="cpu")
        with self.instance.unfetched():
            self.instance.export({self.owner(i): master})
        return master.to(self.dtypes[i])

    def shown(self, i):
        """A copy of what the model reads."""
        return cut.local(self.params[i]).detach().clone()

    def empty(self, ids):
        """Values in mirrors where gradients are; their owners' mirrors alone. Nothing is on its way there."""
        for i in ids:
            self.aliases[i].copy_(self.newest(i))
        self.mirrors.give_back(self.params[i] for i in ids)


def same_words(one, other):
    """Which elements have the same bits."""
    return words_of(one) == words_of(other)


def _is_known(tensor, place):
    """Whether the plugin can be told of this tensor, which it will neither read nor write."""
    return tensors.torch_device(tensor) == (place.device_type, place.number) and tensor.layout is torch.strided \
        and tensor.dtype in _FLOATS and not _is_wrapper(tensor)


def _is_wrapper(param):
    """Whether it is a subclass whose values lie in other tensors (quantized weights of torchao)."""
    if type(param) in (torch.nn.Parameter, torch.Tensor) or not param.numel():
        return False
    try:
        return param.data_ptr() == 0
    except RuntimeError:
        return True


def _form(tensor):
    return f"{tensor.dtype} on {tensor.device}"


def _check(param, name, is_frozen, place, when=""):
    """Refuses what the plugin could not take, said with the parameter's name before anything is bound. What is frozen may be anything
    (packed 4-bit weights, other devices), as with torch."""
    if is_frozen:
        return
    if cut.is_cut(param):
        cut.check(param, name, when)
        param = cut.local(param)
    if param.device.type == "meta" or place.is_stream and tensors.torch_device(param) != (place.device_type, place.number):
        what = f"has no memory (device meta): materialise it. {OFFLOADED}" if param.device.type == "meta" else \
            f"is on {param.device}, what is trained with it on {place.name}: make an optimizer for each device, and clip and " \
            "skip steps jointly by yourself"
        raise errors.DeviceError(f'"{name}" {when}{what}', scope="param")
    if param.is_inference():
        raise errors.ParamError(f'"{name}" {when}is an inference tensor (made under torch.inference_mode()): autograd cannot '
                                "train it; make the model outside", scope="param")
    if param.is_neg():
        raise errors.ParamError(f'"{name}" {when}is negated lazily, its memory holds the other sign: use resolve_neg()',
                                scope="param")
    if param.layout is not torch.strided:
        raise errors.ShapeError(f'"{name}" {when}is sparse ({param.layout}); only dense parameters are supported',
                                scope="param")
    if param.dtype not in _FLOATS:
        way_out = f": keep torch.view_as_real({name}) as the parameter, and take torch.view_as_complex() of it in forward" \
            if param.dtype.is_complex else ""
        raise errors.DtypeError(f'"{name}" {when}is {param.dtype}; supported: float32, bfloat16, float16{way_out}', scope="param")
    if _is_wrapper(param):
        raise errors.ParamError(f'"{name}" {when}is a {type(param).__name__}, a tensor subclass that has no memory of its own: the plugin trains '
                                "plain tensors. Freeze it, or keep plain weights and convert them in forward", scope="param")
    if param.numel() and param.untyped_storage().nbytes() == 0:
        raise errors.ParamError(f'"{name}" {when}has no memory (its storage was given back): put its values in place before '
                                "the step", scope="param")
