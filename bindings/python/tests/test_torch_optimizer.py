# SPDX-License-Identifier: Apache-2.0
"""ZenFlow as a torch.optim.Optimizer, each behaviour beside torch.optim.AdamW on the same model and data."""
import copy
import importlib.util
import io
import pickle
import tempfile
import time
import unittest

from support import ALL_SELECTED, HYPER, SYNCHRONOUS, TorchTest, config, loss_of, mlp, plain_step, torch, twins, unwatched
import zfplugin

WINDOWED = {"zenflow.topk_ratio": 0.2, "zenflow.update_interval": 4, "zenflow.full_warm_up_rounds": 2}


class AgainstAdamW(TorchTest):
    def run_pair(self, n_steps, one_step=plain_step, config_=None):
        ours, theirs, opt, reference = self.pair(config=config_ or config())
        self.train_both(ours, theirs, opt, reference, n_steps, one_step)
        self.assert_same(ours, theirs)

    def test_300_steps_synchronous(self):
        self.run_pair(300, config_=config(SYNCHRONOUS))

    def test_300_steps_all_selected_with_windows(self):
        self.run_pair(300, config_=config(ALL_SELECTED, {"zenflow.full_warm_up_rounds": 5}))

    def test_learning_rate_as_a_tensor(self):
        def step(model, opt, i):
            opt.param_groups[0]["lr"] = torch.tensor(1e-3 * (i % 5))
            plain_step(model, opt, i)

        self.run_pair(30, step)


class AsAnOptimizer(TorchTest):
    def test_copies_and_pickles_explain_themselves(self):
        opt = self.zenflow(mlp())
        for attempt in (lambda: copy.deepcopy(opt), lambda: pickle.dumps(opt), lambda: torch.save(opt, io.BytesIO())):
            with self.assertRaises(TypeError) as caught:
                attempt()
            self.assertIn("state_dict", str(caught.exception))

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "tensorboard is not installed")
    def test_metrics_in_tensorboard(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        model = mlp()
        opt = self.zenflow(model)
        with tempfile.TemporaryDirectory() as folder:
            with SummaryWriter(folder) as writer:
                for i in range(3):
                    plain_step(model, opt, i)
                    opt.write_metrics(writer)
                opt.write_metrics(writer, step=70)
            events = EventAccumulator(folder)
            events.Reload()
            steps = events.Scalars("zfplugin/steps")
            self.assertEqual([(e.step, e.value) for e in steps], [(1, 1), (2, 2), (3, 3), (70, 3)])
            self.assertAlmostEqual(events.Scalars("zfplugin/grad_norm")[-1].value, opt.grad_norm, places=5)
            self.assertEqual(set(events.Tags()["scalars"]), {f"zfplugin/{name}" for name in opt.metrics()})

    def test_report_and_norm(self):
        model = mlp()
        opt = self.zenflow(model)
        self.assertIsNone(opt.grad_norm)
        plain_step(model, opt, 0)
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
        self.assertAlmostEqual(opt.grad_norm, norm.item(), places=5)
        self.assertTrue(opt.last_report.applied)
        self.assertEqual(opt.stats()["steps"], 1)
        self.assertEqual((opt.metrics()["steps"], opt.metrics()["grad_norm"]), (1, opt.grad_norm))
        self.assertEqual(opt.config()["zenflow.update_interval"], "1")
        self.assertEqual(opt.layout["n_elems"], sum(p.numel() for p in model.parameters()))

    def test_lateness_beside_the_true_difference(self):
        """The first-order term of each step's difference: alike in every step while steps are small, and larger."""
        import lateness
        metered, true, _ = lateness.train(60, 1e-3, {"zenflow.topk_ratio": 0, "zenflow.full_warm_up_rounds": 5})
        self.assertEqual(metered[:5], [0.0] * 5)
        ours, theirs = torch.tensor(metered[10:]), torch.tensor(true[10:])
        self.assertGreater(torch.corrcoef(torch.stack([ours, theirs]))[0, 1].item(), 0.9)
        self.assertGreater(ours.mean().item(), theirs.mean().item())

    def test_names(self):
        model = mlp()
        import zfplugin.torch.binding as module
        module._has_warned_of_names = False
        opt = zfplugin.torch.ZenFlow(model.parameters(), config=config())
        self.made.append(opt)
        with self.messages() as caught:
            plain_step(model, opt, 0)
        self.assertIn("param0", caught.output[0])
        self.assertIn("param0", opt.export())
        other = mlp()
        opt = zfplugin.torch.ZenFlow(other.parameters(), model=other, config=config())
        self.made.append(opt)
        plain_step(other, opt, 0)
        self.assertIn("0.weight", opt.export())

    def test_options_that_are_not_there_are_refused(self):
        with self.assertRaises(ValueError):
            zfplugin.torch.ZenFlow([{"params": list(mlp().parameters()), "amsgrad": True}], config=config())
        with self.assertRaises(ValueError):
            self.zenflow(mlp(), amsgrad=True)

    def test_closing_takes_the_hooks_away(self):
        model = mlp()
        opt = self.zenflow(model)
        plain_step(model, opt, 0)
        self.assertTrue(model[0].weight._post_accumulate_grad_hooks)
        opt.close()
        opt.close()
        self.assertFalse(model[0].weight._post_accumulate_grad_hooks)
        loss_of(model, 1).backward()
        with self.assertRaises(zfplugin.StateError):
            opt.step()

    def test_a_model_fetches_by_default(self):
        """publish_lag is 0 in any case: with a model its modules fetch, else step() waits."""
        import zfplugin.torch  # the first test of this class, when it runs alone
        model = mlp()
        for kwargs, fetches in (({"model": model}, True), ({"model": model, "fetch": False}, False), ({}, False)):
            opt = zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, **kwargs)
            self.made.append(opt)
            self.assertEqual((opt.config()["zenflow.publish_lag"], opt._fetcher is not None), ("0", fetches))

    def test_what_is_not_fetched_is_from_before_the_close(self):
        """Read without a fetch: the last step's values, the same until somebody fetches; then those of a host that waits in
        every step."""
        ours, theirs = twins()
        pinned = {**WINDOWED, "zenflow.publish_lag": 0}
        opt = unwatched(self.zenflow(ours, **HYPER, model=ours, config=config(pinned)))
        reference = self.zenflow(theirs, **HYPER, model=theirs, fetch=False, config=config(pinned))
        n_changed = 0
        for i in range(24):
            plain_step(ours, opt, i)
            plain_step(theirs, reference, i)
            shown = [p.detach().clone() for p in ours.parameters()]
            time.sleep(0.01)  # a replay would have ended
            for p, values in zip(ours.parameters(), shown):
                self.assertTrue(torch.equal(p, values))
            opt.synchronize()
            n_changed += sum(not torch.equal(p, values) for p, values in zip(ours.parameters(), shown))
            self.assert_same(ours, theirs, bound=0)
        self.assertGreater(n_changed, 20)

    def test_fetch_needs_a_model(self):
        with self.assertRaises(zfplugin.ArgumentError):
            self.zenflow(mlp(), fetch=True)


if __name__ == "__main__":
    unittest.main()
