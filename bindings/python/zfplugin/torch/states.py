# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer, saved and loaded: state_dict() and its parts, .state, and directories.

Model: what the plugin keeps (masters, moments, counts) is read from a checkpoint that it writes, into a state dict (checkpoint.py), as
torch's optimizers have it (moments.py), or by the rows of this process (sharded.py). A save closes the windows that are open, so that this
run and the one that loads it go on alike; edits that no step has followed yet are kept beside it, and windows then stay open.
"""
import torch

from .. import errors, state
from ..signals import whole
from . import adamw, checkpoint, cut, experts, moments, muon
from . import groups as hyper_groups
from .hooks import with_versions


class States:
    """A part of the optimizer (optimizer.py), whose binding, instance, ranks and tally it uses."""

    @whole
    @torch.no_grad()
    def state_dict(self):
        """Groups, and the plugin's state as plain tensors and text (checkpoint.py). Between steps. Windows close, as by flush(), so
        that this run and the one that loads it go on alike; where none are open (mode = exact) nothing changes. Weights that
        others wrote since the last step are saved as such, and followed at the next one: they may be an average that is swapped
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
        flush() would leave; nothing changes. The weights to go with it are those after flush(), or of export(). Groups of rule="muon" are
        left out: muon_state_dict() has them."""
        rules = [rule for rule in self._rules() if rule != muon.NAME]
        moments.check_rules(rules)
        return moments.adamw_state_dict(*self._for_torch(lambda rule: rule != muon.NAME), rules)

    @whole
    @torch.no_grad()
    def muon_state_dict(self):
        """A state dict for torch.optim.Muon, of the groups whose rule is that."""
        return moments.muon_state_dict(*self._for_torch(lambda rule: rule == muon.NAME))

    def _for_torch(self, is_chosen):
        """(groups, packed, whose rules are chosen; the entries of their parameters, by number)."""
        groups = [group for group, rule in zip(self.param_groups, self._rules()) if is_chosen(rule)]
        numbers = {id(p): n for n, p in enumerate(p for group in groups for p in group["params"])}
        return hyper_groups.packed(groups), {numbers[id(p)]: entry for p, entry in self._read_moments(is_whole=True).items() if id(p) in numbers}

    @property
    def state(self):
        """{parameter: {"step", "exp_avg", "exp_avg_sq"}}, read from the plugin when asked for (moments.py)."""
        return self._state

    @state.setter
    def state(self, given):
        """Without entries of parameters it lets moments begin again, as in torch, whose constructor puts an empty one here."""
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
        What was saved before the first step begins again: fresh moments and windows, weights as they are. A state of
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
            binding.keep_states(self.param_groups, checkpoint.names(blobs))
            checkpoint.check_part(packed, binding.table.spread)
            renamed = checkpoint.fit_names(blobs, binding.table)
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
        Windows close, as by flush(). Returns the report as a dict. Weights that others wrote are followed first:
        where an average is swapped in, swap it out before."""
        self._followed("save")
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

    def _load(self, where, partial=False, at_rest=()):
        binding = self._followed("load")
        self._drop_delivered(binding)
        report = state.load(self._instance, where, partial)
        binding.loaded(at_rest)
        self._tally.loaded()
        return report

    @staticmethod
    def _drop_delivered(binding):
        """Of the coming step; of several ranks all do."""
        if binding.feed.is_releasing and binding.feed.has_fired():
            raise errors.StateError("release_gradients=True: gradients of the coming step were given back, and a state that is loaded would take "
                                    "their place: load it after step(), or call zero_grad() before, which drops them")
        if binding.feed.has_delivered():
            binding.discard()

    def _refuse_shared(self, doing):
        if self._ranks is not None:
            raise errors.StateError(f"{doing}: the optimizer of {self._ranks.size} ranks is saved by all of them together: "
                                    "save(directory) and load(directory), on every rank")

    def _refuse_cut(self, doing):
        if self._ranks is None and self._binding is not None and self._binding.table.spread is not None:
            raise errors.StateError(f"{doing}: parameters are cut over processes, and this has a part of them only: use "
                                    "state_dict() of each process, in a file of its own, or torch.distributed.checkpoint with "
                                    "get_state_dict(model, optimizer)")

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
            moments.add_empty(found, {table.names[i]: p for i, p in table.trainable if not table.shapes[i].numel()}, self._binding.rules_by_name())
        like = store.like if store is not None else lambda value, p, _: cut.like(value, p)
        return {p: {member: value if member == "step" else like(value, p, name) for member, value in found[name].items()}
                for p, name in ((p, table.names[i]) for i, p in table.trainable) if name in found}
