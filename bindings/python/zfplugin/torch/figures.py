# SPDX-License-Identifier: Apache-2.0
"""The figures of an optimizer: counters, where the time went, what it holds; for loggers."""
import torch

from .moments import names_of

_MIB = 1 << 20
_MOST_WATCHED = 1 << 24  # elements of a parameter that is looked at
_TORCHS = {"adamw": "torch.optim.AdamW", "adam": "torch.optim.Adam", "sgd": "torch.optim.SGD", "sgd_nesterov": "torch.optim.SGD"}


class Figures:
    """A part of an object with _instance, an Instance, _binding, a Binding or None, _tally, a Tally, and last_report, a Report or None."""

    _is_asked, _watched = False, {}  # {name of a 16-bit parameter, the newest last: (weights that stood still, masters that moved)}

    def is_bound(self):
        return self._binding is not None

    def is_open(self):
        """Whether it was not closed, and this is the process that made it."""
        return not self._instance.is_closed

    def holdings(self):
        """One sentence of what the plugin holds, and what torch's optimizer would hold of the same parameters; "" before bind()."""
        if not self.is_bound():
            return ""
        table, layout, place = self._binding.table, self.layout, self._instance.place
        rules = {self._binding.rules[number] for number in table.group_of}
        theirs = sum(len(names_of(self._binding.rules[table.group_of[i]])) * table.aliases[i].nbytes for i in table.ids)
        who = _TORCHS.get(next(iter(rules)), "an optimizer of torch's") if len(rules) == 1 else "optimizers of torch's"
        if table.is_carried:
            return f"{who} would hold {theirs / _MIB:.1f} MiB on the device; this holds {(layout['host_nbytes'] + layout['device_nbytes']) / _MIB:.1f} MiB " \
                   "in host memory, beside a copy of the weights" + ("" if table.carries else " and one of the gradients")
        where, here, there = ("host memory", layout["host_nbytes"] + layout["device_nbytes"], "") if not place.is_stream else \
            (place.name, layout["device_nbytes"], f", and {layout['host_nbytes'] / _MIB:.1f} MiB in host memory")
        return f"{who} would hold {theirs / _MIB:.1f} MiB in {where}; this holds {here / _MIB:.1f} MiB there{there}"

    def stats(self):
        """The plugin's counters as a dict."""
        return self._instance.stats()

    def step_record(self, step=0):
        """The parts of a step's time: a dict of zf_step_record_t (zf/ext/stats.h), with its time in step_ns, and of what the
        counters of stats() grew by; None where it is not kept. step 0: the newest finished."""
        return self._instance.step_record(step)

    def metrics(self):
        """Flat {name: number} of the newest finished step and the plugin's counters, for a logger such as TensorBoard. The step after a call
        looks at one 16-bit parameter, the next in turn: of all that were looked at, moved_masters are the elements whose fp32 master moved in
        that step, and still_weights those of them that show what they showed before. In exact, on one rank."""
        report = self.last_report
        out = {} if report is None else {
            "grad_norm": report.grad_norm, "clip_factor": report.clip_factor, "applied": int(report.applied)}
        self._is_asked = True
        if self._watched:
            out["still_weights"], out["moved_masters"] = map(sum, zip(*self._watched.values()))
        return {**out, **self.stats()}

    def _look(self, name=None):
        """(the name of a 16-bit parameter, what it shows, its master); None where metrics() did not ask. name: whose; None: the next in turn."""
        table = self._binding.table
        if name is None and self._is_asked:
            self._is_asked, is_known = False, self._binding.feed.is_alone and not self._tally.is_deferring
            names = [table.names[i] for i in table.ids if is_known and table.aliases[i].element_size() == 2
                     and table.tied_to[i] is None and table.shapes[i].numel() <= _MOST_WATCHED]
            name = next((name for name in names if name not in self._watched), next((name for name in self._watched if name in names), None))
        if name is None:
            return None
        self._binding.fetch()
        i = table.names.index(name)
        master = torch.empty(table.shapes[i], dtype=torch.float32, device="cpu")
        self._instance.export({i: master})
        return name, table.shown(i), master

    def _watch(self, before):
        """before: of _look(), before the step."""
        name, was_shown, was = before
        _, shown, master = self._look(name)
        has_moved = master != was
        self._watched = {**{other: found for other, found in self._watched.items() if other != name},
                         name: (int((has_moved & (shown == was_shown).cpu()).sum()), int(has_moved.sum()))}

    def config(self):
        """Effective configuration: {"section.key": text}."""
        return self._instance.config()

    @property
    def layout(self):
        """Planned memory and elements after binding (zf_bind_report_t as a dict), else None."""
        return self._instance.layout

    @property
    def grad_norm(self):
        """Global gradient norm of the newest finished step, before clipping; None before the first."""
        return self.last_report.grad_norm if self.last_report is not None and self.last_report.has_report else None
