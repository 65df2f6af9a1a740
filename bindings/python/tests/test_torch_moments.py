# SPDX-License-Identifier: Apache-2.0
"""Moments for others: torch's AdamW goes on with a run of ours; .state shows what torch's optimizers keep there. The way
back, AdamW's state into ours: test_torch_state.py."""
import copy
import io

from support import ALL_SELECTED, FEW, HYPER, SYNCHRONOUS, TorchTest, config, mlp, plain_step, torch, train, twins
from test_torch_edits import drawn_step
import zfplugin


class IntoAdamW(TorchTest):
    def train_ours(self, mode=FEW, n_steps=23, make=mlp, **kwargs):
        ours, theirs = twins(make)
        opt = self.zenflow(ours, **{**HYPER, "config": config(mode), **kwargs})
        make_theirs = torch.optim.Adam if kwargs.get("rule") == "adam" else torch.optim.AdamW
        reference = make_theirs(theirs.parameters(), **HYPER)
        self.train_both(ours, theirs, opt, reference, range(n_steps), drawn_step)
        return ours, theirs, opt, reference

    def test_goes_on_with_our_moments(self):
        """In mid-window: the exported moments are those after flush(), so with flushed weights AdamW goes on exactly."""
        for rule in ("adamw", "adam"):
            for mode in (FEW, SYNCHRONOUS, ALL_SELECTED):
                with self.subTest(rule=rule, mode=mode):
                    ours, theirs, opt, reference = self.train_ours(mode, rule=rule)
                    file = io.BytesIO()
                    torch.save(opt.adamw_state_dict(), file)
                    opt.flush()
                    file.seek(0)
                    follower = type(reference)(ours.parameters(), lr=0.5)
                    follower.load_state_dict(torch.load(file, weights_only=True))
                    self.assertEqual(follower.param_groups[0]["lr"], HYPER["lr"])
                    self.assertEqual({*follower.param_groups[0]}, {*reference.param_groups[0], "param_names"})
                    for p, q in zip(ours.parameters(), theirs.parameters()):
                        self.assertEqual(follower.state[p]["step"], reference.state[q]["step"])
                    opt.close()
                    self.train_both(ours, theirs, follower, reference, range(23, 60), drawn_step)
                    self.assert_same(ours, theirs)

    def test_groups_holes_frozen_and_tied(self):
        """The numbers in the state are torch's: positions in the groups. What never had a gradient has no state."""
        class Odd(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.frozen, self.net, self.unused = torch.nn.Linear(3, 3), mlp(), torch.nn.Linear(2, 2)
                self.again = torch.nn.Parameter(self.net[2].weight.data)
                self.frozen.requires_grad_(False)

            def forward(self, x):
                return self.net(x) + self.again.sum()

        model = Odd()
        groups = [{"params": [(n, p) for n, p in model.named_parameters() if p.ndim == k], "lr": 1e-3 * k} for k in (2, 1)]
        opt = self.zenflow(groups, config=config(FEW))
        train(model, opt, range(5))
        saved = opt.adamw_state_dict()
        order = [p for group in opt.param_groups for p in group["params"]]
        for number, p in enumerate(order):
            has_state = p.requires_grad and all(p is not q for q in model.unused.parameters()) and p is not model.net[2].weight
            self.assertEqual(number in saved["state"], has_state, number)
            self.assertEqual(p in opt.state, has_state)
            if has_state:
                self.assertEqual(saved["state"][number]["exp_avg"].shape, p.shape)
        torch.optim.AdamW([{"params": g["params"]} for g in opt.param_groups]).load_state_dict(saved)

    def test_before_the_first_step_and_for_other_rules(self):
        opt = self.zenflow(mlp(), lr=0.25)
        saved = opt.adamw_state_dict()
        self.assertEqual((saved["state"], saved["param_groups"][0]["lr"]), ({}, 0.25))
        other = self.zenflow(mlp(), rule="lion")
        with self.assertRaisesRegex(zfplugin.StateError, "lion"):
            other.adamw_state_dict()

    def test_goes_on_with_our_state_dict(self):
        """It has what adamw_state_dict() has, for torch's optimizers, which leave the rest."""
        for mode in (FEW, SYNCHRONOUS):
            ours, theirs, opt, reference = self.train_ours(mode)
            saved = copy.deepcopy(opt.state_dict())
            opt.flush()
            follower = torch.optim.AdamW(ours.parameters(), lr=0.5)
            follower.load_state_dict(saved)
            opt.close()
            self.train_both(ours, theirs, follower, reference, range(23, 60), drawn_step)
            self.assert_same(ours, theirs)


class State(TorchTest):
    """opt.state, read from the plugin when it is asked for."""

    def test_is_torchs(self):
        ours, theirs, opt, reference = self.pair()
        self.assertFalse(opt.state)
        for i in range(7):
            plain_step(theirs, reference, i)
            plain_step(ours, opt, i)
            self.assertEqual(len(opt.state), len(reference.state))
            for p, q in zip(ours.parameters(), theirs.parameters()):
                mine, other = opt.state[p], reference.state[q]
                self.assertEqual(set(mine), set(other))
                self.assertEqual((mine["step"], mine["step"].dtype), (other["step"], other["step"].dtype))
                for name in ("exp_avg", "exp_avg_sq"):
                    self.assertLess((mine[name] - other[name]).abs().max().item(), 1e-5)
        other = torch.nn.Parameter(torch.zeros(1))
        self.assertEqual((opt.state[other], other in opt.state, reference.state[other]), ({}, False, {}))

    def test_other_rules(self):
        for rule, names in (("sgd", {"step", "momentum_buffer"}), ("lion", {"step", "exp_avg"}),
                            ("adam", {"step", "exp_avg", "exp_avg_sq"})):
            model, opt = self.alone(rule=rule)
            plain_step(model, opt, 0)
            self.assertEqual(set(opt.state[model[0].weight]), names)

    def test_an_edit_of_it_is_refused(self):
        """It is a copy: an edit would do nothing, without a word."""
        model, opt = self.alone()
        plain_step(model, opt, 0)
        for edit in (lambda entry: entry["exp_avg"].zero_(), lambda entry: entry.update(exp_avg=torch.zeros(24, 8)), dict.clear,
                     lambda entry: entry.update(seen=1)):
            edit(opt.state[model[0].weight])
            with self.assertRaisesRegex(zfplugin.StateError, '"0.weight".*params_changed'):
                plain_step(model, opt, 1)
        plain_step(model, opt, 2)
        for attempt in (lambda: opt.state.__setitem__(model[0].weight, {}), lambda: opt.state.clear(),
                        lambda: opt.state.pop(model[0].weight)):
            with self.assertRaisesRegex(zfplugin.StateError, "copy"):
                attempt()
        moved = {name: tensor.clone() for name, tensor in opt.state[model[0].weight].items()}
        opt.state[model[0].weight] = moved  # what loops over devices do (Lightning)
        opt.state[model[2].weight]["exp_avg"] = opt.state[model[2].weight]["exp_avg"].clone()
        plain_step(model, opt, 3)
