# SPDX-License-Identifier: Apache-2.0
"""Acts of trainers beside forward, backward and step, as a table of programs (usage.py, usage_weights.py). Each runs with the plugin and
with torch's AdamW; compared after every step are what it keeps (losses, averages, saved weights), and the weights with which each layer
of the model has computed. In place the weights themselves are compared after every step, too; "early" has overlap=True, where every
gradient travels when its hook fires and updates begin during backward. With fetch=True the comparison is not to be the one that reads
weights, so they are compared after the last step; programs that read or write them elsewhere than in forward call synchronize() after
each step.
"""
import contextlib
import math
from unittest import mock

from support import FEW, SYNCHRONOUS, TorchTest, config, torch

from usage import ELSEWHERE, N_STEPS, USES, Run
import usage_weights  # adds its own

EXACT = config(FEW, {"zenflow.mode": "exact"})
SETTINGS = {"in place": {"config": EXACT}, "early": {"config": EXACT, "overlap": True},
            "fetch": {"config": config(SYNCHRONOUS, FEW), "fetch": True}}
BOUND = 1e-6


def apart(mine, torchs):
    """The largest difference of two dicts of tensors and numbers; relative where they are above 1, infinite where one has what the other
    lacks, or a NaN."""
    if mine.keys() != torchs.keys():
        return math.inf
    pairs = [(torch.as_tensor(mine[name]).double(), torch.as_tensor(value).double()) for name, value in torchs.items()]
    found = [0.0] + [((a - b).abs() / b.abs().clamp(min=1)).max().item() for a, b in pairs if not torch.equal(a, b)]
    return max(found) if all(map(math.isfinite, found)) else math.inf


@contextlib.contextmanager
def watched(run):
    """What is in the parameters of a layer when it has computed is kept, too."""
    def keep(layer, *_):
        own = [*layer.parameters(recurse=False)]
        names = {id(p): name for name, p in run.model.named_parameters()} if own else {}
        for p in own:
            if id(p) in names:
                run.kept["forward " + names[id(p)]] = p.detach().clone()
    hook = torch.nn.modules.module.register_module_forward_hook(keep)
    try:
        yield
    finally:
        hook.remove()


@mock.patch("zfplugin.torch.bucket.BUCKET_PARAMS", 1)
def trained(program, make, options=None):
    """After each step what a program keeps and, in place and by torch's AdamW, the weights; after the last what state_dict() has."""
    is_fetched = options is not None and options.get("fetch", False)
    run, seen = Run(make, options, synchronizes=is_fetched and program in ELSEWHERE), []
    is_watched = program not in (usage_weights.compiled, usage_weights.compiled_step)  # torch.compile goes another way where there are such hooks
    try:
        for i in range(N_STEPS):
            with watched(run) if is_watched else contextlib.nullcontext():
                program(run, i)
            weights = () if is_fetched else run.model.named_parameters()
            final = run.model.state_dict() if i == N_STEPS - 1 else {}
            seen.append({name: torch.as_tensor(value).detach().clone() for name, value in (
                *run.kept.items(), *((f"weights {name}", p) for name, p in weights), *((f"final {name}", value) for name, value in final.items()))})
        assert options is not None or run.has_moved(), f"{program.__name__} trains nothing"
        return seen
    finally:
        run.close()


def worst_of(program, make, options, torchs):
    """The largest difference from what torch's AdamW has: trained()."""
    shown = [{name: value for name, value in of.items() if not (options.get("fetch") and name.startswith("weights "))} for of in torchs]
    return max(map(apart, trained(program, make, options), shown))


class Usage(TorchTest):
    def test_every_use(self):
        for name, program, make in USES:
            torchs = trained(program, make)
            for setting, options in SETTINGS.items():
                with self.subTest(name, setting=setting):
                    self.assertLessEqual(worst_of(program, make, options, torchs), BOUND)

    def test_what_is_no_number_is_apart(self):
        self.assertAlmostEqual(apart({"w": 1.0, "v": 2.0}, {"w": 1.0, "v": 2.1}), 0.1 / 2.1, 6)  # of numbers in fp32
        for mine in ({"w": 1.0, "v": math.nan}, {"w": math.nan, "v": 2.0}, {"w": 1.0}, {"w": 1.0, "v": 2.0, "u": 0.0}):
            self.assertEqual(apart(mine, {"w": 1.0, "v": 2.0}), math.inf)
