# SPDX-License-Identifier: Apache-2.0
"""Fetching parameters where they are read: forward pre-hooks, for fetch=True (the default with model=).

Model: with the FETCH capability and publish_lag = 0 the values of a closed window come when they are asked for, and the host
computes them meanwhile. A pre-hook on each module that owns parameters asks, once per step: the replay of a layer hides
under the forward of the layers before it. Until then a parameter shows what it showed before the close, whole, or of what is resident
on several processes the new values of this one's part; step() has waited for everything else. A hook may be silent: torch.compile traces it as nothing, or was there before it; a module may be
called another way. So a module whose hook was silent in a step is fetched when the next step ends: what is not seen to
fetch does not overlap, and is as new.

What somebody else wrote since the step is not fetched: an average that is swapped in for an evaluation stays whole. Swapped
out again, it is fetched at the next forward; else the next step follows it. To look for that means to wait for the device;
on a stream (CUDA) one look tells of all modules that are fetched after it, until one of them is called again, and a forward whose
graph is kept does not look where nothing tells of a write (is_untouched() in parameters.py).

A graph that has read a parameter before its fetch would go backward through other values than it went forward, so version
counters move with the first fetch after a step, as they do with the step: autograd refuses such a graph.

Not every read is in the forward of the module that holds the parameter. Between step and forward functions of torch are watched
(reads.py), and what they are about to read is fetched; where they cannot be watched, step() fetches everything. A model may read a weight elsewhere, too: from time to time everything is
fetched by step(), and the watch goes on until the next step; what is read so is fetched by every step() from then on. An evaluation (without
graphs, the model not in training) may go another way than the training: its first forward fetches everything.

A save or an export makes the instance rest, which brings all that waits. Nobody is to see that: unseen() puts the values aside.
"""
import contextlib
import weakref

import torch

from .hooks import Hook, on_forward
from .cut import local
from .parameters import listed
from .reads import Watch, storage_of

LOOKED_AT = 1031  # steps from one watch to the next, in the end; before, at steps 1, 2, 3, 5, 8, 13, ...: no period keeps clear of these


class Fetcher:
    """Hooks of one model. They count from the constructor on; bind() says which parameters are the plugin's."""

    def __init__(self, model, log):
        self.instance = self.table = None
        self.model, self.log, self.watch = weakref.ref(model), log, Watch()
        self.n_steps, self.looks = 0, (1, 2)  # the next two
        self.is_look = False  # of this step
        self.early = set()  # names of parameters that are read before their module's forward
        self.may_wait = False  # values of the last step wait to be fetched, perhaps
        self.has_said_blind = False
        self.modules = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
        self.modules = [weakref.ref(module) for module in self.modules]
        self.ids = [() for _ in self.modules]      # bound parameters of each module
        self.is_heard = [False] * len(self.modules)  # its hook ran since the last step
        self.is_fetched = [False] * len(self.modules)
        self.is_new = set()  # ids that may change with their next fetch
        self.is_unseen = False  # inside of unseen()
        self.edited = None  # ids that a look found, where one look serves several fetches; None: look again
        self.handles = [on_forward(ref(), Hook(self.before_forward, at)) for at, ref in enumerate(self.modules)]
        self.handles.append(self.watch)

    def bind(self, instance, table):
        numbers = {id(table.params[i]): i for i in table.ids}
        self.instance, self.table, self.may_wait, self.is_new = instance, table, False, set()
        instance.before_rest = self.settle
        self.ids = [tuple(numbers[id(p)] for p in ref().parameters(recurse=False) if id(p) in numbers)
                    if ref() is not None else () for ref in self.modules]
        self.is_late = self.instance.stats().get("publish_lag", 0) == 0  # else values come with steps alone
        hooked = {i for ids in self.ids for i in ids}
        self.unhooked = [i for i in table.ids if i not in hooked]
        owners = {}
        for at, ids in enumerate(self.ids):
            for i in ids:
                owners.setdefault(i, []).append(at)
        self.watched = {id(table.params[i]): (i, owners[i]) for i in owners}
        self.storages, self._storages_at = {}, None
        self.watch.remove()

    def unbind(self):
        self.watch.remove()
        self.instance = self.table = None
        self.ids, self.unhooked = [()] * len(self.modules), []

    def before_forward(self, at, module, *_):
        if getattr(module, "_is_replica", False):
            return  # of DataParallel: a copy, made before; step() fetches for it
        self.is_heard[at] = True
        self.watch.say_forward(self.is_look)
        if self.is_new and not torch.is_grad_enabled() and not getattr(self.model(), "training", True):
            self.fetch_all()
        if self.is_fetched[at]:
            self.edited = None  # another pass began: somebody may have written in between
        if self.is_fetched[at] or not self.ids[at] or self.instance.is_closed:
            return
        self.is_fetched[at] = self.fetch(self.ids[at])

    def fetch(self, ids):
        """False: some were written by somebody else, and stay as they are; or are in other memory, where a step follows."""
        if self.table.has_moved(ids):
            self.table.relocate()
        edited = self._look(ids)
        edited.update(i for i in ids if self.table.has_moved((i,)))
        ids = [i for i in ids if i not in edited]
        if ids:
            self.instance.fetch(ids)
            self._say_shown(ids)
        return not edited

    def before_read(self, ids):
        """The trainer is about to read these, between step and forward."""
        waiting = [i for i in ids if i in self.is_new or self.table.is_aside(i)]
        if waiting and not self.instance.is_closed:
            self.edited = None
            self.fetch(waiting)

    def _say_shown(self, ids):
        """These show the newest values now."""
        if self.is_new:
            owners = {self.table.owner(i) for i in ids}
            shown = [i for i in self.is_new if self.table.owner(i) in owners]
            self.is_new.difference_update(shown)
            self.table.say_written(shown)

    def _look(self, ids):
        """Those of ids that somebody else wrote."""
        if not self.instance.place.is_stream:
            return set(self.table.find_edited([i for i in ids if not self.table.is_gone(i)]))
        if not self.edited and torch.is_grad_enabled() and self.table.is_untouched():
            return set()  # what is written all the same, the plugin leaves out
        if self.edited is None or self.edited:  # what was found may have been written back
            self.edited = set(self.table.find_edited([i for i in self.table.ids if not self.table.is_gone(i)]))
        return self.edited.intersection(ids)

    def begin_reads(self):
        """Somebody reads parameters in an order of his own."""
        self.edited = None
        self.watch.pause(1)  # from here on nothing is late

    def fetch_all(self):
        self.begin_reads()
        if self.instance is not None and not self.instance.is_closed:
            self.fetch(self.table.ids)

    def begin_step(self):
        """What waits comes with the step."""
        self.may_wait = False

    @contextlib.contextmanager
    def unseen(self):
        """What the instance's rest brings within it is put aside: parameters show what they showed, until they are fetched."""
        table = self.table
        if self.is_unseen or self.instance.is_closed:
            yield
            return
        before = table.show(table.ids)
        if self.may_wait:
            waiting = [i for i in self.is_new if i not in before and table.owner(i) == i and not table.is_gone(i)]
            before.update({i: table.aliases[i].clone() for i in waiting})
        self.is_unseen = True
        try:
            yield
        finally:
            self.is_unseen = False
            table.put_aside(before)

    # ---- reads that no module's hook announces -----------------------------------------------------------------------

    def end_watch(self):
        """A step begins. What was read before its module's forward comes with every step from now on."""
        found = {self.table.names[i]: how for i, how in self.watch.end().items()}
        new = [name for name in found if name not in self.early]
        if not new:
            return
        self.early.update(new)
        shapes = dict(zip(self.table.names, self.table.shapes))
        n_elems = sum(shapes[name].numel() for name in self.early if name in shapes)
        self.log.warning("read before the forward of the module that holds them: %s (first by %s). step() waits for these from now on, %.3g M "
                         "of %.3g M weights, and they are its newest; exact=True does so for all", listed(new), found[new[0]],
                         1e-6 * n_elems, 1e-6 * sum(self.table.shapes[i].numel() for i in self.table.ids))

    def _begin_watch(self):
        """Whether everything is fetched: it is a look, whose reads are right whatever they are, or nothing can be watched."""
        self.n_steps += 1
        is_due = self.n_steps == self.looks[0]
        if is_due:
            a, b = self.looks
            self.looks = (b, min(a + b, b + LOOKED_AT))
        self._find_storages()
        is_watched = self.watch.begin(self.watched, self.storages, self.is_heard, self.before_read)
        self.is_look = is_watched and is_due
        if not is_watched and not self.has_said_blind:
            self.has_said_blind = True
            self.log.info("reads of weights between step() and the forward cannot be watched (torch.compile was used, or a TorchFunctionMode is "
                          "open): step() waits for all values")
        return self.is_look or not is_watched

    def _find_storages(self):
        if self._storages_at == self.table.addresses:
            return
        self.storages, self._storages_at = {}, list(self.table.addresses)
        for key, (i, _) in self.watched.items():
            self.storages.setdefault(storage_of(local(self.table.params[i])), []).append(key)

    def settle(self):
        """The instance is about to come to rest, which brings all that waits: what somebody else wrote is left as it is.
        Written back as it was, it is what the plugin last showed; its masters have all updates."""
        table = self.table
        if not self.may_wait or self.instance.is_closed:
            return
        if table.has_moved(table.ids):
            table.relocate()
        if any(table.is_gone(i) for i in table.ids):
            return
        self.may_wait = False
        held = table.find_edited(table.ids, hold=True)
        kept = {} if table.has_digests else {i: table.aliases[i].clone() for i in held}  # nothing holds them then
        self.instance.fetch()
        for i, values in kept.items():
            table.aliases[i].copy_(values)
        if not self.is_unseen:
            self._say_shown([i for i in table.ids if i not in held])
        if held:
            table.find_edited(held)  # lets go of them

    def end_step(self):
        """Fetches what no hook was heard for. Nothing was written since the step."""
        silent = {*self.unhooked, *(i for i in self.table.ids if self.table.names[i] in self.early)}
        silent.update(i for ids, is_heard in zip(self.ids, self.is_heard) if not is_heard for i in ids)
        n = len(self.modules)
        self.is_heard, self.is_fetched = [False] * n, [False] * n
        if self.is_late and self._begin_watch():
            silent = set(self.table.ids)
        if silent:
            self.instance.fetch(sorted(silent))
        self.may_wait, self.edited = True, None
        self.is_new = set(self.table.ids).difference(silent) if self.is_late else set()
