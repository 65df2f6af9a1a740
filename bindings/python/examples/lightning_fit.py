#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning: configure_optimizers returns the plugin's optimizer; the Trainer clips and accumulates as ever.

    python3 lightning_fit.py [--steps N]
"""
import argparse
import logging
import warnings

import lightning
import torch
from tiny import Language, model_of

import zfplugin.torch
from zfplugin.torch.lightning import ZenFlowCallback


def zenflow(model, config=None):
    return zfplugin.torch.ZenFlow(model.named_parameters(), lr=2e-3, model=model, config=config)


class LanguageModel(lightning.LightningModule):
    def __init__(self, make_optimizer=zenflow):
        super().__init__()
        self.make_optimizer = make_optimizer
        self.model = model_of("gpt2")
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch).loss
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        return self.make_optimizer(self)


def fit(steps, make_optimizer=zenflow):
    """Losses of every micro-batch."""
    model = LanguageModel(make_optimizer)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, gradient_clip_val=1.0, accumulate_grad_batches=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ZenFlowCallback()] if make_optimizer is zenflow else [])
    trainer.fit(model, torch.utils.data.DataLoader(Language(16 * steps), batch_size=8))
    return model.losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    losses = fit(parser.parse_args().steps)
    print(f"loss {losses[0]:.3f} at the first micro-batch, {losses[-1]:.3f} at the last of {len(losses)}")


if __name__ == "__main__":
    main()
