"""ZenFlow: the plugin as a torch.optim.Optimizer.

Model: param_groups are the source of truth: lr, betas, eps and weight_decay are read from them at every step, so LR
schedulers and hand-written schedules work as with torch's own. The plugin's instance is made in the constructor (a wrong
configuration fails there); parameters are bound when the first step begins, so a model may be loaded, moved or extended
until then at no cost. What the plugin keeps (masters, moments, windows) is not in .state: state_dict() asks the plugin for
it.

Later changes are followed by binding again (_follow): parameters in other memory go on as they are; groups added, layers
unfrozen, another dtype end all windows as flush() does, keep weights, moments and update counts by name, and begin the
schedule anew. The new table is made and bound beside the present one, so what fails changes nothing.

The host is torch's CPU thread (HOST_THREAD): when step() returns, all parameters are what the model should read next,
unless fetch=True.
"""
import contextlib
import ctypes as C
import functools
import logging
import weakref

import torch

from .. import _abi, errors, state
from ..instance import Instance, _report
from . import adamw, checkpoint
from . import groups as hyper_groups
from .fetch import Fetcher
from .gradients import GradientFeed
from .parameters import ParameterTable, listed, rows_of, split_names

_GROUP_WORDS = C.sizeof(_abi.GroupHyper) // 8
FLUSHED_STEPS = 16  # steps after an edit of the weights that end with all updates in place, in case of another
_has_warned_of_names = False


class ZenFlow(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101) with ZenFlow's offload (arXiv 2505.12242).

    params: parameters, (name, parameter) pairs (model.named_parameters()), or groups of either. Names are used in
        errors and in saved states; without them parameters are param0, param1, ... in order.
    lr, betas, eps, weight_decay: as in torch.optim.AdamW; per group too; read at every step.
    config: path of an INI file, INI text, or {"section.key": value}; None = the plugin's defaults.
    overrides: list of "section.key=value", or a dict; applied after config.
    rule: "adamw", "adam" (decay as L2), "sgd", "sgd_nesterov" (momentum = betas[0]) or "lion".
    rule_callback: a zfplugin.RuleCallback, a compiled function, instead of rule.
    clip_norm: clip the gradient's global norm to it inside the plugin (0 = off), instead of clip_grad_norm_.
    model: the module, for names, for the channel axis of Conv1D layers, and needed by fetch.
    fetch: let updates go on after step() returns and wait in forward pre-hooks of the model's modules instead. Whoever
        reads or writes parameters otherwise calls synchronize() before.
    channels, n_batch_axes: callables (name, parameter) -> "rows" | "columns" | None, and -> number of leading axes that
        count independent matrices (stacked layers, experts).
    accumulation_steps: backwards per step, if it is fixed; else it is learned from the last step.
    overlap: ship gradients during backward. False: at step.
    unscale_in_plugin: let a GradScaler hand its scale to the plugin (as for torch's fused optimizers) instead of
        unscaling gradients in place.
    library: path of libzfplugin.so, or a zfplugin.Library. log: a logging.Logger (default "zfplugin").
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, config=None, overrides=None,
                 rule="adamw", rule_callback=None, clip_norm=0.0, model=None, fetch=False, channels=None, n_batch_axes=None,
                 accumulation_steps=None, overlap=True, unscale_in_plugin=False, library=None, log=None):
        self._table = None
        if fetch and model is None:
            raise errors.ArgumentError("fetch=True needs model=...: its modules wait for their parameters")
        if model is not None and not isinstance(model, torch.nn.Module):
            raise errors.ArgumentError(f"model is a {type(model).__name__}; need the torch.nn.Module that is trained")
        if accumulation_steps is not None and (not isinstance(accumulation_steps, int) or accumulation_steps < 1):
            raise errors.ArgumentError(f"accumulation_steps = {accumulation_steps!r}; allowed: 1, 2, ...")
        self.log = log or logging.getLogger("zfplugin")
        self.clip_norm = clip_norm
        self.unscale_in_plugin = unscale_in_plugin
        self._model = weakref.ref(model) if model is not None else None
        self._options = {"channels": channels, "n_batch_axes": n_batch_axes}
        self._feed_options = {"overlap": overlap, "accumulation_steps": accumulation_steps, "log": self.log}
        self._is_epoch_end = False
        self._has_said_changed = False
        self._quiet_ids = None
        self._is_fetching = fetch
        self._fetcher = None
        groups, self._names = split_names(params)
        if model is not None:
            for name, param in model.named_parameters():
                self._names.setdefault(id(param), name)
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._rule = rule if rule_callback is None else None
        self._make_instance = functools.partial(Instance, config, overrides, fetch=fetch, rule=rule,
                                                rule_callback=rule_callback, lib=library, log=self.log, name="torch")
        instance = self._make_instance()
        self._fetcher = Fetcher(model) if fetch else None
        self._handles = [self._fetcher.handles] if fetch else []  # lists of hooks to take off in the end
        self._begin(instance)

    def _begin(self, instance):
        """Nothing is bound yet."""
        self._instance, self._feed, self._table, self.last_report = instance, None, None, None
        self._n_flushed_steps = 0
        self._finalizer = weakref.finalize(self, _close, instance, self._handles)

    # ---- torch.optim.Optimizer ---------------------------------------------------------------------------------------

    def add_param_group(self, param_group):
        """As torch's. After the first step it binds again, at once: whole or not at all."""
        names = {}
        if isinstance(param_group, dict) and "params" in param_group:
            (param_group,), names = split_names([param_group])
        super().add_param_group(param_group)
        before, self._names = self._names, {**self._names, **names}
        try:
            hyper_groups.check(self.param_groups[-1], len(self.param_groups) - 1)
            if self._table is not None:
                self._follow()
        except BaseException:
            self._names = before
            self.param_groups.pop()
            raise

    @property
    def _step_supports_amp_scaling(self):
        """A GradScaler asks this right before step: the moment at which gradients may have been unscaled in place,
        which moves no version counter."""
        if self._feed is not None and not self.unscale_in_plugin:
            self._feed.is_suspect = True
        return self.unscale_in_plugin

    @torch.no_grad()
    def step(self, closure=None):
        """One optimizer step over .grad of the parameters. Returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        unscale, is_overflow = self._read_scaler()
        is_first = self._table is None
        if is_first:
            self._bind()
        if is_overflow:
            self._discard()
            self._feed.forget_firings()
        else:
            self._follow(is_step=not is_first)
            written = self._feed.complete()
            self._submit(unscale)
            self._end_step(written)
        return loss

    @torch.no_grad()
    def state_dict(self):
        """Groups, and the plugin's exact state as plain tensors and text (checkpoint.py). Between steps."""
        out = super().state_dict()
        if self._table is not None:
            self._follow()
            out[checkpoint.KEY] = {**checkpoint.pack(self._instance), "n_flushed_steps": self._n_flushed_steps}
        return out

    @torch.no_grad()
    def load_state_dict(self, state_dict):
        """The run goes on to the bit, weights included. Whole or not at all; names and shapes must be the saved ones.
        What was saved before the first step begins anew: fresh moments and windows, weights as they are. A state of
        torch.optim.AdamW or Adam is taken over: its moments and update counts, weights as they are."""
        checkpoint.check(self.param_groups, state_dict, self._rule in ("adamw", "adam"))
        packed = state_dict.get(checkpoint.KEY)
        if packed is not None:
            blobs = checkpoint.unpack(packed)
            self.bind()
            if checkpoint.fit_names(blobs.blobs, self._table):
                self.log.warning("the state was saved under other names; it is read by position, since all shapes fit")
            self._load(blobs)
            self._n_flushed_steps = int(packed.get("n_flushed_steps", 0))
        elif state_dict.get("state"):
            self.bind()
            self._follow()
            self._load(adamw.blobs_with(self._instance, adamw.entries(state_dict, self._table.names)))
        elif self._table is not None:
            self._restart()
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})

    def __deepcopy__(self, memo):
        raise TypeError("a ZenFlow optimizer cannot be copied: its masters and moments live in the plugin. Make a new "
                        "one and load_state_dict(old.state_dict()) into it")

    def __reduce_ex__(self, protocol):
        raise TypeError("a ZenFlow optimizer cannot be pickled: its masters and moments live in the plugin. Save "
                        "optimizer.state_dict() instead of the optimizer")

    # ---- what only this optimizer has --------------------------------------------------------------------------------

    def bind(self):
        """Binds the parameters now instead of at the first step: plans and takes all memory. Idempotent."""
        if self._table is None:
            self._bind()

    def save(self, path, compact=False, note=None):
        """Saves the plugin's state into a directory, streaming, which state_dict() cannot; the groups are not part of it.
        compact: without open windows. Returns the report as a dict."""
        self._bound("save")
        return state.save(self._instance, path, compact, note)

    def load(self, path, partial=False):
        """Loads what save() wrote, weights included. partial: parameters that it lacks keep what they have."""
        self.bind()
        return self._load(path, partial)

    def _restart(self):
        """As before the first step; weights as flush() leaves them."""
        self._follow()
        self._instance.flush()
        instance, finalizer = self._make_instance(), self._finalizer
        self._feed.detach()
        finalizer.detach()
        self._instance.close()
        self._handles[:] = []
        if self._fetcher is not None:
            self._fetcher.unbind()
            self._handles.append(self._fetcher.handles)
        self._begin(instance)

    def _load(self, where, partial=False):
        self._follow()
        if any(grad is not None for grad in self._feed.held):
            self._discard()
        report = state.load(self._instance, where, partial)
        self._table.remember(probe=not self._is_fetching, is_load=True)
        return report

    def accumulate(self):
        """Context manager around every backward but the last of a step: nothing is shipped in it. Only a hint."""
        return self._accumulating()

    @contextlib.contextmanager
    def _accumulating(self):
        self.bind()
        self._feed.is_accumulating = True
        try:
            yield
        finally:
            self._feed.is_accumulating = False

    def flush(self):
        """Closes every window: afterwards the parameters are the final weights. Call it at the end of training."""
        self._bound("flush").flush()
        self._table.remember(probe=not self._is_fetching)

    def drain(self):
        """Waits for updates in flight, without changing what the parameters show."""
        self._bound("drain", follows=False).drain()

    def synchronize(self):
        """fetch=True: waits until all parameters are in place, for whoever reads them outside of forward."""
        if self._table is not None:
            self._instance.fetch()

    def params_changed(self, params=None, reset=False):
        """The caller wrote parameters (default: all) in a way that no counter shows; reset: moments restart."""
        instance = self._bound("params_changed")
        ids = [self._id_of(p) for p in params] if params is not None else [i for i, _ in self._table.trainable]
        self._resynchronise(instance, ids, reset)

    def export(self):
        """{name: float32 tensor}: the weights that flush() would give; nothing changes."""
        instance = self._bound("export", follows=False)
        out = {self._table.names[i]: torch.empty(p.shape, dtype=torch.float32) for i, p in self._table.trainable}
        owners = {i: out[self._table.names[i]] for i, _ in self._table.trainable if self._table.tied_to[i] is None}
        instance.export({i: tensor for i, tensor in owners.items() if tensor.numel()})
        for i, _ in self._table.trainable:
            if self._table.tied_to[i] is not None:
                out[self._table.names[i]] = owners[self._table.tied_to[i]]
        return out

    def end_epoch(self):
        """The next step is marked as the last of an epoch."""
        self._is_epoch_end = True

    def stats(self):
        """The plugin's counters as a dict."""
        return self._instance.stats()

    def metrics(self):
        """Flat {name: number} of the newest finished step and the plugin's counters, for a logger such as TensorBoard."""
        report = self.last_report
        out = {} if report is None else {
            "grad_norm": report.grad_norm, "clip_factor": report.clip_factor, "applied": int(report.applied)}
        return {**out, **self.stats()}

    def config(self):
        """Effective configuration: {"section.key": text}."""
        return self._instance.config()

    @property
    def layout(self):
        """Planned memory and counts after binding (zf_layout_t as a dict), else None."""
        return self._instance.layout

    @property
    def grad_norm(self):
        """Global gradient norm of the newest finished step, before clipping; None before the first."""
        return self.last_report.grad_norm if self.last_report is not None and self.last_report.has_report else None

    def close(self):
        """Ends the plugin's instance and takes its hooks off the parameters. Idempotent."""
        self._finalizer()

    # ---- binding -----------------------------------------------------------------------------------------------------

    def _bound(self, doing, follows=True):
        """The instance; follows: with everything bound as it is now."""
        if self._table is None:
            raise errors.StateError(f"{doing}: no parameters are bound yet: that happens at the first step, or with "
                                    "bind()")
        if follows:
            self._follow()
        return self._instance

    def _module(self):
        return self._model() if self._model is not None else None

    def _make_table(self, trained=()):
        model = self._module()
        names = dict(self._names)
        if model is not None:
            for name, param in model.named_parameters():
                names.setdefault(id(param), name)
        return ParameterTable(self.param_groups, names, rows=rows_of(model), trained=trained, **self._options)

    def _bind(self):
        table = self._make_table()
        self._instance.bind(table.decls)
        self._feed = GradientFeed(self._instance, table, **self._feed_options)
        self._handles.append(self._feed.handles)
        self._warn_of_names(table)
        self._adopt(table)

    def _adopt(self, table):
        """The instance is bound to this table."""
        model = self._module()
        self._model_names = {} if model is None else \
            {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
        self._quiet_ids = None
        self._table = table
        table.watch(self._instance)
        table.remember(probe=not self._is_fetching)  # binding may have ended windows
        self._names = {id(p): name for p, name in zip(table.params, table.names)}  # no id outlives its parameter
        self._make_hyper()
        if self._fetcher is not None:
            self._fetcher.bind(self._instance, table)

    def _make_hyper(self):
        self._hyper = (_abi.GroupHyper * len(self.param_groups))()
        for hyper in self._hyper:
            hyper.struct_size = C.sizeof(_abi.GroupHyper)
        self._members = hyper_groups.members(self.param_groups)
        self._hyper_words = memoryview(self._hyper).cast("B").cast("d")
        self._args = _abi.StepArgs(
            struct_size=C.sizeof(_abi.StepArgs), groups=C.addressof(self._hyper), n_groups=len(self.param_groups),
            elem_size=C.sizeof(_abi.GroupHyper), stream=C.addressof(self._instance.stream))
        self._raw_report = _abi.StepReport(struct_size=C.sizeof(_abi.StepReport))

    def _warn_of_names(self, table):
        global _has_warned_of_names
        if _has_warned_of_names or all(id(p) in self._names for p in table.params):
            return
        _has_warned_of_names = True
        self.log.warning("parameters have no names: they are param0, param1, ... in order, in errors and saved states. "
                         "Pass model.named_parameters(), or model=...")

    def _id_of(self, param):
        for i, own in enumerate(self._table.params):
            if own is param:
                return i
        name = self._names.get(id(param), "a tensor")
        raise errors.ParamError(f"{name} of shape {list(param.shape)} is not a parameter of this optimizer")

    # ---- a step ------------------------------------------------------------------------------------------------------

    def _read_scaler(self):
        """(factor of the gradients, whether they overflowed), as a GradScaler left them on self for this step."""
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and scale is None and self._feed is not None:
            self._feed.is_suspect = True  # unscaled in place by GradScaler.unscale_()
        is_overflow = found_inf is not None and float(found_inf) > 0
        return (1.0 / float(scale) if scale is not None else 1.0), is_overflow

    # ---- following the trainer ---------------------------------------------------------------------------------------

    def _find_replaced(self, is_step):
        """{id: parameter} of bound parameters in whose place the model holds another one; raises where there is none that
        could go on. In a step only looked for when other parameters than last time had no backward, which is how it
        shows."""
        model = self._module()
        if model is None or not self._model_names:
            return {}
        if is_step:
            quiet = self._feed.quiet_ids()
            if quiet == self._quiet_ids:
                return {}
            self._quiet_ids = quiet
        table, known = self._table, self._model_names
        now = dict(model.named_parameters(remove_duplicate=False))
        held = {id(p) for p in now.values()}
        grouped = hyper_groups.ids(self.param_groups)
        lost = [i for i, p in enumerate(table.params) if id(p) in known and id(p) in grouped and id(p) not in held]
        if lost:
            self._quiet_ids = None
        replaced = {i: now[known[id(table.params[i])]] for i in lost if known[id(table.params[i])] in now}
        missing = [table.names[i] for i in lost if i not in replaced or id(replaced[i]) in grouped]
        if missing:
            raise errors.ParamError(f"the model no longer holds the bound parameters {listed(missing)}, and no parameter "
                                    "of its own in their place: make a new optimizer for the changed model", scope="param")
        for i, p in replaced.items():
            table.check_successor(i, p)
        return replaced

    def _follow(self, *, is_step=False):
        """Binds again where parameters moved, were replaced, unfrozen, added to the groups or taken out of them. Weights
        that somebody else wrote since the last step become the masters."""
        table = self._table
        replaced = self._find_replaced(is_step)
        is_regrouped = not hyper_groups.hold(self.param_groups, self._members)
        held = hyper_groups.ids(self.param_groups) if is_regrouped else None
        changed, moved = table.find_changed(held)
        is_thawed = any(is_frozen and p.requires_grad for is_frozen, p in zip(table.frozen, table.params))
        values, fresh = None, []
        if replaced or moved or is_thawed or is_regrouped:
            changed, values, fresh = self._bind_again(replaced, changed)
        if changed:
            self.log.log(logging.DEBUG if self._has_said_changed else logging.INFO,
                         "parameters were written by the trainer; the masters follow: %s",
                         listed(self._table.names[i] for i in changed))
            self._has_said_changed = True
            self._resynchronise(self._instance, changed, values=values)
        if fresh:
            self._instance.params_changed(fresh, reset=True)

    def _bind_again(self, replaced, written):
        """Whole or not at all. written: ids that were written in place. Returns the new ids of what was written, the
        values, which binding may have written over, and the ids of other parameters under a name that was known."""
        before, names = self._table, self._names
        groups = [(group, list(group["params"])) for group in self.param_groups]
        successor = {id(before.params[i]): p for i, p in replaced.items()}
        known = {id(p) for p in before.params} | {id(p) for p in replaced.values()}
        with self._feed.lock:
            try:
                hyper_groups.check_all(self.param_groups)
                for group, params in groups:
                    group["params"][:] = [successor.get(id(p), p) for p in params]
                self._names = {**names, **{id(p): before.names[i] for i, p in replaced.items()}}
                if self._is_fetching:
                    self._instance.fetch()  # the old memory is compared with the new
                table = self._make_table(trained={before.names[i] for i, _ in before.trainable})
                edited = table.find_edited(before, written)
                values = [table.aliases[i].clone() for i in edited]
                self._discard()  # step() delivers all gradients again
                self._instance.bind(table.decls)
            except BaseException:
                self._names = names
                for group, params in groups:
                    group["params"][:] = params
                raise
            self._feed.adopt(table)
            self._adopt(table)
        self._say_bound_again(before)
        return edited, values, [i for i, p in table.trainable if id(p) not in known and table.names[i] in before.names and p.numel()]

    def _say_bound_again(self, before):
        table = self._table
        known = {before.names[i] for i, _ in before.trainable}
        new = [table.names[i] for i, _ in table.trainable if table.names[i] not in known]
        if new:
            self.log.info("parameters join the training; windows begin anew: %s", listed(new))
        else:
            self.log.debug("parameters were bound again")

    def _resynchronise(self, instance, ids, reset=False, values=None):
        """Open windows are closed first, so that the moments miss no gradient; the edited values (None: those in place) are
        kept over that. An edit may be relative to the visible values (clamping at every step), which lag behind in open
        windows: for some steps from now, every step ends with all updates in place."""
        self._feed.forget(ids)
        aliases = [self._table.aliases[i] for i in ids]
        edited = values if values is not None else [alias.clone() for alias in aliases]
        instance.flush()
        for alias, values in zip(aliases, edited):
            alias.copy_(values)
        instance.params_changed(ids, reset)
        self._table.remember(probe=not self._is_fetching)
        self._n_flushed_steps = FLUSHED_STEPS

    def _end_step(self, written):
        """written: the parameters that had a gradient. Autograd is told, which keeps what a graph still needs of them from
        being used unnoticed."""
        self._table.say_written(written)
        if self._n_flushed_steps > 0:
            self._n_flushed_steps -= 1
            self._instance.flush()
        if self._fetcher is not None:
            self._fetcher.end_step()
        self._table.remember_step(probe=not self._is_fetching)

    def _submit(self, unscale):
        hyper_groups.write(self.param_groups, self._hyper_words, _GROUP_WORDS)
        self._args.flags = _abi.STEP_EPOCH_END if self._is_epoch_end else 0
        self._args.unscale = unscale
        try:
            self._args.clip_norm = self.clip_norm or 0.0
        except TypeError:
            raise errors.ArgumentError(f"clip_norm = {self.clip_norm!r}; allowed: 0 (off) or a positive number") from None
        self._instance.call(self._instance.table.step, C.byref(self._args), C.byref(self._raw_report), doing="step")
        self._is_epoch_end = False
        self.last_report = _report(self._raw_report)
        self._say_skipped()
        self._feed.end_step()

    def _say_skipped(self):
        report = self.last_report
        if not report.has_report or report.applied or report.n_skipped & (report.n_skipped - 1):
            return  # 1, 2, 4, 8, ...
        name = self._table.names[report.nonfinite_param] if report.nonfinite_param is not None else "?"
        self.log.warning('step %d was skipped: the gradient of "%s" is not finite (%d skipped so far)', report.step,
                         name, report.n_skipped)

    def _discard(self):
        """The scaler found an overflow: no step, and no clock moves."""
        with self._feed.lock:
            self._feed.discard()


def _close(instance, handles):
    for handle in (handle for some in handles for handle in some):
        handle.remove()
    instance.close()
