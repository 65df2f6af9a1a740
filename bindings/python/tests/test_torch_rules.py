# SPDX-License-Identifier: Apache-2.0
"""Update rules beside torch's optimizers, a plain Lion, and a compiled rule of the caller's."""
import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support import ALL_SELECTED, HYPER, ROOT, Together, TorchTest, config, mlp, plain_step, torch, twins
import zfplugin
import zfplugin.torch

MODES = ({}, ALL_SELECTED)

# AdamW as a caller would write it, and SGD without any state.
SOURCE = r"""
#include <math.h>
#include "zf/plugin.h"
int32_t adamw(void *ctx, const zf_rule_update_t *u) {
    double bc1 = 1 - pow(u->beta1, (double)u->n), bc2 = 1 - pow(u->beta2, (double)u->n);
    (void)ctx;
    for (uint64_t i = 0; i < u->n_elems; i++) {
        u->m[i] = (float)(u->beta1 * u->m[i] + (1 - u->beta1) * u->g[i]);
        u->v[i] = (float)(u->beta2 * u->v[i] + (1 - u->beta2) * u->g[i] * u->g[i]);
        u->w[i] = (float)(u->w[i] * (1 - u->lr * u->weight_decay) -
                          u->lr * u->m[i] / bc1 / (sqrt(u->v[i] / bc2) + u->eps));
    }
    return 0;
}
int32_t scaled_sgd(void *ctx, const zf_rule_update_t *u) {
    for (uint64_t i = 0; i < u->n_elems; i++)
        u->w[i] -= (float)(u->lr * *(const double *)ctx) * u->g[i];
    return 0;
}
"""


class Lion:
    """Chen et al., arXiv 2302.06675, algorithm 2, line by line."""

    def __init__(self, params, lr, betas, weight_decay):
        self.params, self.lr, self.betas, self.decay = list(params), lr, betas, weight_decay
        self.m = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        b1, b2 = self.betas
        for p, m in zip(self.params, self.m):
            c = b1 * m + (1 - b1) * p.grad
            p.sub_(self.lr * (c.sign() + self.decay * p))
            m.mul_(b2).add_((1 - b2) * p.grad)


class RulesTest(TorchTest):
    def check(self, make, n_steps, **kwargs):
        for mode in MODES:
            ours, theirs = twins()
            opt = self.zenflow(ours, config=config(*([mode] if mode else [])), **kwargs)
            self.train_both(ours, theirs, opt, make(theirs.parameters()), n_steps, plain_step)
            self.assert_same(ours, theirs)


class Rules(RulesTest):
    def test_adam(self):
        self.check(lambda p: torch.optim.Adam(p, **HYPER), 100, rule="adam", **HYPER)

    def test_sgd_with_momentum(self):
        for nesterov in (False, True):
            self.check(lambda p, n=nesterov: torch.optim.SGD(p, 0.05, 0.9, nesterov=n, weight_decay=0.01), 100, lr=0.05,
                       betas=(0.9, 0), weight_decay=0.01, rule="sgd_nesterov" if nesterov else "sgd")

    def test_sgd_whose_momentum_is_raised_from_zero(self):
        """torch starts its buffer with the first gradient that has momentum, and lets it rest while there is none."""
        for nesterov in (False, True):
            for mode in MODES:
                ours, theirs = twins()
                opt = self.zenflow(ours, lr=0.05, betas=(0, 0), weight_decay=0, config=config(*([mode] if mode else [])),
                                   rule="sgd_nesterov" if nesterov else "sgd")
                ref = torch.optim.SGD(theirs.parameters(), 0.05, 0.9, nesterov=nesterov)
                for momentum in (0.0, 0.9, 0.0, 0.5):
                    opt.param_groups[0]["betas"] = (momentum, 0)
                    ref.param_groups[0]["momentum"] = momentum
                    self.train_both(ours, theirs, opt, ref, 10, plain_step)
                self.assert_same(ours, theirs)

    def test_lion(self):
        """20 steps: a sign that rounding turns moves a weight by 2 lr, which the bound would see."""
        hyper = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}
        self.check(lambda p: Lion(p, **hyper), 20, rule="lion", **hyper)

    def test_unknown(self):
        for kwargs in ({"rule": "adagrad"}, {"group": "adagrad"}, {"group": ["sgd"]}):
            with self.assertRaisesRegex(zfplugin.ArgumentError, "rule = .*lion"):
                self.zenflow(mlp(), **kwargs) if "rule" in kwargs else of_groups(self, mlp(), kwargs["group"])


SGD = {"lr": 0.05, "betas": (0.9, 0.0), "weight_decay": 0.01}


def of_groups(test, model, rule="sgd", **kwargs):
    """AdamW for all but the last layer."""
    groups = [{"params": list(model[:-1].parameters())}, {"params": list(model[-1].parameters()), "rule": rule, **SGD}]
    return test.zenflow(groups, **HYPER, **kwargs)


class Both(Together):
    """torch's AdamW and SGD, of the same groups."""

    def __init__(self, model):
        self.opts = [torch.optim.AdamW(model[:-1].parameters(), **HYPER),
                     torch.optim.SGD(model[-1].parameters(), SGD["lr"], SGD["betas"][0], weight_decay=SGD["weight_decay"])]


class RulesOfGroups(TorchTest):
    def test_beside_torchs_two_optimizers(self):
        for options in ({}, {"config": config(ALL_SELECTED)}, {"config": config({"zenflow.mode": "exact", "zenflow.topk_ratio": 0.1})}):
            ours, theirs = twins()
            opt = of_groups(self, ours, **options)
            self.train_both(ours, theirs, opt, Both(theirs), 100, plain_step)
            self.assert_same(ours, theirs, 5e-6)

    def test_saved_and_resumed(self):
        ours, theirs = twins()
        both, opt = Both(theirs), of_groups(self, ours)
        self.train_both(ours, theirs, opt, both, 10, plain_step)
        saved = opt.state_dict()
        self.assertEqual([set(opt.state[model[0]]) for model in ([*ours[0].parameters()], [*ours[-1].parameters()])],
                         [{"step", "exp_avg", "exp_avg_sq"}, {"step", "momentum_buffer"}])
        resumed = twins()[0]
        resumed.load_state_dict(ours.state_dict())
        opt = of_groups(self, resumed)
        opt.load_state_dict(saved)
        self.train_both(resumed, theirs, opt, both, 10, plain_step)
        self.assert_same(resumed, theirs, 5e-6)

    def test_what_is_refused(self):
        model = mlp()
        opt = of_groups(self, model)
        plain_step(model, opt, 0)
        saved = opt.state_dict()
        with self.assertRaisesRegex(zfplugin.StateError, "sgd"):
            opt.adamw_state_dict()
        with self.assertRaisesRegex(zfplugin.CheckpointError, "group 1 was saved with the rule 'sgd', the optimizer has 'lion'"):
            of_groups(self, mlp(), "lion").load_state_dict(saved)
        opt.param_groups[1]["rule"] = "lion"
        with self.assertRaisesRegex(zfplugin.ArgumentError, "group 1: rule = 'lion', but it was bound with 'sgd'"):
            plain_step(model, opt, 1)
        opt.param_groups[1]["rule"] = "sgd"
        plain_step(model, opt, 1)
        self.assertEqual(opt.stats()["steps"], 2)


class Callback(RulesTest):
    @classmethod
    def setUpClass(cls):
        cls.library = None
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "rules.c", Path(folder) / "rules.so"
            source.write_text(SOURCE)
            subprocess.run([compiler, "-std=c11", "-O1", "-shared", "-fPIC", "-I", str(ROOT / "abi/include"), str(source),
                            "-o", str(out), "-lm"], check=True)
            cls.library = ctypes.CDLL(str(out))

    def setUp(self):
        super().setUp()
        if self.library is None:
            self.skipTest("no C compiler")

    def test_adamw_written_by_the_caller(self):
        rule = zfplugin.RuleCallback(self.library.adamw, 2, "adamw of the test")
        self.check(lambda p: torch.optim.AdamW(p, **HYPER), 100, rule=rule, **HYPER)

    def test_by_address_and_with_a_context(self):
        half = ctypes.c_double(0.5)
        address = ctypes.cast(self.library.scaled_sgd, ctypes.c_void_p).value
        rule = zfplugin.RuleCallback(address, 0, ctx=ctypes.addressof(half))
        self.check(lambda p: torch.optim.SGD(p, 0.05), 50, lr=0.1, rule=rule)

    def test_refused(self):
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        in_python = kind(lambda ctx, update: 0)
        wrong = [(in_python, 1, "written in Python"), (ctypes.cast(in_python, kind), 1, "written in Python"),
                 (lambda ctx, update: None, 1, "need a function"), (0, 1, "need a function"), (True, 1, "need a function"),
                 (self.library.adamw, 3, "0, 1, 2"), (self.library.adamw, None, "0, 1, 2")]
        for function, n_moments, word in wrong:
            with self.assertRaises(zfplugin.ArgumentError) as caught:
                self.zenflow(mlp(), rule=zfplugin.RuleCallback(function, n_moments))
            self.assertIn(word, str(caught.exception))
        for rule, word in ((self.library.adamw, "a zfplugin.RuleCallback"), (zfplugin.RuleCallback(self.library.adamw, 2, ""), "name is empty")):
            with self.assertRaisesRegex(zfplugin.ArgumentError, word):
                self.zenflow(mlp(), rule=rule)
