# SPDX-License-Identifier: Apache-2.0
"""The place of the values of bound parameters, chosen when a table is made: the bound memory, or, where that carries gradients in turn
(carried.py), the device and the plugin's masters alone. table: a ParameterTable."""
import torch

from .. import _abi, errors
from .lanes import words_of


class Told:
    """The knowledge of edits: what the bound instance tells, and what is known besides."""

    def __init__(self):
        self.has_digests = self.can_adopt = False
        self.put = set()  # ids whose values count as written by others, all of them

    def watch(self, instance, ids):
        """An instance was bound."""
        self.has_digests = self._does(instance.written, ids[:1])
        self.can_adopt = self._does(instance.adopt, [])  # else an edit counts for its whole parameter

    @staticmethod
    def _does(function, ids):
        try:
            function(ids)
        except errors.StateError:
            return False
        return True


class Bound:
    """In the bound memory. The plugin's digests tell what others wrote; where it keeps none, version counters do."""

    carries = False

    def __init__(self, table):
        self.table, self.told = table, Told()

    def edited(self, asked, hold):
        """Those of asked that others wrote. hold: the plugin leaves them alone until it is asked about them again."""
        table = self.table
        params = table.now()
        found = table.instance.written(asked, _abi.WRITTEN_HOLD if hold else _abi.WRITTEN_LOOK) if self.told.has_digests else \
            [i for i in asked if params[i]._version != table.versions[i]]
        table.mirrors.see_edited([table.params[i] for i in asked], [table.params[i] for i in found])
        return found

    def kept(self, ids):
        """{id: a copy} of those over which the plugin may write though they are held."""
        return {} if self.told.has_digests else {i: self.table.aliases[i].clone() for i in ids}

    def taken(self, ids):
        """Owners among ids whose memory has a gradient."""
        return []

    def holds(self, i, other):
        """Whether i has the values of other, in its dtype, to the bit."""
        table = self.table
        if table.is_gone(i):
            return table.aliases[i].data_ptr() == other.data_ptr()  # exchanged under the storage: the values went along
        return torch.equal(words_of(table.aliases[i].to(other.dtype)), words_of(other))

    def is_shown(self, i, other):
        """Whether other, of the parameter's dtype, has what the plugin put in place last, whatever stands in the bound memory now."""
        table = self.table
        if not self.told.has_digests or table.is_gone(i) or other.dtype is not table.dtypes[i]:
            return False
        place = table.aliases[i].data
        kept, other = place.clone(), other.clone()  # they may be of one memory
        place.copy_(other)
        is_written = table.instance.written([i])
        place.copy_(kept)
        return not is_written


class Carried(Bound):
    """On the device, as round(master). The plugin compares by element once it is told (Binding._announce)."""

    carries = True

    def edited(self, asked, hold):
        return asked

    def kept(self, ids):
        return {}

    def taken(self, ids):
        table = self.table
        return sorted({table.owner(i) for i in ids if table.mirrors.has_gradient(table.params[i])})

    def holds(self, i, other):
        return torch.equal(words_of(self.table.newest(i).to(other.dtype)), words_of(other.cpu()))

    def is_shown(self, i, other):
        return other.dtype is self.table.dtypes[i] and self.holds(i, other)
