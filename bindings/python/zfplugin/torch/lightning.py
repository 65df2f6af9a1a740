# SPDX-License-Identifier: Apache-2.0
"""A callback for Lightning's Trainer.

    trainer = lightning.Trainer(..., callbacks=[ZenFlowCallback()])

Checkpoints hold final weights in mid-run (saving.py); the flush at the end of training is done; what a step waited for and what
the plugin holds is logged (zenflow/..., wrappers.py).
"""
try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from .. import errors
from .wrappers import Meter, find, say_resumed


class ZenFlowCallback(Callback):
    def __init__(self):
        self._meters = {}

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

    def on_train_batch_end(self, trainer, pl_module, *args, **kwargs):
        for number, optimizer in enumerate(self._optimizers(trainer)):
            figures = self._meters.setdefault(number, Meter()).read(optimizer)
            pl_module.log_dict({name + f"/{number}" * bool(number): float(value) for name, value in figures.items()})

    def on_train_end(self, trainer, pl_module):
        for optimizer in self._optimizers(trainer):
            optimizer.flush()
