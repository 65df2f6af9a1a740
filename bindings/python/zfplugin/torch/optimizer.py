# SPDX-License-Identifier: Apache-2.0
"""ZenFlow: the plugin as a torch.optim.Optimizer.

Model: param_groups are the source of truth: lr, betas, eps and weight_decay are read from them at every step, so LR
schedulers and hand-written schedules work as with torch's own. The plugin's instance is made in the constructor (a wrong
configuration fails there); parameters are bound when the first step begins, so a model may be loaded, moved or extended
until then at no cost. What the plugin keeps (masters, moments, windows) is not in .state: state_dict() asks the plugin for
it.

What is bound, and how it follows later changes of weights and parameters, is binding.py's.

The host is torch's CPU thread, or the streams of one CUDA device (devices.py): what is said below of "when step() returns" is
there in stream order: all parameters are what the model should read next. With fetch=True they are fetched by the model's modules
before their forward (fetch.py).
"""
import functools
import logging
import weakref

import torch

from .. import errors
from ..instance import Instance, _report
from ..signals import whole
from . import cut, devices, figures, moments, muon, processes
from . import groups as hyper_groups
from .binding import Binding
from .fetch import Fetcher
from .hooks import outside_of_graphs
from .parameters import OFFLOADED, listed, names_in, split_names, successors
from .ranks import ALL, number_own, open_ranks
from .residency import Residency
from .saving import FinalWeights, Tally
from .states import States


class ZenFlow(figures.Figures, Residency, States, torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101) with ZenFlow's offload (arXiv 2505.12242).

    params: parameters, (name, parameter) pairs (model.named_parameters()), or groups of either. Names are used in
        errors and in saved states; without them parameters are param0, param1, ... in order.
    lr, betas, eps, weight_decay: as in torch.optim.AdamW; per group too; read at every step. eps, weight_decay: None = 1e-8 and 0.01, with rule
        "muon" 1e-7 and 0.1.
    config: path of an INI file, INI text, {"section.key": value}, "section.key=value", or a list of these, of which the later ones
        hold; None = the plugin's defaults.
    rule: "adamw", "adam" (decay as L2), "sgd", "sgd_nesterov" (momentum = betas[0]), "lion", or "muon" with the options of torch.optim.Muon
        (muon.py); per group too, kept while it lives. Or a
        zfplugin.RuleCallback, a compiled function, for groups that name none.
    clip_norm: clip the gradient's global norm to it inside the plugin (0 = off), instead of clip_grad_norm_.
    model: the module, for names, for the channel axis of Conv1D layers, and needed by fetch.
    fetch: "I read a weight in the forward of the module that holds it; before anything else I call synchronize()." The host goes on
        updating after step() returns, and forward pre-hooks of the model's modules wait for their parameters (fetch.py). Default: when
        step() returns, every weight is the newest.
    declare: callable (name, parameter) -> None, or what is otherwise than by default, as a dict: "channels", "rows" or "columns";
        "n_batch_axes", the number of leading axes that count independent matrices (stacked layers), by default 1 of experts (experts.py);
        with several processes "reduced_over", "shared_over", "counts_in_norm" and "average" (processes.py).
    overlap: gradients travel during backward, and updates begin under it; at step each is compared with what travelled, which reads it once
        more on a CPU, and travels again where it changed. On CUDA, where contents are not compared, it says that nobody writes gradients
        through .data or numpy. False: gradients are read at step. Default: True with group= on a CPU, and where torch copies on streams of the
        device; else False.
    group: a torch.distributed process group whose members train as one, each on its own batch, without DDP: the plugin averages
        gradients over them, and with [shard] stage = 1 each keeps a part of the optimizer's state. Every member makes the
        optimizer, over the same weights. None = this process alone. DTensors need no group: their meshes tell (cut.py). Where
        they are tensor parallel alone, group= may be the other axis, over which nobody has summed their gradients.
    norm_group: where the model is spread over processes (tensor, pipeline parallel): the group of all that train it together,
        over which the gradient norm adds up; group= is then of those that have the same part of it, or None. All of them make
        the optimizer, bind and step.
    sharded_state: with group, state_dict() and .state hold this process's rows alone, as DTensors over that group (sharded.py).
    release_gradients: give each gradient back during backward: its .grad is None once it was shipped, and its memory free once it was
        read. Nobody else sees it then: clip with clip_norm, not with clip_grad_norm_, which would find nothing. The number of backwards of
        a step; True is one. Not with other processes.
    releasable: release() will be called (residency.py): as much page-locked host memory is kept for it as the plugin takes on the device.
    device: "cuda": the plugin's own CUDA backend, which windows need there, and which never ran on a GPU yet. Default: the plugin computes
        in host memory, and torch carries gradients and values of parameters on any other device (carried.py).
    options_of_torchs: fused, foreach and the like: None and False are taken, anything else is refused with the reason.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=None, weight_decay=None, *, config=None, rule="adamw", clip_norm=0.0,
                 model=None, fetch=False, declare=None, overlap=None, group=None, norm_group=None, release_gradients=0, releasable=False,
                 sharded_state=False, device=None, **options_of_torchs):
        self._binding = None
        if fetch and model is None:
            raise errors.ArgumentError("fetch=True needs model=...: its modules wait for their parameters")
        if model is not None and not isinstance(model, torch.nn.Module):
            raise errors.ArgumentError(f"model is a {type(model).__name__}; need the torch.nn.Module that is trained")
        if isinstance(model, torch.jit.ScriptModule):
            raise errors.ArgumentError("model is a torch.jit.ScriptModule, which takes none of the hooks that its state_dict() and forward "
                                       "need: leave model= out, and flush() before you save")
        if not isinstance(release_gradients, int) or release_gradients < 0:
            raise errors.ArgumentError(f"release_gradients = {release_gradients!r}; allowed: 0, or the number of backwards of a step")
        if release_gradients and (overlap is False or (group or norm_group) is not None):
            raise errors.ArgumentError("release_gradients=True gives gradients back during backward: not with overlap=False, group= or norm_group=")
        self.log = logging.getLogger("zfplugin")
        self.clip_norm = clip_norm
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._is_epoch_end = False
        self._state = moments.State(self._read_moments)
        in_model = cut.parameters_in(model) if model is not None else {}  # before `params`, which may not have been read yet
        groups, self._names = split_names(params)
        for name, param in in_model.items():
            self._names.setdefault(id(param), name)
        self._rule, shared = rule if isinstance(rule, str) else None, {"eps": eps, "weight_decay": weight_decay}
        if isinstance(groups, list):
            groups = muon.prepared(groups, self._rule, shared, model, self._names, self.log)
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8 if eps is None else eps, "weight_decay": 1e-2 if weight_decay is None else weight_decay,
                                  "maximize": bool(options_of_torchs.pop("maximize", None))})
        held = [(self._names.get(id(p), f"param{i}"), p) for i, p in enumerate(p for group_ in self.param_groups for p in group_["params"])]
        if self._is_cut():
            if release_gradients:
                raise errors.ArgumentError("release_gradients=True where parameters are cut over processes: FSDP gives them back by itself")
            if fetch:
                raise errors.ArgumentError("fetch=True cannot be: parameters are cut over processes, and fully_shard gathers them before "
                                           "the modules' hooks would fetch them; leave it out")
            norm_group = processes.norm_group_of(group, norm_group, held)
        log = self.log

        def make_instance(*, place, **more):  # no reference to this optimizer, which goes when it is dropped
            return Instance(config, fetch=fetch, rule="adamw" if rule == muon.NAME else rule, log=log, name="torch",
                            before=["zenflow.on_overwrite=ask"],  # what others wrote is asked for (parameters.py); no step finds it by itself
                            releasable=releasable, place=place, **more)

        self._device = devices.checked(device)
        self._place = self._find_place()
        instance = make_instance(place=self._place)
        hyper_groups.refuse(options_of_torchs, instance.lib)
        if sharded_state and (group is None or self._is_cut()):
            raise errors.ArgumentError("sharded_state=True needs group=..., over whose processes the state lies, and parameters that are no DTensors")
        others, stage = processes.groups_of(declare, held), int(instance.config()["shard.stage"])
        if others["reduced_over"] and (norm_group := norm_group or group) is None:
            raise errors.ArgumentError("reduced_over of declare=... needs norm_group=...: the group of all processes that train the model together")
        if (group or norm_group) is not None and stage == 3:
            raise errors.ConfigError("[shard] stage = 3 with group=: a module reads its parameters where they are; shard them "
                                     "with FSDP2 instead, fully_shard(model), and make the optimizer without group=")
        self._ranks = open_ranks(group, norm_group, others, int(instance.config()["host.deadline_ms"]))
        self._is_together = sharded_state or self._ranks is not None  # state_dict() is of all processes, as torch's
        self._meshes = {number: torch.distributed.DeviceMesh.from_group(of, "cpu") for number, of in self._ranks.groups.items()} \
            if sharded_state and self._ranks is not None else {}
        self._make_instance = functools.partial(make_instance, collectives=self._ranks,
                                                norm_group=ALL if norm_group is not None else 0)
        if self._ranks is not None:
            instance.close()  # it was made for what is wrong with the arguments, and for the deadline
            instance = self._make_instance(place=self._place)
        self._fetcher = Fetcher(model) if fetch else None
        self._handles = [self._fetcher.handles] if fetch else []  # lists of hooks to take off in the end
        self._final_weights = None
        self._make_binding = functools.partial(
            Binding, rule=self._rule, model=self._model,
            table_options={"declare": declare, "is_reduced": self._ranks is not None,
                           "own_numbers": number_own(others["reduced_over"]), "updates_beside": fetch or overlap},
            feed_options={"overlap": overlap, "n_releasing": int(release_gradients),
                          "agree": self._ranks.agree if self._ranks is not None else None},
            fetcher=self._fetcher, handles=self._handles, log=self.log)
        self._begin(instance)
        hyper_groups.refuse_turns(self, self._names)
        if model is not None:
            self.attach(model)

    def _begin(self, instance):
        """Nothing is bound yet."""
        self._tally = Tally(instance, self.log)
        held = hyper_groups.ids(self.param_groups)  # no id outlives its parameter
        self._names_in_model = {number: name for number, name in names_in(self._model()).items() if number in held}
        self._instance, self._binding, self.last_report = instance, None, None
        self._finalizer = weakref.finalize(self, _close, instance, self._handles, self._tally, self._ranks)
        instance.on_superseded = self._finalizer

    # ---- torch.optim.Optimizer ---------------------------------------------------------------------------------------

    @whole
    def add_param_group(self, param_group):
        """As torch's. After the first step it binds again, at once: whole or not at all."""
        names = {}
        if isinstance(param_group, dict) and "params" in param_group:
            (param_group,), names = split_names([param_group])
            if any(("param_names" in group) != ("param_names" in param_group) for group in self.param_groups):
                raise errors.ArgumentError("parameters of some groups have names, of others none: name all of them, or none")
            param_group, *rest = muon.prepared([param_group], self._rule, {}, self._model(), {**self._names, **names}, self.log)
            if rest:
                raise errors.ArgumentError('a group of rule="muon" that is added has matrices of hidden layers alone: add the others in a group of their own')
        super().add_param_group(param_group)
        binding = self._binding
        before = self._names if binding is None else binding.names
        try:
            hyper_groups.check(self.param_groups[-1], len(self.param_groups) - 1)
            if binding is None:
                self._names = {**before, **names}
            else:
                binding.names = {**before, **names}
                binding.follow(self.param_groups)
        except BaseException:
            if binding is not None:
                binding.names = before
            self.param_groups.pop()
            raise

    @outside_of_graphs
    @whole
    @torch.no_grad()
    def step(self, closure=None):
        """One optimizer step over .grad of the parameters. Returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._forget_copies()
        is_first = self._binding is None
        self.bind()
        self._take_written()
        binding = self._binding
        binding.follow(self.param_groups, is_step=not is_first)
        if binding.feed.is_without_gradients():
            self._say_no_gradient()
            return loss
        looked = self._look()
        self.last_report = _report(binding.step(self.param_groups, self.clip_norm, self._is_epoch_end))
        if looked is not None:
            self._watch(looked)
        self._is_epoch_end = False
        self._tally.made_step()
        self._say_skipped()
        return loss

    @outside_of_graphs
    @whole
    def zero_grad(self, set_to_none=True):
        """As torch's. With release_gradients it drops what backward gave since the last step, of which .grad has nothing."""
        super().zero_grad(set_to_none)
        if self._binding is not None:
            with self._instance.lock:
                self._binding.feed.drop_released()

    def __deepcopy__(self, memo):
        raise TypeError("a ZenFlow optimizer cannot be copied: its masters and moments live in the plugin. Make a new "
                        "one and load_state_dict(old.state_dict()) into it")

    def __reduce_ex__(self, protocol):
        raise TypeError("a ZenFlow optimizer cannot be pickled: its masters and moments live in the plugin. Save "
                        "optimizer.state_dict() instead of the optimizer")

    # ---- what only this optimizer has --------------------------------------------------------------------------------

    @whole
    def bind(self):
        """Binds the parameters now instead of at the first step: plans and takes all memory. Idempotent."""
        if self._binding is None:
            self._take_successors()
            place, before = self._find_place(), self._place
            if (place.kind, place.number) != (before.kind, before.number):
                self._place = place  # the model was moved after the optimizer was made
                if self._ranks is not None:
                    self._instance.close()  # one instance at a time exchanges over them
                self._exchange(self._make_instance(place=place))
            self._binding = self._make_binding(self._instance, self.param_groups, self._names)
            self.log.info("%s", self.holdings())

    def _take_successors(self):
        """Before anything is bound: parameters that the model has by now in place of those it had (a resized embedding, a new
        head, load_state_dict(assign=True), to_empty()) take their places in the groups, of any shape."""
        found = successors(self._model(), self.param_groups, self._names_in_model)
        if not found:
            return
        names = [self._names_in_model[number] for number in found]
        for group in self.param_groups:
            group["params"][:] = [found.get(id(p), p) for p in group["params"]]
        self._names.update({id(p): self._names.get(number, name) for (number, p), name in zip(found.items(), names)})
        self.log.info("the model has other parameters than when the optimizer was made; these are trained instead: %s", listed(names))

    @whole
    def attach(self, model):
        """From now on the model's state_dict() holds what flush() would give (saving.py). model= does it."""
        if self._final_weights is not None and self._final_weights.model() is model:
            return
        self._final_weights = FinalWeights(model, self._current_binding, self._tally)
        self._handles.append(self._final_weights.handles)

    def _restart(self):
        """As before the first step; weights as flush() leaves them."""
        binding = self._followed("load_state_dict")
        self._drop_delivered(binding)
        binding.flush()
        instance = self._make_instance(place=self._place)
        self._names = self._binding.names
        self._binding.feed.detach()
        self._exchange(instance)

    def _exchange(self, instance):
        """This instance instead of the one before; nothing is bound."""
        self._finalizer.detach()
        self._instance.close()
        self._handles[:] = []
        if self._fetcher is not None:
            self._fetcher.unbind()
            self._handles.append(self._fetcher.handles)
        self._begin(instance)
        if self._final_weights is not None:
            self._final_weights.tally = self._tally
            self._handles.append(self._final_weights.handles)

    @whole
    @torch.no_grad()
    def flush(self):
        """Closes every window: afterwards the parameters are the final weights. Call it at the end of training. Before the
        first step there is nothing to do."""
        self._forget_copies()
        if self._binding is not None:
            self._followed("flush").flush()
            self._tally.flushed()

    @whole
    def drain(self):
        """Waits for updates in flight; windows stay open."""
        self._bound("drain")
        self._instance.drain()

    @whole
    def synchronize(self):
        """With fetch=True: every weight is the newest afterwards, for a reader or writer outside of forward."""
        if self._binding is not None:
            self._binding.fetch()

    @whole
    @torch.no_grad()
    def params_changed(self, params=None, reset=False):
        """The caller wrote parameters (default: all); moments are kept unless reset. Writes are noticed by themselves: this
        is for resetting."""
        binding = self._followed("params_changed")
        ids = [binding.id_of(p) for p in params] if params is not None else [i for i, _ in binding.table.trainable]
        binding.resynchronise(ids, reset, is_told=True)

    @whole
    def export(self):
        """{name: float32 tensor}: the weights that flush() would give; nothing changes."""
        table = self._bound("export").table
        out = {table.names[i]: torch.empty(table.shapes[i], dtype=torch.float32, device="cpu") for i, _ in table.trainable}
        owners = {i: out[table.names[i]] for i, _ in table.trainable if table.tied_to[i] is None}
        self._instance.export({i: tensor for i, tensor in owners.items() if tensor.numel()})
        for i, _ in table.trainable:
            if table.tied_to[i] is not None:
                out[table.names[i]] = owners[table.tied_to[i]]
        self._tally.gave_final()
        return out

    def end_epoch(self):
        """The next step is marked as the last of an epoch."""
        self._is_epoch_end = True

    @whole
    def close(self):
        """Ends the plugin's instance and takes its hooks off the parameters. Idempotent."""
        self._finalizer()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _rules(self):
        return hyper_groups.rules(self.param_groups, self._rule)

    def _is_cut(self):
        return any(cut.is_cut(p) for group in self.param_groups for p in group["params"])

    def _bound(self, doing):
        if self._binding is None:
            raise errors.StateError(f"{doing}: no parameters are bound yet: that happens at the first step, or with "
                                    "bind()")
        return self._binding

    def _followed(self, doing):
        """The binding, with everything bound as it is now."""
        binding = self._bound(doing)
        self._take_written()
        binding.follow(self.param_groups)
        return binding

    def _find_place(self):
        params = [cut.local(p) for group in self.param_groups for p in group["params"]]
        return devices.of([p for p in params if p.requires_grad] or params, self._names, self._device)

    def _take_written(self):
        if self._final_weights is not None:
            self._final_weights.take_written()

    def _current_binding(self):
        return self._binding

    def _forget_copies(self):
        """State and weights change now: what was given out of them is old."""
        self._state.forget(self._name_of)

    def _name_of(self, param):
        return self._binding.names.get(id(param), "?") if self._binding is not None else "?"

    def _say_no_gradient(self):
        self._tally.n_without += 1
        if (n := self._tally.n_without) & (n - 1) == 0:  # 1, 2, 4, 8, ...
            self.log.warning("step() did nothing: none of the %d trainable parameters has a gradient (%d such steps so far): call backward() "
                             "before it, and check that the optimizer holds the parameters of the model that is trained (module surgery "
                             "and load_state_dict(assign=True) replace them; %s)", len(self._binding.table.trainable), n, OFFLOADED)

    def _say_skipped(self):
        report = self.last_report
        if not report.has_report or report.applied:
            return
        before, n_skipped = self._tally.n_skipped, self.stats().get("steps_skipped", 0)
        self._tally.n_skipped = n_skipped
        if n_skipped.bit_length() == before.bit_length():
            return  # 1, 2, 4, 8, ..., or what came first behind it
        name = self._binding.table.names[report.nonfinite_param] if report.nonfinite_param is not None else "?"
        where = "" if report.nonfinite_rank is None else f" on rank {report.nonfinite_rank}"
        self.log.warning('step %d was skipped: the gradient of "%s" is not finite%s (%d skipped so far)', report.step,
                         name, where, n_skipped)


def _close(instance, handles, tally, ranks):
    tally.warn(_settle(instance, tally, ranks))
    for handle in (handle for some in handles for handle in some):
        handle.remove()
    instance.close()
    if ranks is not None:
        ranks.close()


def _settle(instance, tally, ranks):
    """A caller that keeps the model when its optimizer goes has all updates, but where others wrote. Not with several ranks, which
    would have to come together for it, nor in a forked child."""
    if ranks is not None or not tally.is_here() or instance.settle_all is None:
        return False
    try:
        return instance.settle_all()
    except RuntimeError:
        return False  # it is over already, or a device has no memory
