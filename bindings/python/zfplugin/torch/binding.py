# SPDX-License-Identifier: Apache-2.0
"""The bound parameters, and how they follow the trainer.

Model: a Binding joins one plugin instance to the parameters that the groups hold: their table (parameters.py), the way of
their gradients (gradients.py) and, with fetch=True, the hooks that wait for values (fetch.py). follow() brings it in step
with what the trainer did since: values that others wrote become the masters; parameters in other memory go on as they
are; groups added, layers unfrozen, another dtype end all windows as flush() does, keep weights, moments and update counts
by name, and begin the schedule again. The new table is made and bound beside the present one, so what fails changes nothing.

param_groups are an argument of every call that reads them: the optimizer's are the source of truth.
"""
import ctypes as C
import logging

import torch

from .. import _abi, errors, state
from . import adamw, devices, moments, muon
from . import groups as hyper_groups
from .carried import Mirrors
from .cut import JointNorm, local, parameters_in, settle
from .experts import fused_in
from .gradients import GradientFeed
from .parameters import ParameterTable, listed, names_in, rows_of

GROUP_WORDS = C.sizeof(_abi.GroupHyper) // 8
FLUSHED_STEPS = 16  # steps after an edit of the weights that end with all updates in place, in case of another
_has_warned_of_names = False


class Binding:
    """names: {id(parameter): name}. rule: of groups that name none; None: a callback. model: a function that gives the module, or None. table_options, feed_options: of
    ParameterTable and GradientFeed. fetcher: a Fetcher, or None. handles: a list; gets the list of the feed's hooks."""

    def __init__(self, instance, groups, names, *, rule, model, table_options, feed_options, fetcher, handles, log):
        self.instance, self.names, self.fetcher, self.log, self._rule = instance, names, fetcher, log, rule
        self._model, self._table_options = model, {**table_options, "mirrors": Mirrors(fetcher)}
        self.n_flushed_steps = 0
        self._has_said_changed = False
        self._at_rest = set()  # frozen ones whose updates have all arrived
        self._left = {}  # id: (parameter, its name, its moments and count) of those that were taken out of the groups
        table = self._make_table(groups)
        self._bind(table, groups)
        self.feed = GradientFeed(instance, table, log=log, **feed_options)
        handles.append(self.feed.handles)
        self._warn_of_names(table)
        if table.experts:
            log.info("the first axis counts experts, each of which is a matrix of its own (declare= says otherwise: n_batch_axes): %s", listed(table.experts))
        self._adopt(groups, table)

    def _known_names(self):
        """{id(parameter): name}, those of the model among them."""
        model = self._model()
        in_model = {} if model is None else {id(param): name for name, param in reversed(parameters_in(model).items())}
        return {**in_model, **{number: name for number, (_, name, _) in self._left.items()}, **self.names}

    def _make_table(self, groups, trained=()):
        model = self._model()
        return ParameterTable(groups, self._known_names(), rows=rows_of(model), fused=fused_in(model), trained=trained,
                              place=self.instance.place, config=self.instance.config, rule=self._rule, **self._table_options)

    def _bind(self, table, groups):
        rules = hyper_groups.rules(groups, self._rule)
        if table.is_carried:
            devices.refuse_windows(self.instance.config())
        if table.spread is not None and muon.NAME in rules and self._table_options["is_reduced"]:
            raise errors.ArgumentError(f"rule = {muon.NAME!r} where parameters are cut over processes takes no group=...: not in this version")
        own = [muon.RULE if rule == muon.NAME else rule for rule in rules]
        if muon.NAME in rules and self.instance.update_matrices is None:
            self.instance.update_matrices = muon.MatrixUpdates()
        try:
            self.instance.bind(table.decls, own)
        except errors.OutOfMemoryError as problem:
            if not self.instance.place.is_stream:
                raise
            self.log.info("%s; what torch's allocator does not use is given back, and it is tried again", problem)
            self.instance.place.give_back()
            self.instance.bind(table.decls, own)
        self.rules = rules

    def rules_by_name(self):
        """{parameter's name: its rule}."""
        return {name: self.rules[group] for name, group in zip(self.table.names, self.table.group_of)}

    def _adopt(self, groups, table):
        """The instance is bound to this table."""
        model = self._model()
        self._model_names = names_in(model)
        self._quiet_ids = None
        self._at_rest = set()
        self.table = table
        table.watch(self.instance)
        self.instance.settle_all = table.settle
        table.mirrors.keep(table.trained)
        table.remember()  # binding may have ended windows
        self.names = {id(p): name for p, name in zip(table.params, table.names)}  # no id outlives its parameter
        self._make_hyper(groups)
        counts = [table.decls[i].counts_in_norm for i, _ in table.trainable]
        self._joint_norm = JointNorm(table.spread, table.trained, counts, table.aliases[0].device) \
            if table.spread is not None and self.feed.is_alone else None
        if self.fetcher is not None:
            self.fetcher.bind(self.instance, table)

    def _make_hyper(self, groups):
        self._hyper = (_abi.GroupHyper * len(groups))()
        for hyper in self._hyper:
            hyper.struct_size = C.sizeof(_abi.GroupHyper)
        self._members = hyper_groups.members(groups)
        self._hyper_words = memoryview(self._hyper).cast("B").cast("d")
        self._args, self._expected = (_abi.StepArgs(
            struct_size=C.sizeof(_abi.StepArgs), groups=C.addressof(self._hyper), n_groups=len(groups),
            elem_size=C.sizeof(_abi.GroupHyper), unscale=1.0, stream=C.addressof(self.instance.stream)) for _ in range(2))
        self._waits = self.fetcher is not None and not self.instance.place.is_stream
        if self.instance.update_matrices is not None:
            self.instance.update_matrices.table, self.instance.update_matrices.groups = self.table, groups
        self.groups = groups  # of the optimizer: what it says when backward begins is expected of the step
        self.feed.begin = self._begin_step
        self._raw_report = _abi.StepReport(struct_size=C.sizeof(_abi.StepReport))

    def _warn_of_names(self, table):
        global _has_warned_of_names
        if _has_warned_of_names or {*map(id, table.params)} <= self._known_names().keys():
            return
        _has_warned_of_names = True
        self.log.warning("parameters have no names: they are param0, param1, ... in order, in errors and saved states. "
                         "Pass model.named_parameters(), or model=...")

    def id_of(self, param):
        number = self.table.numbers.get(id(param))
        if number is None:
            name = self.names.get(id(param), "a tensor")
            raise errors.ParamError(f"{name} of shape {list(param.shape)} is not a parameter of this optimizer")
        return number

    # ---- a step ------------------------------------------------------------------------------------------------------

    def step(self, groups, clip_norm, is_epoch_end):
        """One step over the .grad of all parameters; the plugin's report as it is."""
        if self.table.spread is not None:
            settle(self.table.trained)
        if self._joint_norm is not None:
            self._joint_norm.check()
        if self.table.turn(groups) and self.feed.is_releasing and self.feed.has_fired():
            raise errors.StateError("release_gradients=True: maximize of a group was changed between backward and step(), and gradients were "
                                    "given back: change it after step()")
        written = self.feed.complete()
        self._settle_frozen()
        hyper_groups.check_rules(groups, self._rule, self.rules)
        self.groups = groups
        hyper_groups.write(groups, self._hyper_words, GROUP_WORDS)
        self._args.flags = (_abi.STEP_EPOCH_END if is_epoch_end else 0) | (_abi.STEP_WAIT if self._waits else 0)
        try:
            self._args.clip_norm = clip_norm or 0.0
        except TypeError:
            raise errors.ArgumentError(f"clip_norm = {clip_norm!r}; allowed: 0 (off) or a positive number") from None
        if self._joint_norm is not None:
            self._joint_norm.find()
            self._args.host_norm = self._joint_norm.address
        self.instance.call(self.instance.table.step, C.byref(self._args), C.byref(self._raw_report), doing="step")
        self.table.mirrors.give_back(self.table.params[i] for i in written)
        self.feed.end_step()
        self._end_step(written)
        return self._raw_report

    def _begin_step(self):
        """The first gradient of a step is about to be delivered: it is expected to be as param_groups say now, and as the last one was
        otherwise. Where gradients are given back, what a version counter tells was written since the last one is taken in before."""
        table = self.table
        if self.feed.is_releasing and table.carries and not table.has_moved(table.ids) and (
                table.mirrors.are_touched(table.trained) or any(map(table.mirrors.may_be_edited, table.trained))):
            self._announce(table.find_edited(table.ids))
        table.turn(self.groups)
        hyper_groups.write(self.groups, self._hyper_words, GROUP_WORDS)
        self._expected.clip_norm = self._args.clip_norm
        self.instance.call(self.instance.table.announce, C.byref(self._expected), doing="announce")

    def _settle_frozen(self):
        """An update on its way to a parameter that is frozen since arrives now: from this step on it stands still."""
        at_rest = set(self.feed.at_rest)
        if at_rest - self._at_rest:
            self.log.info("frozen: %s; its updates that were on their way have arrived, windows begin again",
                          listed(self.table.names[i] for i in sorted(at_rest - self._at_rest)))
            self.instance.flush()
        self._at_rest = at_rest

    def _end_step(self, written):
        """written: the parameters that had a gradient here. Autograd is told, which keeps what a graph still needs of them from
        being used unnoticed."""
        written = written if self.feed.is_alone else [i for i, _ in self.table.trainable]
        self.table.say_written(written)
        is_flushed = self.n_flushed_steps > 0
        if is_flushed:
            self.n_flushed_steps -= 1
            self.instance.flush()
        if self.fetcher is not None:
            self.fetcher.end_step()
        self.table.remember()
        if is_flushed or self.fetcher is None:
            self.table.push(self.table.ids if is_flushed else written)

    def discard(self):
        """The delivered gradients are dropped: no step, and no clock moves."""
        with self.feed.lock:
            self.feed.discard()

    def flush(self):
        self.instance.flush()
        self._arrive()

    def _arrive(self):
        """All updates are in place, on devices too."""
        self.table.push(self.table.ids)
        self.table.remember()

    def names_at_rest(self):
        return [self.table.names[i] for i in sorted(self._at_rest)]

    def loaded(self, at_rest=()):
        """The plugin loaded a state: what of it is on its way to a frozen parameter has yet to arrive, but for the names at_rest."""
        self._at_rest = {i for i, name in enumerate(self.table.names) if name in at_rest}
        self._left = {}
        self._arrive_loaded()

    def _arrive_loaded(self):
        """The plugin wrote the values of all."""
        self.table.mirrors.give_back(self.table.params)
        self._arrive()

    def final_values(self, ids):
        """{id: values} that flush() would give, in the parameters' dtype, of those of ids (owners, not empty) that show others
        now, unless others wrote these; nothing changes."""
        table = self.table
        if table.carries:  # in exact nothing is on its way
            return {}
        edited = set(table.find_edited(ids))
        asked = ids if not self.feed.is_alone else [i for i in ids if i not in edited]  # of other ranks: what all of them ask for
        masters = {i: torch.empty(table.shapes[i], dtype=torch.float32, device="cpu") for i in asked}
        if masters:
            self.instance.export(masters)
        finals = {i: master.to(table.aliases[i].device, table.dtypes[i]) for i, master in masters.items() if i not in edited}
        return {i: final for i, final in finals.items() if not table.values.holds(i, final)}

    def take_back(self, ids):
        """Others wrote all of these, also where they show what the plugin wrote: nothing that is on its way is to come."""
        ids = [i for i in sorted(ids) if i in self.table.ids and not self.table.is_gone(i)]
        self.table.put([*self.table.find_edited(ids), *self.final_values(ids)])

    def is_late(self):
        """Whether a parameter was not fetched since the step."""
        return self.fetcher is not None and bool(self.fetcher.late)

    def fetch(self):
        """All values are in place afterwards, but where others wrote."""
        self.table.follow(self.table.ids)
        if self.fetcher is not None:
            self.fetcher.fetch_all()

    def fetch_each(self):
        """Ids of all that is trained, each once its values are in place, but where others wrote."""
        for i, _ in self.table.trainable:
            if self.fetcher is not None:
                self.fetcher.fetch([i])
            yield i

    # ---- following the trainer ---------------------------------------------------------------------------------------

    def _find_replaced(self, groups, is_step):
        """{id: parameter} of bound parameters in whose place the model holds another one; raises where there is none that
        could go on. In a step only looked for when other parameters than last time had no backward, or other modules
        no forward, which is how it shows."""
        model = self._model()
        if model is None or not self._model_names:
            return {}
        if is_step:
            quiet = (self.feed.quiet_ids(), self.fetcher is not None and tuple(self.fetcher.is_heard))
            if quiet == self._quiet_ids:
                return {}
            self._quiet_ids = quiet
        table, known = self.table, self._model_names
        now = parameters_in(model)
        held = {id(p) for p in now.values()}
        grouped = hyper_groups.ids(groups)
        lost = [i for i, p in enumerate(table.params) if id(p) in known and id(p) in grouped and id(p) not in held]
        if lost:
            self._quiet_ids = None
        replaced = {i: now[known[id(table.params[i])]] for i in lost if known[id(table.params[i])] in now}
        missing = [table.names[i] for i in lost if i not in replaced or id(replaced[i]) in grouped]
        if missing:
            raise errors.ParamError(f"the model no longer holds the bound parameters {listed(missing)}, and no parameter "
                                    "of its own in their place: take them out of param_groups, or make a new optimizer for the changed model",
                                    scope="param")
        for i, p in replaced.items():
            table.check_successor(i, p)
        return replaced

    def _find_changes(self, groups, is_step=False):
        """(replaced, whether another set is to be bound, ids that were written, ids in other memory)."""
        table = self.table
        is_regrouped = not hyper_groups.hold(groups, self._members)
        if (self.fetcher is not None or is_regrouped) and table.has_moved(table.ids):
            if not self.feed.is_alone:
                self.discard()  # what is on its way to other ranks; step() delivers all gradients again
            table.relocate()  # what is on its way to a parameter comes to the new memory
        replaced = self._find_replaced(groups, is_step)
        is_thawed = any(is_frozen and (p.requires_grad or p.grad is not None) for is_frozen, p in zip(table.frozen, table.params))
        is_another_set = bool(replaced) or is_thawed or is_regrouped
        changed, moved = table.find_changed(hyper_groups.ids(groups) if is_regrouped else None)
        return replaced, is_another_set, changed, moved

    def follow(self, groups, *, is_step=False):
        """Binds again where parameters moved, were replaced, unfrozen, added to the groups or taken out of them. Weights
        that others wrote since the last step become the masters."""
        replaced, is_another_set, changed, moved = self._find_changes(groups, is_step)
        values, fresh = None, []
        if self.table.carries:
            changed = self._announce(changed)
        elif self.table.told.can_adopt and not replaced:
            changed = self._adopt_edits(changed, moved)
        if is_another_set or moved:
            changed, values, fresh = self._bind_again(groups, replaced, changed)
        if changed:
            self.resynchronise(changed, values=values)
        if fresh:
            self.instance.params_changed(fresh, reset=True)
        if changed or moved or is_another_set:
            self.table.push(self.table.ids)

    def _announce(self, changed):
        """Makes masters of the elements that others wrote, whose values are in the mirrors. Returns those of changed whose values count
        whatever stood there."""
        table = self.table
        owners = {table.owner(i) for i in changed} - table.told.put
        self.feed.forget(owners)
        edits = [i for i in sorted(owners) if not table.values.is_shown(i, table.aliases[i])]
        if edits:
            self.instance.drain()
            self.instance.params_changed(edits)
            self._say_changed(edits)
        table.mirrors.see_edited([table.params[i] for i in changed if table.owner(i) in owners])
        return [i for i in changed if table.owner(i) not in owners]

    def _empty(self, ids):
        """No gradient is where the values of these belong; step() sends it again."""
        taken = self.table.values.taken(ids)
        if taken:
            self.feed.lose(taken)
            self.table.empty(taken)

    def _adopt_edits(self, changed, moved):
        """Makes masters of the elements that others wrote, element by element; all else has every update. Returns those of changed for which
        this cannot be."""
        table, kept = self.table, {}
        edited = table.edited_by_element(changed, moved)
        if not edited:
            return changed
        self.feed.forget(list(edited))
        for i, p in edited.items():
            if i in moved:
                kept[i] = table.aliases[i].clone()
                table.aliases[i].data.copy_(p.clone())  # it may be a view of the same memory
        table.mirrors.see_edited((), [table.params[i] for i in kept])
        self.instance.drain()  # what waits to be fetched comes, but not over these
        table.find_edited(list(edited), hold=True)
        self.instance.flush()
        masters = {i: torch.empty(table.shapes[i], dtype=torch.float32, device="cpu") for i in edited}
        self.instance.export(masters)
        edits = [i for i in edited if not table.values.holds(i, masters[i].to(table.aliases[i].device, table.dtypes[i]))]
        self.instance.adopt(list(edited))
        for i, was in kept.items():
            masters = table.aliases[i].clone()
            table.aliases[i].data.copy_(was)
            edited[i].copy_(masters)
        if edits:
            self._say_changed(edits)
            self.n_flushed_steps = FLUSHED_STEPS
        if not moved:
            table.remember()
        return [i for i in changed if table.owner(i) not in edited]

    def edited_values(self, groups):
        """{name: values} that others wrote and no step has followed yet; they stay so. Another set of parameters is
        followed first."""
        _, is_another_set, changed, moved = self._find_changes(groups)
        if is_another_set or any(self.table.is_gone(i) for i in moved):
            self.follow(groups)
            return {}
        table = self.table
        edited = {i: table.aliases[i] for i in changed}
        for i, values in ((i, local(table.params[i]).detach()) for i in moved):
            if not table.values.holds(i, values):
                edited.pop(i, None)
                edited.update({} if table.values.is_shown(i, values) else {i: values})
        return {table.names[i]: values.clone() for i, values in edited.items()}

    def keep_states(self, groups, names):
        """A state is about to be loaded that has these names: frozen ones of them are bound as if they had been frozen in mid-run,
        so that what it holds of them is there when they are unfrozen."""
        self.follow(groups)
        frozen = {name for name, is_frozen in zip(self.table.names, self.table.frozen) if is_frozen}
        if not frozen.isdisjoint(names):
            self._bind_again(groups, {}, [], frozen.intersection(names))

    def _bind_again(self, groups, replaced, written, kept=frozenset()):
        """Whole or not at all. written: ids that were written in place. kept: names of frozen ones that get a state. Returns the new ids of what was written, the
        values, which binding may have written over, and the ids of other parameters under a name that was known."""
        before, names = self.table, self.names
        if self.feed.is_releasing and self.feed.has_fired():
            with self.feed.lock:
                self.feed.drop_released()
            raise errors.StateError("release_gradients=True: parameters were unfrozen, added, replaced or moved since the last step, and the "
                                    "gradients of this one had been given back: its backward counts for nothing. Change them after step() and "
                                    "call flush() before the next backward")
        self._empty(before.ids)
        members = [(group, list(group["params"])) for group in groups]
        successor = {id(before.params[i]): p for i, p in replaced.items()}
        known = {id(p) for p in before.params} | {id(p) for p in replaced.values()}
        with self.feed.lock:
            try:
                hyper_groups.check_all(groups)
                for group, params in members:
                    group["params"][:] = [successor.get(id(p), p) for p in params]
                self.names = {**names, **{id(p): before.names[i] for i, p in replaced.items()}}
                table = self._make_table(groups, trained={before.names[i] for i, _ in before.trainable} | kept)
                self._refuse_back(table)
                edited = table.find_rewritten(before, written)
                values = [table.aliases[i].clone() for i in edited]
                self._settle_leaving(before, [i for i, p in before.trainable if id(p) not in table.numbers and i not in replaced])
                self.discard()  # step() delivers all gradients again
                self._bind(table, groups)
            except BaseException:
                self.names = names
                for group, params in members:
                    group["params"][:] = params
                raise
            self.feed.adopt(table)
            self._adopt(groups, table)
            self._bring_back(table)
        self._say_bound_again(before)
        return edited, values, [i for i, p in table.trainable if id(p) not in known and table.names[i] in before.names and local(p).numel()]

    def _settle_leaving(self, before, ids):
        """Updates on their way to parameters that are taken out of the groups arrives before they are let go: from now on they
        stand still. What others wrote there stays."""
        ids = [i for i in ids if i in before.ids and not before.is_gone(i)]
        if ids:
            kept = {i: before.aliases[i].clone() for i in before.find_edited(ids)}
            self.instance.flush()
            found = moments.read(self.instance, None) if self.feed.is_alone else {}
            self._left.update({id(before.params[i]): (before.params[i], before.names[i], found.get(before.names[i])) for i in ids})
            for i, values in kept.items():
                before.aliases[i].copy_(values)
            before.push(ids)

    def _refuse_back(self, table):
        """Several ranks have their state in files of all of them only: what was taken out has lost its moments."""
        back = [table.names[i] for i, p in table.trainable if id(p) in self._left] if not self.feed.is_alone else []
        if back:
            raise errors.StateError(f"{listed(back)} was taken out of the groups and put back: with several ranks its moments are not kept, and "
                                    "AdamW would go on with them. Freeze it instead (requires_grad_(False)), which keeps them; or train a "
                                    "new Parameter in its place, which begins afresh")

    def _bring_back(self, table):
        """Parameters that had been taken out of the groups and are bound again go on with their moments, as in torch."""
        found = {table.names[i]: self._left.pop(id(p))[2] for i, p in table.trainable if id(p) in self._left}
        found = {name: entry for name, entry in found.items() if entry is not None}
        if found:
            state.load(self.instance, adamw.blobs_with(self.instance, found, lambda _: moments.names_of(None), is_all=False))
            self._arrive_loaded()

    def _say_bound_again(self, before):
        table = self.table
        known = {before.names[i] for i, _ in before.trainable}
        new = [table.names[i] for i, _ in table.trainable if table.names[i] not in known]
        if new:
            self.log.info("parameters join the training; windows begin again: %s", listed(new))
        else:
            self.log.debug("parameters were bound again")

    def resynchronise(self, ids, reset=False, values=None, is_told=False):
        """Open windows are closed first, so that the moments miss no gradient; the edited values (None: those in place) are
        kept over that, and become the masters. Where they are what closing the windows gives, nothing was edited. An edit
        may be relative to the visible values (clamping at every step), which lag behind in open windows: for some steps from
        now, every step ends with all updates in place. is_told: by params_changed()."""
        table = self.table
        self.feed.forget(ids)
        self._empty(ids)
        if is_told and table.told.has_digests:
            self.instance.flush()  # edits were followed: what else is there keeps what it has in store
        values = values if values is not None else [table.aliases[i].clone() for i in ids]
        self.instance.flush()
        edits = {i: value for i, value in zip(ids, values) if is_told or not table.values.holds(i, value)}
        for i, value in edits.items():
            table.aliases[i].copy_(value)
        if edits:
            self._say_changed(edits)
            self.instance.params_changed(list(edits), reset)
            self.n_flushed_steps = FLUSHED_STEPS
        table.accept([i for i in ids if i not in edits])
        self._arrive()

    def _say_changed(self, ids):
        self.log.log(logging.DEBUG if self._has_said_changed else logging.INFO,
                     "parameters were written by the trainer; the masters follow: %s", listed(self.table.names[i] for i in ids))
        self._has_said_changed = True
