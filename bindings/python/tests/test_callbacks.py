# SPDX-License-Identifier: Apache-2.0
"""Callbacks for Hugging Face's and Lightning's Trainer: final weights in checkpoints and at the end, figures in the logs."""
import contextlib
import gc
import io
import itertools
import logging
import os
import signal
import tempfile
import warnings
from unittest import mock

from support import FEW, SYNCHRONOUS, TorchTest, config, needs, torch
import zfplugin.torch

FIGURES = {"zenflow/stall_ms", "zenflow/host_wait_ms", "zenflow/replay_ms", "zenflow/host_mib", "zenflow/lost_overlap_mib",
           "zenflow/skipped_steps", "zenflow/update_interval", "zenflow/publish_lag"}
warnings.filterwarnings("ignore")


@needs("transformers", "accelerate")
class HuggingFace(TorchTest):
    def setUp(self):
        super().setUp()
        import transformers
        transformers.utils.logging.set_verbosity_error()

    def make(self, out, opt=None, **more):
        """opt: a function that makes it of a model; None: ours."""
        import transformers
        from tiny import Language, model_of
        from zfplugin.torch.trainer import ZenFlowCallback
        model = model_of("gpt2")
        opt = opt(model) if opt else self.zenflow(model, lr=2e-3, config=config(FEW))
        arguments = transformers.TrainingArguments(
            output_dir=out, max_steps=11, per_device_train_batch_size=4, use_cpu=True, logging_steps=3, report_to=[],
            disable_tqdm=True, seed=1, **{"save_strategy": "no", **more})
        return model, opt, transformers.Trainer(
            model=model, args=arguments, train_dataset=Language(200), eval_dataset=Language(8, seed=9), optimizers=(opt, None),
            callbacks=[ZenFlowCallback()] if opt in self.made else [])

    def test_it_goes_on_from_a_checkpoint_of_adamw(self):
        """resume_from_checkpoint: model, AdamW's moments, schedule and data order; then our steps are AdamW's."""
        with tempfile.TemporaryDirectory() as out:
            whole, _, trainer = self.make(out, lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3), save_steps=4, save_strategy="steps")
            trainer.train()
            resumed, _, trainer = self.make(out, lambda model: self.zenflow(model, config=config(SYNCHRONOUS)))
            trainer.train(resume_from_checkpoint=os.path.join(out, "checkpoint-4"))
        self.assert_same(resumed, whole, 2e-4)

    def test_a_run_that_goes_on_says_so_in_one_line(self):
        """In the log, or where nobody has set up logging to stderr; with what torch's optimizer would hold, and what the plugin does."""
        with tempfile.TemporaryDirectory() as out:
            _, opt, trainer = self.make(out, lambda model: self.zenflow(model, config=config(FEW)), save_steps=4, save_strategy="steps")
            with self.assertLogs("zfplugin", logging.INFO) as said:
                trainer.train()
            n_mib = sum(8 * p.numel() for p in trainer.model.parameters()) / 2**20
            holds = f"torch.optim.AdamW would hold {n_mib:.1f} MiB in host memory; this holds " \
                    f"{(opt.layout['host_nbytes'] + opt.layout['device_nbytes']) / 2**20:.1f} MiB there"
            self.assertEqual([line.split(":", 2)[2] for line in said.output if "would hold" in line], [holds])
            for has_logging in (False, True):
                _, opt, trainer = self.make(out)
                opt.log = logging.Logger("alone")  # without handlers, also of parents
                lines = []
                if has_logging:
                    opt.log.addHandler(handler := logging.Handler())
                    handler.emit = lambda record, lines=lines: lines.append(record.getMessage())
                with contextlib.redirect_stderr(io.StringIO()) as text:
                    trainer.train(resume_from_checkpoint=os.path.join(out, "checkpoint-4"))
                lines = [line for line in [*lines, *text.getvalue().splitlines()] if "goes on" in line]
                self.assertEqual(lines, ["ZenFlow goes on after step 4, with the moments and counts that were saved; " + holds])
                self.assertEqual("goes on" in text.getvalue(), not has_logging)

    def test_checkpoints_hold_final_weights_and_logs_the_figures(self):
        import safetensors.torch
        import transformers

        with tempfile.TemporaryDirectory() as out:
            model, opt, trainer = self.make(out, save_steps=5, save_strategy="steps")
            finals = {}

            class Look(transformers.TrainerCallback):
                def on_step_end(self, args, state, control, **kwargs):
                    if state.global_step == 5:
                        finals.update({name: value.clone() for name, value in opt.export().items()})
                        self.lag = max((finals[name] - p).abs().max().item() for name, p in model.named_parameters())

            look = Look()
            trainer.add_callback(look)
            trainer.train()
            saved = safetensors.torch.load_file(os.path.join(out, "checkpoint-5", "model.safetensors"))
        self.assertGreater(look.lag, 1e-4, "nothing was on its way: the test shows nothing")
        for name, values in saved.items():
            self.assertTrue(torch.equal(values, finals[name]), name)
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        self.assertEqual(len(logs), 3)
        for entry in logs:
            self.assertLessEqual(FIGURES, set(entry))
            self.assertGreater(entry["zenflow/host_mib"], 0)

    @mock.patch("zfplugin.torch.bucket.BUCKET_PARAMS", 1)
    def test_the_plugin_clips_in_its_place(self):
        """With gradients that travel during backward: none travels twice, and the weights and logged norms are AdamW's."""
        arguments = {"max_grad_norm": 0.05, "lr_scheduler_type": "constant"}
        with tempfile.TemporaryDirectory() as out:
            theirs, _, reference = self.make(out, lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0), **arguments)
            reference.train()
            for own in (0.0, 0.05):
                ours, opt, trainer = self.make(out, lambda model, own=own: self.zenflow(
                    model, lr=2e-3, weight_decay=0.0, clip_norm=own, overlap=True), **{**arguments, "max_grad_norm": own and 7.0 or 0.05})
                trainer.train()
                self.assert_same(ours, theirs, 1e-4)
                self.assertEqual((opt.stats()["lost_overlap_nbytes"], trainer.args.max_grad_norm), (0, own and 7.0 or 0.05))
                norms = [[entry["grad_norm"] for entry in of.state.log_history if "loss" in entry] for of in (trainer, reference)]
                torch.testing.assert_close(*map(torch.tensor, norms), rtol=1e-4, atol=0)
                self.assertLess(opt.last_report.clip_factor, 0.5)

    def test_another_optimizer_is_said(self):
        from zfplugin.torch.trainer import ZenFlowCallback
        with tempfile.TemporaryDirectory() as out:
            _, _, trainer = self.make(out, lambda model: torch.optim.AdamW(model.parameters()))
            trainer.add_callback(ZenFlowCallback())
            with self.assertRaisesRegex(zfplugin.ArgumentError, "no ZenFlow inside"):
                trainer.train()


@needs("transformers", "lightning")
class Lightning(TorchTest):
    def fit(self, out, optimizer=None, callbacks=(), is_ours=True, **more):
        import lightning
        from tiny import Language, model_of
        from zfplugin.torch.lightning import ZenFlowCallback

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        made = []

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = model_of("gpt2")

            def training_step(self, batch, number):
                return self.model(**batch).loss

            def configure_optimizers(self):
                made.append(optimizer(self) if optimizer else
                            zfplugin.torch.ZenFlow(self.named_parameters(), lr=2e-3, config=config(FEW)))
                return made[0]

        module = Module()
        trainer = lightning.Trainer(accelerator="cpu", max_steps=11, logger=False, enable_progress_bar=False, default_root_dir=out,
                                    enable_model_summary=False, callbacks=[*([ZenFlowCallback()] if is_ours else []), *callbacks], **more)
        trainer.fit(module, torch.utils.data.DataLoader(Language(200), batch_size=4))
        return module, made[0], trainer

    def test_flushed_checkpointed_and_logged(self):
        import lightning

        finals = {}

        class Look(lightning.Callback):
            def on_train_batch_end(self, trainer, module, *args):
                if trainer.global_step == 5:
                    opt = trainer.optimizers[0]
                    finals.update({name: value.clone() for name, value in opt.export().items()})
                    self.lag = max((finals[name] - p).abs().max().item() for name, p in module.named_parameters())
                    trainer.save_checkpoint(f"{trainer.default_root_dir}/five.ckpt")

        with tempfile.TemporaryDirectory() as out, self.assertNoLogs("zfplugin", logging.WARNING):
            look = Look()
            module, opt, trainer = self.fit(out, callbacks=[look], enable_checkpointing=False)
            saved = torch.load(f"{out}/five.ckpt", weights_only=True)["state_dict"]
            visible = [p.detach().clone() for p in module.parameters()]
            opt.flush()
            for p, values in zip(module.parameters(), visible):
                self.assertTrue(torch.equal(p, values))
            self.assertGreater(look.lag, 1e-4, "nothing was on its way: the test shows nothing")
            for name, values in finals.items():
                self.assertTrue(torch.equal(saved[name], values), name)
            self.assertLessEqual(FIGURES, set(trainer.callback_metrics))
            opt.close()
            del module, trainer, opt
            gc.collect()

    @mock.patch("zfplugin.torch.bucket.BUCKET_PARAMS", 1)
    def test_the_plugin_clips_in_its_place(self):
        import lightning

        for algorithm in ("norm", "value"):
            with tempfile.TemporaryDirectory() as out:
                module, opt, trainer = self.fit(out, lambda module: zfplugin.torch.ZenFlow(
                    module.named_parameters(), lr=2e-3, weight_decay=0.0, overlap=True), enable_checkpointing=False, gradient_clip_val=1e-3,
                    gradient_clip_algorithm=algorithm)
                theirs, _, _ = self.fit(out, lambda module: torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=0.0), enable_checkpointing=False,
                                        gradient_clip_val=1e-3, gradient_clip_algorithm=algorithm, is_ours=False)
            self.assert_same(module, theirs, 1e-4)
            self.assertEqual(trainer.gradient_clip_val, 1e-3)
            self.assertEqual(opt.stats()["lost_overlap_nbytes"] == 0, algorithm == "norm")
            opt.close()

    def test_a_signal_in_mid_step_saves_the_whole_step(self):
        """As Lightning's own handler of SLURM's signal does."""
        import lightning

        finals, number, write = {}, itertools.count(1), zfplugin.torch.groups.write

        class Look(lightning.Callback):
            def on_train_start(self, trainer, module):
                signal.signal(signal.SIGUSR1, lambda *_: trainer.save_checkpoint(f"{trainer.default_root_dir}/five.ckpt"))

            def on_train_batch_end(self, trainer, module, *args):
                if trainer.global_step == 5:
                    finals.update({name: value.clone() for name, value in trainer.optimizers[0].export().items()})

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))
        raising = mock.patch("zfplugin.torch.groups.write", lambda *args: (next(number) == 5 and signal.raise_signal(signal.SIGUSR1), write(*args)))
        with tempfile.TemporaryDirectory() as out, raising:
            _, opt, _ = self.fit(out, callbacks=[Look()], enable_checkpointing=False)
            saved = torch.load(f"{out}/five.ckpt", weights_only=True)["state_dict"]
            for name, values in finals.items():
                self.assertTrue(torch.equal(saved[name], values), name)
            self.assertTrue(finals)
            opt.close()

    def test_another_optimizer_is_said(self):
        with tempfile.TemporaryDirectory() as out, self.assertRaisesRegex(zfplugin.ArgumentError, "no zfplugin.torch.ZenFlow"):
            self.fit(out, optimizer=lambda module: torch.optim.AdamW(module.parameters()), enable_checkpointing=False)


class Wrapped(TorchTest):
    def test_another_optimizer_is_said(self):
        """(Accelerate's is unwrapped: test_readme.py.)"""
        with self.assertRaisesRegex(zfplugin.ArgumentError, "AdamW"):
            zfplugin.torch.unwrap(torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]))
