# SPDX-License-Identifier: Apache-2.0
"""ZenFlow as a torch.optim.Optimizer, each behaviour beside torch.optim.AdamW on the same model and data."""
import copy
import io
import pickle
import time
from unittest import mock

from support import HYPER, TorchTest, config, loss_of, mlp, plain_step, torch, twins, values_of
import zfplugin

WINDOWED = {"zenflow.topk_ratio": 0.2, "zenflow.update_interval": 4, "zenflow.full_warm_up_rounds": 2}


class AsAnOptimizer(TorchTest):
    def test_copies_and_pickles_explain_themselves(self):
        opt = self.zenflow(mlp())
        for attempt in (lambda: copy.deepcopy(opt), lambda: pickle.dumps(opt), lambda: torch.save(opt, io.BytesIO())):
            with self.assertRaises(TypeError) as caught:
                attempt()
            self.assertIn("state_dict", str(caught.exception))

    def test_report_and_norm(self):
        model, opt = self.alone()
        self.assertIsNone(opt.grad_norm)
        plain_step(model, opt, 0)
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
        self.assertAlmostEqual(opt.grad_norm, norm.item(), places=5)
        self.assertTrue(opt.last_report.applied)
        self.assertEqual(opt.stats()["steps"], 1)
        self.assertEqual((opt.metrics()["steps"], opt.metrics()["grad_norm"]), (1, opt.grad_norm))
        self.assertEqual(opt.config()["zenflow.update_interval"], "1")
        self.assertEqual(opt.layout["n_elems"], sum(p.numel() for p in model.parameters()))

    def test_names(self):
        model, other = mlp(), mlp()
        opt = self.zenflow(model.parameters())
        with mock.patch("zfplugin.torch.binding._has_warned_of_names", False), self.messages() as caught:
            plain_step(model, opt, 0)
        self.assertIn("param0", caught.output[0])
        self.assertIn("param0", opt.export())
        opt = self.zenflow(other.parameters(), model=other)
        plain_step(other, opt, 0)
        self.assertIn("0.weight", opt.export())

    def test_closing_takes_the_hooks_away(self):
        model, opt = self.alone(overlap=True)
        with mock.patch("zfplugin.torch.bucket.BUCKET_PARAMS", 1):
            plain_step(model, opt, 0)
            loss_of(model, 1).backward()  # they are under way
        self.assertTrue(model[0].weight._post_accumulate_grad_hooks)
        opt.close()
        opt.close()
        self.assertFalse(model[0].weight._post_accumulate_grad_hooks)
        with self.assertRaisesRegex(zfplugin.StateError, "closed"):
            opt.step()

    def test_what_is_not_fetched_is_from_before_the_step(self):
        """With fetch=True: the last step's values, the same until synchronize(); then those of a run whose weights are in place."""
        ours, theirs = twins()
        pinned = {**WINDOWED, "zenflow.publish_lag": 0}
        opt = self.zenflow(ours, **HYPER, model=ours, fetch=True, config=config(pinned))
        reference = self.zenflow(theirs, **HYPER, model=theirs, config=config(pinned))
        n_changed = 0
        for i in range(24):
            plain_step(ours, opt, i)
            plain_step(theirs, reference, i)
            shown = values_of(ours)
            time.sleep(0.01)  # a replay would have ended
            self.assert_values(ours, shown)
            opt.synchronize()
            n_changed += sum(not torch.equal(p, values) for p, values in zip(ours.parameters(), shown))
            self.assert_same(ours, theirs, bound=0)
        self.assertGreater(n_changed, 20)
