# SPDX-License-Identifier: Apache-2.0
"""Weights that leave the run.

Visible weights lag behind in open windows. A save of a model wants what flush() would give, while a run that goes on must
not be flushed for it. So the model's state_dict() is hooked: values that lack updates are replaced by exported ones, in
copies; the parameters, windows and clocks stay as they are. Where nothing is on its way, and for what others wrote
(an average that is swapped in), state_dict() gives the parameters themselves, as ever. A write into such a copy means the
parameter: what was written goes there before the model's next forward, or the next call of the optimizer.

A save of the optimizer closes windows, so that final weights are the visible ones: whichever of the two is loaded first, the run goes on
to the bit.

Tally counts what would be lost if the run ended now, for the warning at its end.
"""
import contextlib
import os
import weakref

import torch

from ..signals import whole
from .cut import like, local
from .hooks import Hook, on_forward, with_versions
from .parameters import same_words


class FinalWeights:
    """Hooks of one model. bound: a bound method that gives the optimizer's Binding, or None before the first step."""

    def __init__(self, model, bound, tally):
        self._bound, self.tally = weakref.WeakMethod(bound), tally
        self._values = None  # of one state_dict() of the whole model, by id
        self._given = []     # (id, copy, its version) of what state_dict() gave since the last forward or step
        self._older = []     # (weak reference to a copy, its version), from before
        self.model = weakref.ref(model)
        self.handles = [_on_state_dict(module, Hook(self.after_state_dict)) for module in model.modules()]
        self.handles += [module.register_state_dict_pre_hook(Hook(self.before_state_dict)) for module in model.modules()]
        self.handles.append(on_forward(model, Hook(self.take_written)))
        self._prefix = {}    # of a module that is being loaded, by its id
        for module in model.modules():
            self.handles += [module._register_load_state_dict_pre_hook(Hook(self.before_load), with_module=True),  # public since torch 2.5
                             module.register_load_state_dict_post_hook(Hook(self.after_load, on_copy=self.say_copied if module is model else None))]

    def say_copied(self):
        """The model is being pickled (torch.save(model)) or copied (deepcopy): its parameters are, as they are."""
        binding = self._binding()
        if binding is not None and (self.tally.is_pending() or binding.is_late()):
            self.tally.log.warning("the model was copied (deepcopy, or torch.save() of the module) while updates were on their way: the copy "
                                   "lacks them. flush() before, or load the model's state_dict() into the copy, which has them")

    def _binding(self):
        bound = self._bound()
        binding = bound() if bound is not None else None
        return binding if binding is not None and not binding.instance.is_closed else None

    @whole
    @with_versions
    def before_state_dict(self, module, *_):
        binding = self._binding()
        if self._values is None:
            self.take_written()
        if binding is not None:
            binding.fetch()
        if module is self.model():
            self._values = {}

    @whole
    @with_versions
    def after_state_dict(self, module, state_dict, prefix, _):
        binding, is_whole = self._binding(), module is self.model()
        if binding is not None and self.tally.is_pending():
            values = self._values if self._values is not None else {}
            entries = [(prefix + name, p) for name, p in module.named_parameters(recurse=is_whole, remove_duplicate=False)]
            self._replace(binding, state_dict, entries, values)
        if is_whole:
            self._values = None
            self.tally.gave_final()

    def _replace(self, binding, state_dict, entries, values):
        """values: {id: final values, or None where they are the visible ones}, of this call; what it lacks is added."""
        table, found = binding.table, {}
        for key, p in entries:
            i, value = table.numbers.get(id(p)), state_dict.get(key)
            if i is None or table.frozen[i] or not isinstance(value, torch.Tensor) or value.requires_grad \
                    or local(value).data_ptr() != table.addresses[i] or local(p).data_ptr() != table.addresses[i]:
                continue  # keep_vars, replaced already, or not what is bound
            found[key] = table.owner(i)
        lacking = sorted({i for i in found.values() if i not in values and table.shapes[i].numel()})
        values.update({**dict.fromkeys(lacking), **binding.final_values(lacking)})
        for key, i in found.items():
            if values.get(i) is not None:
                state_dict[key] = like(values[i], state_dict[key])
                self._given.append((i, values[i], values[i]._version))

    @whole
    @with_versions
    def take_written(self, *_):
        """Takes what others wrote into copies that state_dict() gave goes into the parameters, element by element."""
        if not self._given and not self._older:
            return
        given, self._given = {i: (copy, version) for i, copy, version in self._given}, []
        written, binding = {i: copy for i, (copy, version) in given.items() if copy._version != version}, self._binding()
        if written and binding is not None:
            self._put(binding, written)
        self._say_written_later()
        self._older += [(weakref.ref(copy), copy._version) for copy, _ in given.values()]

    @staticmethod
    def _put(binding, written):
        """written: {id: a copy that others wrote into}; what it was is what flush() would give."""
        binding.fetch()
        finals = binding.final_values(sorted(written))
        for i, copy in written.items():
            alias = binding.table.aliases[i]
            alias.copy_(torch.where(same_words(copy, finals.get(i, alias)), alias, copy))
        binding.table.mirrors.see_edited((), [binding.table.params[i] for i in written])
        binding.table.push(written)

    def _say_written_later(self):
        alive = [(copy, version) for copy, version in ((ref(), version) for ref, version in self._older) if copy is not None]
        if any(copy._version != version for copy, version in alive):
            self.tally.log.warning("values of an earlier state_dict() were written: they are copies, made while updates were on their way, and the "
                                   "model does not see it. Write into the parameters, or take state_dict() again after the step")
            alive = []
        self._older = [(weakref.ref(copy), version) for copy, version in alive]

    @whole
    @with_versions
    def before_load(self, module, _, prefix, *__):
        binding = self._binding()
        if binding is not None:
            binding.fetch()
        self._prefix[id(module)] = prefix

    @whole
    @with_versions
    def after_load(self, module, keys):
        binding, prefix = self._binding(), self._prefix.pop(id(module), "")
        if binding is None:
            return
        if binding.feed.is_alone and self.tally.is_pending():
            named = dict(module.named_parameters(remove_duplicate=False))
            ids = {binding.table.numbers.get(id(p)) for name, p in named.items() if prefix + name not in keys.missing_keys}
            binding.take_back({binding.table.owner(i) for i in ids - {None}})


def _on_state_dict(module, hook):
    if hasattr(module, "register_state_dict_post_hook"):  # torch 2.5
        return module.register_state_dict_post_hook(hook)
    return module._register_state_dict_hook(hook)


class Tally:
    """Counts what would be lost if the run ended now."""

    def __init__(self, instance, log):
        config = instance.config()
        self.log, self._pid = log, os.getpid()
        self._n_steps = self._n_since_flush = self._n_since_final = 0
        self.n_without = self.n_skipped = 0  # steps without a gradient, and those that were skipped as of the last one
        self._n_warm_up = int(config["zenflow.full_warm_up_rounds"])
        self.is_deferring = (config["zenflow.update_interval"], config["zenflow.publish_lag"]) != ("1", "0")
        with contextlib.suppress(ValueError):  # "auto"
            self.is_deferring = self.is_deferring and float(config["zenflow.topk_ratio"]) < 1
        self.is_deferring = self.is_deferring and config["device.state_mib"] != "all"

    def made_step(self):
        self._n_steps += 1
        self._n_since_flush += 1
        self._n_since_final += 1

    def flushed(self):
        self._n_since_flush = self._n_since_final = 0

    def gave_final(self):
        self._n_since_final = 0

    def loaded(self):
        """A state without open windows, and perhaps after its warm-up."""
        self._n_warm_up, self._n_since_flush, self._n_since_final = -1, 0, 0

    def is_here(self):
        """Whether this is the process that trained."""
        return os.getpid() == self._pid

    def is_pending(self):
        """Whether the visible weights may lack updates."""
        return self.is_deferring and self._n_since_flush > 0 and self._n_steps > self._n_warm_up

    def warn(self, is_settled):
        """The run ends here. is_settled: with all updates in place; else who took final values has them, but the weights do not."""
        if not self.is_pending() or not self.is_here() or is_settled and not self._n_since_final:
            return
        lacking = "what was saved of the weights since lacks updates of deferred channels that were on their way" if self._n_since_final \
            else "updates of deferred channels were on their way"
        self.log.warning("%d steps were made after the last flush(): %s%s. Call flush() at the end of training, or give model=..., whose "
                         "state_dict() then has them; for a run that goes on from the optimizer's state nothing is lost",
                         self._n_since_flush, lacking, "; the weights themselves have them now" if is_settled else ", which the weights lack")
