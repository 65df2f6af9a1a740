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

from .. import errors, state
from ..instance import Instance, _report
from ..signals import whole
from . import adamw, checkpoint, cut, devices, experts, figures, moments, processes
from . import groups as hyper_groups
from .binding import Binding
from .fetch import Fetcher
from .hooks import outside_of_graphs, with_versions
from .parameters import OFFLOADED, listed, names_in, split_names, successors
from .ranks import ALL, number_own, open_ranks
from .residency import Residency
from .saving import FinalWeights, Tally


class ZenFlow(figures.Figures, Residency, torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101) with ZenFlow's offload (arXiv 2505.12242).

    params: parameters, (name, parameter) pairs (model.named_parameters()), or groups of either. Names are used in
        errors and in saved states; without them parameters are param0, param1, ... in order.
    lr, betas, eps, weight_decay: as in torch.optim.AdamW; per group too; read at every step.
    config: path of an INI file, INI text, {"section.key": value}, "section.key=value", or a list of these, of which the later ones
        hold; None = the plugin's defaults.
    rule: "adamw", "adam" (decay as L2), "sgd", "sgd_nesterov" (momentum = betas[0]) or "lion"; per group too, kept while it lives. Or a
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
        through .data or numpy. False: gradients are read at step. Default: True with group= on a CPU, else False.
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

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, config=None, rule="adamw", clip_norm=0.0,
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
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                  "maximize": bool(options_of_torchs.pop("maximize", None))})
        self._rule = rule if isinstance(rule, str) else None
        held = [(self._names.get(id(p), f"param{i}"), p) for i, p in enumerate(p for group_ in self.param_groups for p in group_["params"])]
        if self._is_cut():
            if release_gradients:
                raise errors.ArgumentError("release_gradients=True where parameters are cut over processes: FSDP gives them back by itself")
            if fetch:
                raise errors.ArgumentError("fetch=True cannot be: parameters are cut over processes, and fully_shard gathers them before "
                                           "the modules' hooks would fetch them; leave it out")
            norm_group = processes.norm_group_of(group, norm_group, held)
        # what others wrote is asked for (parameters.py), at each step and fetch; no step finds it by itself
        # on a stream the plugin looks, too, for the answer would have to be waited for
        is_single, log = not processes.are_several(), self.log

        def make_instance(*, place, **more):  # no reference to this optimizer, which goes when it is dropped
            return Instance(config, fetch=fetch, rule=rule, log=log, name="torch",
                            before=[f"zenflow.on_overwrite={'hold' if place.is_stream else 'ask'}"],
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
            table_options={"is_single": is_single, "declare": declare, "is_reduced": self._ranks is not None,
                           "own_numbers": number_own(others["reduced_over"])},
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
        self.last_report = _report(binding.step(self.param_groups, self.clip_norm, self._is_epoch_end))
        self._is_epoch_end = False
        self._tally.made_step()
        self._say_skipped()
        return loss

    @whole
    @torch.no_grad()
    def state_dict(self):
        """Groups, and the plugin's state as plain tensors and text (checkpoint.py). Between steps. Windows close, as by flush(), so
        that this run and the one that loads it go on alike; where none are open (mode = exact) nothing changes. Weights that
        somebody else wrote since the last step are saved as such, and followed at the next one: they may be an average that is swapped
        out again, so windows stay open then. With group= moments and
        counts alone, of all processes, as torch's optimizers have them (sharded_state: its rows): a call that all of them make together."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        out = self._pack()
        out["state"].update(self._state.others)
        return checkpoint.hooked(self._optimizer_state_dict_post_hooks, self, out)

    def _pack(self):
        """What state_dict() gives, but for hooks."""
        out, binding = {"state": {}, "param_groups": hyper_groups.packed(self.param_groups)}, self._binding
        if binding is None:
            return out
        self._take_written()
        edited = {} if self._is_together else binding.edited_values(self.param_groups)
        if not edited:
            self._close_windows()
        if self._is_together:
            if self._ranks is not None:
                experts.refuse_mixed(self._ranks, binding.table)
            out["state"] = self._numbered(self._read_moments())
            return out
        packed, found = checkpoint.pack(self._instance, binding.rules_by_name(), binding.table.names_of_16_bits(), keep_open=bool(edited))
        out["state"] = self._numbered(self._entries(found))
        part, at_rest = binding.table.spread.part() if binding.table.spread is not None else None, binding.names_at_rest()
        out[checkpoint.KEY] = {**packed, "n_flushed_steps": binding.n_flushed_steps,
                               **({"edited": edited} if edited else {}),
                               **({"at_rest": at_rest} if at_rest else {}), **({"part": part} if part else {})}
        return out

    def _numbered(self, entries):
        return {number: entries[p] for number, p in self._binding.table.trainable if p in entries}

    @whole
    @torch.no_grad()
    def adamw_state_dict(self):
        """A state dict for torch.optim.AdamW (with rule="adam" for Adam): its groups, and the moments and update counts that
        flush() would leave; nothing changes. The weights to go with it are those after flush(), or of export()."""
        rules = self._rules()
        moments.check_rules(rules)
        numbers = {id(p): n for n, p in enumerate(p for group in self.param_groups for p in group["params"])}
        entries = {numbers[id(p)]: entry for p, entry in self._read_moments(is_whole=True).items()}
        return moments.adamw_state_dict(hyper_groups.packed(self.param_groups), entries, rules)

    @property
    def state(self):
        """{parameter: {"step", "exp_avg", "exp_avg_sq"}}, read from the plugin when asked for (moments.py)."""
        return self._state

    @state.setter
    def state(self, given):
        """Without entries of parameters it lets moments begin anew, as in torch, whose constructor puts an empty one here."""
        if given is self._state:
            return
        if any(isinstance(key, torch.Tensor) for key in given):
            self._state.refuse()
        self._state.others = dict(given)
        if self._binding is not None:
            self._forget_copies()
            self.params_changed(reset=True)

    @whole
    @torch.no_grad()
    def load_state_dict(self, state_dict):
        """The run goes on to the bit, weights included. Whole or not at all; names and shapes must be the saved ones.
        What was saved before the first step begins anew: fresh moments and windows, weights as they are. A state of
        torch.optim.AdamW or Adam is taken over: its moments and update counts, weights as they are."""
        state_dict = checkpoint.hooked(self._optimizer_load_state_dict_pre_hooks, self, dict(state_dict or {}))
        self._forget_copies()
        saved = state_dict.get("state", {})
        packed = state_dict.get(checkpoint.KEY) if saved else None
        if packed is not None or self._binding is not None and not saved:
            self._refuse_shared("load_state_dict")
        entries, loaded = checkpoint.check(self.param_groups, state_dict, self._rule)
        if packed is not None and entries:  # none: emptied by hand, moments begin afresh
            blobs = checkpoint.unpack(packed)
            self.bind()
            binding = self._binding
            binding.keep_states(self.param_groups, checkpoint.names(blobs.blobs))
            checkpoint.check_part(packed, binding.table.spread)
            renamed = checkpoint.fit_names(blobs.blobs, binding.table)
            if renamed:
                self.log.warning("the state was saved under other names; it is read by position, since all shapes fit")
            edited = checkpoint.edited_in(packed, renamed, binding.table)
            checkpoint.fill(blobs, packed, entries, binding.table, binding.rules_by_name())
            self._load(blobs, at_rest=[renamed.get(name, name) for name in packed.get("at_rest", ())])
            binding.n_flushed_steps = int(packed.get("n_flushed_steps", 0))
            binding.table.put_edits(edited)
        elif entries:
            self.bind()
            self._binding.follow(self.param_groups)
            store, table = self._rows(), self._binding.table
            found = adamw.entries(entries, table, dict(zip(adamw.numbers_in(state_dict), table.names)), store)
            self._binding.keep_states(self.param_groups, found)
            adamw.warn_of_decay(state_dict["param_groups"], self._rules(), self.log)
            rule_of = self._binding.rules_by_name()
            self._load(adamw.blobs_with(self._instance, found, lambda name: moments.names_of(rule_of[name]), store=store))
        elif self._binding is not None:
            self._restart()
        hyper_groups.take(self.param_groups, loaded)
        self._state.others = {key: value for key, value in saved.items() if key not in entries}
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

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
            if self.config()["log.level"] in ("info", "debug"):
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

    def _close_windows(self):
        """Before a save: open ones would close in it, and the parameters show it. Released, they close with resume()."""
        if not self._tally.is_pending():
            return
        self._closes_at_resume = self._is_released
        if not self._is_released:
            self.flush()

    @whole
    def save(self, path, note=None):
        """Saves the plugin's state into a directory, streaming, which state_dict() cannot; the groups are not part of it.
        Windows close, as by flush(). Returns the report as a dict. Weights that somebody else wrote are followed first:
        where an average is swapped in, swap it out before."""
        self._followed("save", is_quiet=True)
        self._refuse_cut("save")
        self._close_windows()
        return state.save(self._instance, path, note=note)

    @whole
    def load(self, path, partial=False):
        """Loads what save() wrote, weights included. partial: parameters that it lacks keep what they have."""
        self._forget_copies()
        self.bind()
        self._refuse_cut("load")
        return self._load(path, partial)

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

    def _load(self, where, partial=False, at_rest=()):
        binding = self._followed("load")
        self._drop_delivered(binding)
        report = state.load(self._instance, where, partial)
        binding.loaded(at_rest)
        self._tally.loaded()
        if self._final_weights is not None:
            self._final_weights.remember_loaded()
        return report

    @staticmethod
    def _drop_delivered(binding):
        """Of the coming step; of several ranks all do."""
        if binding.feed.has_delivered():
            binding.discard()

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
        """With fetch=True: every weight is the newest afterwards, for whoever reads or writes them outside of forward."""
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

    def _refuse_shared(self, doing):
        if self._ranks is not None:
            raise errors.StateError(f"{doing}: the optimizer of {self._ranks.size} ranks is saved by all of them together: "
                                    "save(directory) and load(directory), on every rank")

    def _refuse_cut(self, doing):
        if self._ranks is None and self._binding is not None and self._binding.table.spread is not None:
            raise errors.StateError(f"{doing}: parameters are cut over processes, and this has a part of them only: use "
                                    "state_dict() of each process, in a file of its own, or torch.distributed.checkpoint with "
                                    "get_state_dict(model, optimizer)")

    def _rules(self):
        return hyper_groups.rules(self.param_groups, self._rule)

    def _is_cut(self):
        return any(cut.is_cut(p) for group in self.param_groups for p in group["params"])

    def _bound(self, doing):
        if self._binding is None:
            raise errors.StateError(f"{doing}: no parameters are bound yet: that happens at the first step, or with "
                                    "bind()")
        return self._binding

    def _followed(self, doing, is_quiet=False):
        """The binding, with everything bound as it is now."""
        binding = self._bound(doing)
        self._take_written()
        binding.follow(self.param_groups, is_quiet=is_quiet)
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
        if self._final_weights is not None:
            self._final_weights.forget_loaded()

    def _rows(self):
        """A store for this process's rows of the state; None: it has all."""
        if not self._meshes:
            return None
        from . import sharded

        return sharded.Rows(self._binding.table, self._ranks.circles, self._meshes)

    @whole
    @with_versions
    def _read_moments(self, is_whole=False):
        if self._binding is None:
            return {}
        binding, store = self._binding, None if is_whole else self._rows()
        if self._ranks is not None and None in binding.rules:
            self._refuse_shared("state")
        return self._entries(moments.read(self._instance, binding.rules_by_name(), binding.table.names_of_16_bits(), store), store)

    def _entries(self, found, store=None):
        """{parameter: entry} of {name: entry}, each member placed as its parameter is."""
        table = self._binding.table
        if self._is_together or table.spread is not None:
            moments.add_empty(found, {table.names[i]: p for i, p in table.trainable if not table.shapes[i].numel()})
        like = store.like if store is not None else lambda value, p, _: cut.like(value, p)
        return {p: {member: value if member == "step" else like(value, p, name) for member, value in found[name].items()}
                for p, name in ((p, table.names[i]) for i, p in table.trainable) if name in found}

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
        self.log.warning('step %d was skipped: the gradient of "%s" is not finite (%d skipped so far)', report.step,
                         name, n_skipped)


def _close(instance, handles, tally, ranks):
    tally.warn(_settle(instance, tally, ranks))
    for handle in (handle for some in handles for handle in some):
        handle.remove()
    instance.close()
    if ranks is not None:
        ranks.close()


def _settle(instance, tally, ranks):
    """Whoever keeps the model when its optimizer goes has all updates, but where somebody else wrote. Not with several ranks, which
    would have to come together for it, nor in a forked child."""
    if ranks is not None or not tally.is_here() or instance.settle_all is None:
        return False
    try:
        return instance.settle_all()
    except errors.ZfError:
        return False  # it is over already
