# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests: the package of this checkout, small models, and torch's AdamW as the reference.

The plugin's exact mode is update_interval = 1 with publish_lag = 0, or topk_ratio = 1: the weights are AdamW's at every
step. torch rounds in another order, so the two agree within BOUND, not bit for bit.
"""
import contextlib
import copy
import ctypes
import importlib.util
import io
import logging
import os
import sys
import tempfile
import threading
import traceback
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path.append(str(HERE.parent / "examples"))
if not os.environ.get("ZF_TEST_INSTALLED"):  # else the package that pip installed
    sys.path.insert(0, str(HERE.parent))

SYNCHRONOUS = {"zenflow.mode": "exact", "zenflow.update_interval": 1, "zenflow.publish_lag": 0}
ALL_SELECTED = {"zenflow.mode": "windows", "zenflow.topk_ratio": 1}
# Few channels selected: windows are open soon, and much waits in them.
FEW = {"zenflow.mode": "windows", "zenflow.topk_ratio": 0.1, "zenflow.full_warm_up_rounds": 2}
HYPER = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.05}
DEVICE = "cpu"  # of models of usage.py, and of what batch() gives; test_torch_carried.py sets another
BOUND = 2e-5  # of |plugin - torch|, absolute, for weights of about 1 after 1000 steps at lr 1e-3


def library_path():
    return os.environ.get("ZFPLUGIN_LIBRARY") or os.environ.get("ZFPLUGIN_PATH") or None


def config(*parts):
    out = {}
    for part in parts or (SYNCHRONOUS,):
        out.update(part)
    return out


class Together:
    """Optimizers of torch's (opts) that step as one."""

    def step(self):
        for opt in self.opts:
            opt.step()

    def zero_grad(self):
        for opt in self.opts:
            opt.zero_grad()


def needs(*packages):
    """Skips a test or a class of them where one of these is not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return unittest.skipIf(missing, f"not installed: {' '.join(missing)}")


class Terminal(io.StringIO):
    """wait(): until something is written from now on."""

    def __init__(self):
        super().__init__()
        self.is_written = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        self.is_written.set()
        return super().write(text)

    def wait(self):
        self.is_written.clear()
        assert self.is_written.wait(60), "nothing was written"


def in_a_fork(act):
    """act() in a fork of this process, in which Python then ends as it does anywhere: the exit status, 1 where act() raised, and what it said."""
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if pid == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            try:
                act()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            ctypes.pythonapi.Py_Exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        return status, said.read()


BOTH = (config(), config(ALL_SELECTED, {"zenflow.full_warm_up_rounds": 3}))  # exact modes

try:
    import torch
    from torch import nn
except ImportError:
    torch = None
else:
    torch.set_num_threads(1)

    def mlp(seed=0, width=24, dtype=torch.float32, n_hidden=2):
        torch.manual_seed(seed)
        layers = [nn.Linear(8, width), nn.GELU()]
        for _ in range(n_hidden):
            layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
        return nn.Sequential(*layers, nn.Linear(width, 4)).to(dtype)

    def batch(step, dtype=torch.float32, n=16):
        generator = torch.Generator().manual_seed(1000 + step)
        x = torch.randn(n, 8, generator=generator)
        y = torch.stack([x[:, :4].sum(1), x[:, 4:].sum(1).sin(), x.prod(1), x[:, 0] * x[:, 1]], 1)
        return x.to(DEVICE, dtype), y.to(DEVICE, dtype)

    def loss_of(model, step, dtype=torch.float32):
        x, y = batch(step, dtype)
        return nn.functional.mse_loss(model(x).float(), y.float())

    def twins(make=mlp, **kwargs):
        """Two models of the same weights: for the plugin and for torch's AdamW."""
        ours = make(**kwargs)
        return ours, copy.deepcopy(ours)

    def worst(ours, theirs):
        """Largest difference of the weights, and the name of the parameter it is in."""
        pairs = zip(ours.named_parameters(), theirs.parameters())
        return max(((a.detach().double() - b.detach().double()).abs().max().item(), name)
                   for (name, a), b in pairs if a.numel())

    def values_of(model):
        return [p.detach().clone() for p in model.parameters()]

    def zenflow(trained, **kwargs):
        """trained: a module, or what ZenFlow takes in its place."""
        import zfplugin.torch

        kwargs.setdefault("config", config())
        return zfplugin.torch.ZenFlow(trained.named_parameters() if isinstance(trained, nn.Module) else trained, **kwargs)


def _is_no_forgotten_flush(record):
    """Tests end without one."""
    return "after the last flush()" not in record.msg


class TorchTest(unittest.TestCase):
    """Base of tests that need torch (run_tests.py --needs-torch); optimizers made with self.zenflow() are closed."""

    def setUp(self):
        self.made = []

    def tearDown(self):
        logging.getLogger("zfplugin").addFilter(_is_no_forgotten_flush)
        for opt in self.made:
            opt.close()
        logging.getLogger("zfplugin").removeFilter(_is_no_forgotten_flush)

    def zenflow(self, trained, **kwargs):
        self.made.append(zenflow(trained, **kwargs))
        return self.made[-1]

    def alone(self, with_model=False, **kwargs):
        """A small model, and our optimizer of it."""
        model = mlp()
        return model, self.zenflow(model, **({"model": model} if with_model else {}), **kwargs)

    def pair(self, make=None, with_model=False, **kwargs):
        """Two models of the same weights, and their optimizers: ours, and AdamW."""
        ours, theirs = twins(make or mlp)
        opt = self.zenflow(ours, **{**HYPER, **({"model": ours} if with_model else {}), **kwargs})
        return ours, theirs, opt, torch.optim.AdamW(theirs.parameters(), **HYPER)

    def beside_adamw(self, one_step, n_steps=40, make=None, bound=BOUND, **kwargs):
        """one_step(model, optimizer, step) with ours and with AdamW, in both exact modes. The last optimizer."""
        for mode in BOTH:
            ours, theirs, opt, reference = self.pair(make, **{"config": mode, **kwargs})
            self.train_both(ours, theirs, opt, reference, n_steps, one_step)
            self.assert_same(ours, theirs, bound)
        return opt

    def assert_equal(self, ours, theirs):
        """To the bit."""
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
            self.assertTrue(torch.equal(p, q), name)

    def assert_values(self, model, values):
        """values_of() it, or some by name, to the bit."""
        for i, (name, p) in enumerate(model.named_parameters()):
            self.assertTrue(torch.equal(p, values[name if isinstance(values, dict) else i]), name)

    def assert_same(self, ours, theirs, bound=BOUND, flushed=()):
        """flushed: optimizers that are, before."""
        for opt in flushed:
            opt.flush()
        difference, name = worst(ours, theirs)
        self.assertLessEqual(difference, bound, f"worst in {name}")

    def train_both(self, ours, theirs, opt, reference, steps, one_step):
        """one_step(model, optimizer, step) on both; steps: how many, or which."""
        for step in range(steps) if isinstance(steps, int) else steps:
            one_step(theirs, reference, step)
            one_step(ours, opt, step)

    @contextlib.contextmanager
    def unbound(self):
        """What is said at bind is not heard."""
        def is_heard(record):
            return not record.getMessage().startswith("bind: ") and "would hold" not in record.getMessage()
        logging.getLogger("zfplugin").addFilter(is_heard)
        try:
            yield
        finally:
            logging.getLogger("zfplugin").removeFilter(is_heard)

    def messages(self, level=logging.WARNING):
        return self.assertLogs("zfplugin", level)


def train(model, opt, steps, one_step=None):
    for step in steps:
        (one_step or plain_step)(model, opt, step)


def step_in(dtype):
    """One step of a model with weights of this type."""
    def one_step(model, opt, step):
        opt.zero_grad()
        loss_of(model, step, dtype).backward()
        opt.step()
    return one_step


def plain_step(model, opt, step):
    step_in(torch.float32)(model, opt, step)
