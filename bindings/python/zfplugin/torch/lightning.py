# SPDX-License-Identifier: Apache-2.0
"""A callback for Lightning's Trainer.

    trainer = lightning.Trainer(..., callbacks=[ZenFlowCallback()])

The plugin clips in the Trainer's place (gradient_clip_val, by norm), so that gradients travel and updates begin during backward. Checkpoints hold final weights in mid-run (saving.py); the flush at the end of training is done; what a step waited for and what
the plugin holds is logged (zenflow/..., wrappers.py).
"""
try:
    from lightning.pytorch import Callback, LightningModule
except ImportError:
    from pytorch_lightning import Callback, LightningModule

from .. import errors
from .wrappers import Clipping, Meter, find, say_resumed


class ZenFlowCallback(Callback):
    def __init__(self):
        self._meters, self._clipping = {}, Clipping()

    @staticmethod
    def _optimizers(trainer):
        return [found for found in map(find, trainer.optimizers) if found is not None]

    def on_train_start(self, trainer, pl_module):
        found = self._optimizers(trainer)
        if not found:
            raise errors.ArgumentError("ZenFlowCallback: configure_optimizers() gave no zfplugin.torch.ZenFlow")
        for optimizer in found:
            optimizer.attach(pl_module)
            if trainer.global_step and trainer.is_global_zero:
                say_resumed(optimizer, trainer.global_step)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        found, is_by_norm = find(optimizer), str(getattr(trainer.gradient_clip_algorithm, "value", None) or "norm") == "norm"
        if found is not None and trainer.gradient_clip_val and is_by_norm and \
                type(pl_module).configure_gradient_clipping is LightningModule.configure_gradient_clipping:
            self._clipping.take(found, trainer.gradient_clip_val)
            trainer.gradient_clip_val = None

    def _give_back(self, trainer):
        if self._clipping.taken is not None:
            trainer.gradient_clip_val = self._clipping.give_back()

    def on_exception(self, trainer, pl_module, exception):
        self._give_back(trainer)

    def on_train_batch_end(self, trainer, pl_module, *args, **kwargs):
        self._give_back(trainer)
        for number, optimizer in enumerate(self._optimizers(trainer)):
            figures = self._meters.setdefault(number, Meter()).read(optimizer)
            pl_module.log_dict({name + f"/{number}" * bool(number): float(value) for name, value in figures.items()})

    def on_train_end(self, trainer, pl_module):
        for optimizer in self._optimizers(trainer):
            optimizer.flush()
