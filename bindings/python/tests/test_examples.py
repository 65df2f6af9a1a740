# SPDX-License-Identifier: Apache-2.0
"""The examples: Hugging Face Trainer, Accelerate, Lightning, PEFT and a plain loop over public model families, each in
the plugin's synchronous mode beside torch.optim.AdamW in the same trainer."""
import importlib.util
import logging
import os
import sys
import tempfile
import unittest
import warnings

from support import HERE, SYNCHRONOUS, TorchTest, config, torch

EXAMPLES = HERE.parent / "examples"
sys.path.insert(0, str(EXAMPLES))
warnings.filterwarnings("ignore")
LOSS_BOUND = 2e-4  # of |loss - AdamW's|, over 24 steps from the same weights: torch rounds in another order


try:
    import transformers
except ImportError:
    transformers = None


def needs(*packages):
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    return unittest.skipIf(missing, f"not installed: {' '.join(missing)}")


class Lateness(TorchTest):
    def test_meter_beside_the_true_difference(self):
        """The first-order term of each step's difference: alike in every step while steps are small, and larger."""
        import lateness
        metered, true, _ = lateness.train(60, 1e-3, {"zenflow.topk_ratio": 0, "zenflow.full_warm_up_rounds": 5})
        self.assertEqual(metered[:5], [0.0] * 5)
        ours, theirs = torch.tensor(metered[10:]), torch.tensor(true[10:])
        correlation = torch.corrcoef(torch.stack([ours, theirs]))[0, 1].item()
        self.assertGreater(correlation, 0.9)
        self.assertGreater(ours.mean().item(), theirs.mean().item())


def adamw(model, lr=2e-3):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)


@needs("transformers")
class Trainers(TorchTest):
    def setUp(self):
        super().setUp()
        logging.getLogger("zfplugin").setLevel(logging.ERROR)
        transformers.utils.logging.set_verbosity_error()

    def synchronous(self, model, lr=2e-3):
        return self.zenflow(model, lr=lr, config=config(SYNCHRONOUS), model=model)

    def assert_alike(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        self.assertLess(max(abs(a - b) for a, b in zip(ours, theirs)), LOSS_BOUND)
        self.assertLess(ours[-1], ours[0] - 0.3, "it does not learn")

    def test_plain_loop_of_three_families(self):
        import train_loop
        for family in ("gpt2", "bert", "llama"):
            with self.subTest(family):
                ours = train_loop.train(family, 24, config=config(SYNCHRONOUS))
                self.assert_alike(ours, train_loop.train(family, 24, use_adamw=True))

    def test_hugging_face_trainer(self):
        """Accumulation 2, the Trainer's own clipping and schedule."""
        import hf_trainer
        losses = []
        for make in (self.synchronous, adamw):
            with tempfile.TemporaryDirectory() as out:
                trainer = hf_trainer.make_trainer(out, 24, make_optimizer=make)
                trainer.train()
                losses.append([x["loss"] for x in trainer.state.log_history if "loss" in x])
        self.assert_alike(*losses)

    @needs("accelerate")
    def test_hugging_face_trainer_goes_on_from_a_checkpoint_of_adamw(self):
        """resume_from_checkpoint: model, AdamW's moments, schedule and data order; then our steps are AdamW's."""
        import hf_trainer
        with tempfile.TemporaryDirectory() as out:
            whole = hf_trainer.make_trainer(out, 24, make_optimizer=adamw)
            whole.args.save_steps, whole.args.save_strategy = 8, transformers.trainer_utils.SaveStrategy.STEPS
            whole.train()
            checkpoint = os.path.join(out, "checkpoint-8")
            resumed = hf_trainer.make_trainer(out, 24, make_optimizer=self.synchronous)
            resumed.train(resume_from_checkpoint=checkpoint)
        losses = [[x["loss"] for x in t.state.log_history if "loss" in x] for t in (resumed, whole)]
        self.assertEqual(len(losses[0]), len(losses[1]))
        self.assertLess(max(abs(a - b) for a, b in zip(*losses)), LOSS_BOUND)
        for p, q in zip(resumed.model.parameters(), whole.model.parameters()):
            self.assertLess((p - q).abs().max().item(), 2e-4)

    @needs("accelerate")
    def test_accelerate(self):
        import accelerate_loop
        self.assert_alike(*(accelerate_loop.train(12, make_optimizer=m) for m in (self.synchronous, adamw)))

    @needs("lightning")
    def test_lightning(self):
        import lightning_fit
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self.assert_alike(*(lightning_fit.fit(12, make_optimizer=m) for m in (self.synchronous, adamw)))

    @needs("peft")
    def test_lora(self):
        import lora
        ours, n_trainable, optimizer = lora.train(24, lambda m: self.synchronous(m, 1e-2))
        theirs, _, _ = lora.train(24, lambda m: adamw(m, 1e-2))
        self.assertLess(max(abs(a - b) for a, b in zip(ours, theirs)), LOSS_BOUND)
        self.assertLess(optimizer.layout["n_elems"], 2 * n_trainable, "frozen weights must take no state")


if __name__ == "__main__":
    unittest.main()
