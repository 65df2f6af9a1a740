# SPDX-License-Identifier: Apache-2.0
"""Saves out of a signal handler, on whatever line of this package the signal lands: what is saved is the state of a finished step, and the
run goes on to the same bits."""
import os
import pathlib
import signal
import sys
import tempfile
from unittest import mock

from support import FEW, HYPER, SYNCHRONOUS, TorchTest, config, loss_of, mlp, torch
import zfplugin.torch

PACKAGE = str(pathlib.Path(zfplugin.__file__).parent)
N_STEPS = 6
STRIDES = 52  # how many lines of a run are interrupted; and then as many of what handlers do
WINDOWS = {"zenflow.update_interval": 4, "zenflow.publish_lag": 0}
RUNS = [{"config": config(SYNCHRONOUS, FEW), **more} for more in (
    {}, {"fetch": True}, {"overlap": True}, {"fetch": True, "overlap": True}, {"release_gradients": True})]
RUNS += [{"config": config(WINDOWS, FEW), **more} for more in ({}, {"fetch": True}, {"overlap": True, "fetch": True})]


def values_in(value):
    """All tensors in nested dicts and lists, as bytes, with their places."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().tobytes()
    if isinstance(value, dict):
        return {key: values_in(entry) for key, entry in value.items()}
    return [values_in(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def saved(model, opt):
    """A checkpoint's contents; in windows by what leaves them open, so that runs with and without a signal are the same."""
    read = opt.adamw_state_dict if opt.is_in_windows else opt.state_dict
    return {"weights": values_in(model.state_dict()), "optimizer": values_in(read()),
            "export": values_in(opt.export()) if opt.layout else None}


class Interrupting:
    """A trace function that sends SIGUSR1 at every stride-th line of the package, in the handler of such a signal, too, but no deeper."""

    def __init__(self, stride=0):
        self.stride, self.n_lines, self.depth = stride, 0, 0

    def handle(self, save):
        self.depth += 1
        save()
        self.depth -= 1

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_filename.endswith("signals.py"):
            return None
        if event == "line" and self.depth < 2:
            self.n_lines += 1
            if self.stride and self.n_lines % self.stride == 0:
                os.kill(os.getpid(), signal.SIGUSR1)
        return self


class Signals(TorchTest):
    def setUp(self):
        super().setUp()
        before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def train(self, options, trace=None):
        """The steps of a run, which saves, too. Its weights at the end; without a trace the states that it went through, by the number of
        steps; with one [(steps, what was saved on a signal)]."""
        model, states, found = mlp(), [[] for _ in range(N_STEPS + 1)], []
        opt = self.zenflow(model, model=model, **HYPER, **options)
        opt.is_in_windows = WINDOWS.items() <= options["config"].items()
        signal.signal(signal.SIGUSR1, lambda *_: trace.handle(lambda: found.append((opt.stats()["steps"], saved(model, opt)))))

        def note():
            if trace is None:
                states[opt.stats()["steps"]].append(saved(model, opt))

        opt.bind()
        note()
        sys.settrace(trace)
        try:
            for i in range(N_STEPS):
                loss_of(model, i).backward()
                opt.step()
                note()
                opt.zero_grad()
                if i % 2:
                    opt.load_state_dict(opt.state_dict())
                    model.state_dict()
                    opt.save(f"{self.folder}/saved")
                    note()
            opt.flush()
        finally:
            sys.settrace(None)
        note()
        return values_in(dict(model.named_parameters())), states if trace is None else found

    def test_on_whatever_line(self):
        n_all, n_apart = 0, 0
        for options in RUNS:
            lines = Interrupting()
            end, states = self.train(options)
            self.train(options, lines)
            its_end, found = self.train(options, Interrupting(lines.n_lines // STRIDES))
            n_apart += sum(state not in states[n] for n, state in found) + (its_end != end)
            n_all += len(found)
        self.assertGreater(n_all, 1000)
        self.assertEqual(n_apart, 0)

    def test_a_handler_that_ends_the_process_finds_a_whole_step(self):
        """And so does a caller that goes on behind a KeyboardInterrupt."""
        (model, opt), (other, its) = ((model, self.zenflow(model, **HYPER)) for model in (mlp(), mlp()))
        for error, signum in ((SystemExit, signal.SIGUSR1), (KeyboardInterrupt, signal.SIGINT)):
            signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
            for one in (model, other):
                loss_of(one, 0).backward()
            write = zfplugin.torch.groups.write
            with mock.patch("zfplugin.torch.groups.write", lambda *args: (signal.raise_signal(signum), write(*args))):
                with self.assertRaises(error):
                    opt.step()
            its.step()
            self.assert_equal(model, other)
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
