#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer, unchanged: optimizers=(optimizer, schedule), and a callback. Stops half-way, resumes from the checkpoint.

    python3 hf_trainer.py [--steps N] [--out DIR]
"""
import argparse
import tempfile

import transformers
from tiny import Language, model_of

import zfplugin.torch
from zfplugin.torch.trainer import ZenFlowCallback


def zenflow(model, config=None):
    return zfplugin.torch.ZenFlow(model.named_parameters(), lr=2e-3, model=model, config=config)


def make_trainer(out, steps, stop_at=None, make_optimizer=zenflow):
    """A Trainer over the plugin. stop_at: the step after which it saves and ends, as a killed job would."""

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == stop_at:
                control.should_save = control.should_training_stop = True

    model = model_of("gpt2")
    optimizer = make_optimizer(model)
    ours = [ZenFlowCallback()] if isinstance(optimizer, zfplugin.torch.ZenFlow) else []
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    arguments = transformers.TrainingArguments(
        output_dir=out, max_steps=steps, per_device_train_batch_size=8, gradient_accumulation_steps=2, use_cpu=True,
        logging_steps=max(1, steps // 5), save_strategy="no", report_to=[], disable_tqdm=True, seed=1, max_grad_norm=1.0)
    return transformers.Trainer(model=model, args=arguments, train_dataset=Language(2000),
                                optimizers=(optimizer, schedule), callbacks=[Stop(), *ours])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or temporary
        make_trainer(out, args.steps, stop_at=args.steps // 2).train()
        trainer = make_trainer(out, args.steps)
        result = trainer.train(resume_from_checkpoint=True)
        print(f"resumed at step {args.steps // 2}, loss of the whole run {result.training_loss:.3f}")
        for entry in trainer.state.log_history:
            if "zenflow/stall_ms" in entry:
                print(f"step {entry['step']}: waited {entry['zenflow/stall_ms']:.2f} ms per step, the plugin holds "
                      f"{entry['zenflow/host_mib']:.1f} MiB")


if __name__ == "__main__":
    main()
