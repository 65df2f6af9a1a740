# SPDX-License-Identifier: Apache-2.0
"""Whether somebody changes gradients between backward and step in a way that moves no version counter (.grad.data.mul_(...)).

Model: on a stream (CUDA) gradients that travel during backward are told from changed ones by version counters alone: to compare
contents the CPU would have to wait. So some steps are watched: the first ones, and from then on every 64th. In a watched step nothing
travels early, the device adds up each gradient's words in its hook and again at step, and whether they differ is read at a later step,
once it is there. After CLEAN_STEPS watched ones without a difference gradients travel during backward. Who changes them at every step
is so found out before it matters; who begins later is found within WATCHED_EVERY steps, which is said aloud.

Cost: three small kernels for each parameter, twice, in a watched step.
"""
import torch

from .parameters import words_of

CLEAN_STEPS = 8
WATCHED_EVERY = 64


def _words(grad):
    """One number of its contents on the device. Not the sum alone: signs and rows that change places leave that."""
    words = words_of(grad.detach())
    return words.sum() + 3 * words[::2].sum() if words.dim() else words.sum()


class Watched:
    """place: of the gradients; its later() reads a flag of the device without waiting."""

    def __init__(self, place):
        self.place = place
        self.n_steps = self.n_clean = 0
        self.noted = {}  # of this step: {id: (gradient, its version, its words)}
        self.flags = []  # of watched steps: functions that give True, False, or None while it is not known

    def is_on(self):
        """Whether this step is watched."""
        return self.n_clean < CLEAN_STEPS or self.n_steps % WATCHED_EVERY == 0

    def note(self, i, grad):
        """In the gradient's hook."""
        self.noted[i] = grad, grad._version, _words(grad)

    def look(self, grads):
        """At step. grads: {id: gradient}. How many of those that were noted are other ones now, as torch tells."""
        same = [(words, _words(grad)) for i, (grad, version, words) in self.noted.items()
                if grads.get(i) is grad and grad._version == version]
        n_changed = len(self.noted) - len(same)
        if same:
            before, now = zip(*same)
            self.flags.append(self.place.later(torch.stack(before).ne(torch.stack(now)).any()))
        self.noted = {}
        return n_changed

    def end_step(self):
        """Whether one was found to have been changed in silence."""
        self.n_steps += 1
        while self.flags:
            is_changed = self.flags[0]()
            if is_changed is None:
                break
            self.flags.pop(0)
            if is_changed:
                return True
            self.n_clean += 1
        return False
