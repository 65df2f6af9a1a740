# SPDX-License-Identifier: Apache-2.0
"""fetch=True: the host goes on updating after step() returns, and forward pre-hooks wait for the parameters of their module.

Model: a trainer that sets it says: I read a weight in the forward of the module that holds it; before anything else I call
opt.synchronize(). A pre-hook on each module that owns parameters asks for them once per step: the update of a layer hides under the
forward of the layers before it. Until then a parameter shows what it showed before the step, whole; or of what is resident on several
processes the new values of this one's part. state_dict() of model and optimizer, exports and saves fetch everything first.

A hook may be silent: torch.compile traces it as nothing, or was there before it. So a module whose hook was silent in a step is fetched
when the next step ends: what is not seen to fetch does not overlap, and is as new.

What others wrote since the step is not fetched; the next step follows it. To look for that means to wait for the device:
there one look tells of all modules that are fetched after it, until one of them is called again or a version counter has moved.

Where torch carries values, those of the next modules are started ahead, in the order of the last pass: the plugin is asked for all of
them at the first hook after a step, and at each hook what is there by then goes up, beside the forward of this module.

A graph that has read a parameter before its fetch would go backward through other values than it went forward, so version
counters move with the first fetch after a step, as they do with the step: autograd refuses such a graph.
"""
import weakref

from ..signals import whole
from .hooks import Hook, on_forward


class Fetcher:
    """Hooks of one model. They count from the constructor on; bind() says which parameters are the plugin's."""

    def __init__(self, model):
        self.instance = self.table = None
        self.modules = [weakref.ref(module) for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
        self.ids = [() for _ in self.modules]      # bound parameters of each module
        self.is_heard = [False] * len(self.modules)  # its hook ran since the last step
        self.is_fetched = [False] * len(self.modules)
        self.late = set()  # ids that were not fetched since the step
        self.edited = None  # ids that a look found, where one look serves several fetches; None: look again
        self.order, self.order_before = [], []  # modules as their hooks fetched, since the step and before it
        self.ahead = None  # [(ids of a module, fence)] that were asked for; None: not since the step
        self.handles = [on_forward(ref(), Hook(self.before_forward, at)) for at, ref in enumerate(self.modules)]

    def bind(self, instance, table):
        numbers = {id(table.params[i]): i for i in table.ids}
        self.instance, self.table, self.late, self.ahead = instance, table, set(), None
        instance.before_rest = self.fetch_all
        self.ids = [tuple(numbers[id(p)] for p in ref().parameters(recurse=False) if id(p) in numbers)
                    if ref() is not None else () for ref in self.modules]
        self.waits_for_fetch = instance.stats().get("publish_lag", 0) == 0  # else values come with steps alone
        self.unhooked = set(table.ids).difference(*self.ids)

    def unbind(self):
        self.instance = self.table = None
        self.ids, self.unhooked, self.ahead = [()] * len(self.modules), set(), None

    @whole
    def before_forward(self, at, module, *_):
        if getattr(module, "_is_replica", False):
            return  # of DataParallel: a copy, made before; step() fetches for it
        self.is_heard[at] = True
        if self.is_fetched[at]:
            self.edited = None  # another pass began: others may have written in between
        if self.is_fetched[at] or not self.ids[at] or self.instance.is_closed:
            return
        self.order.append(at)
        self._ask_ahead()
        self.is_fetched[at] = self.fetch(self.ids[at])
        self._push_ahead()

    def _ask_ahead(self):
        """Once after each step, where copies run beside the trainer: what nobody wrote."""
        table = self.table
        if self.ahead is None and table.is_carried and table.mirrors.are_beside(table.trained):
            edited = self._look(table.ids)
            coming = ([i for i in self.ids[at] if i in self.late and i not in edited] for at in self.order_before)
            self.ahead = [(ids, self.instance.start_fetch(ids)) for ids in coming if ids and not table.has_moved(ids)]

    def _push_ahead(self):
        while self.ahead and self.instance.is_over(self.ahead[0][1]):
            ids, _ = self.ahead.pop(0)
            ids = [i for i in ids if i in self.late]
            if not self.table.has_moved(ids) and not self.table.mirrors.are_touched(self.table.params[i] for i in ids):
                self._say_shown(ids, is_ahead=True)

    def fetch(self, ids):
        """False: some were written by others, and stay as they are; or are in other memory, where a step follows."""
        if self.table.has_moved(ids):
            self.table.relocate()
        edited = self._look(ids)
        edited.update(i for i in ids if self.table.has_moved((i,)))
        ids = [i for i in ids if i not in edited]
        if any(i in self.late for i in ids) or not self.table.is_carried and ids:
            self.instance.fetch(ids)
            self._say_shown(ids)
        self.table.follow(ids)
        return not edited

    def _say_shown(self, ids, is_ahead=False):
        """These show the newest values now."""
        if self.late:
            owners = {self.table.owner(i) for i in ids}
            shown = [i for i in self.late if self.table.owner(i) in owners]
            self.late.difference_update(shown)
            self.table.say_written(shown)
            self.table.push(shown, is_ahead)

    def _look(self, ids):
        """Those of ids that others wrote."""
        table = self.table
        if not self.instance.place.is_stream and not table.is_carried:
            return set(table.find_edited([i for i in ids if not table.is_gone(i)]))
        if self.edited is None or self.edited or table.mirrors.are_touched(table.params[i] for i in ids):  # what was found may have been written back
            self.edited = set(table.find_edited([i for i in table.ids if not table.is_gone(i)]))
        return self.edited.intersection(ids)

    def late_of(self, params):
        """Ids of those of params that were not fetched since the step."""
        numbers = self.table.numbers if self.late else {}
        return [numbers[id(param)] for param in params if numbers.get(id(param)) in self.late]

    def fetch_all(self):
        """For a reader of weights elsewhere, and before the instance comes to rest, which brings all that is late. What others
        wrote is left as it is, and its masters have all updates."""
        table, self.edited = self.table, None
        if self.instance.is_closed:
            return
        table.follow(table.ids)  # what was started ahead, for modules that were not called
        if not self.late:
            return
        if table.has_moved(table.ids):
            table.relocate()
        if any(table.is_gone(i) for i in table.ids):
            return
        with table.over_no_edit() as held:
            self.instance.fetch()
        table.say_written([i for i in self.late if i not in held])
        self.late.clear()
        if held:
            table.find_edited(held)  # lets go of them

    def end_step(self):
        """Fetches what no hook was heard for. Nothing was written since the step."""
        silent = self.unhooked.union(*(ids for ids, is_heard in zip(self.ids, self.is_heard) if not is_heard))
        n = len(self.modules)
        self.is_heard, self.is_fetched, self.edited = [False] * n, [False] * n, None
        self.order, self.order_before, self.ahead = [], self.order or self.order_before, None
        self.late = set(self.table.ids) - silent if self.waits_for_fetch else set()
        if silent:
            self.instance.fetch(sorted(silent))
            self.table.push(silent)
