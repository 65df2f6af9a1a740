# SPDX-License-Identifier: Apache-2.0
"""A callback for Hugging Face's Trainer.

    trainer = transformers.Trainer(model, args, ..., optimizers=(optimizer, None), callbacks=[ZenFlowCallback()])
    trainer = transformers.Trainer(model, args, ..., optimizer_cls_and_kwargs=(of_model(model), {"lr": 1e-4}), callbacks=[ZenFlowCallback()])

The plugin clips in the Trainer's place (max_grad_norm), so that gradients travel and updates begin during backward. Checkpoints and save_model() hold final weights in mid-run (saving.py); the flush at the end of training is done; the logs have
what a step waited for and what the plugin holds (zenflow/..., bindings/python/README.md). A run that goes on says so. Trackers that stand before it in the Trainer's
list (TensorBoard, W&B) get those figures if it is put first: trainer.callback_handler.callbacks.insert(0, ZenFlowCallback()).
"""
import transformers

from .optimizer import ZenFlow
from .wrappers import Clipping, Meter, say_resumed, unwrap


def of_model(model):
    """ZenFlow with model=model, as a class: the Trainer takes a keyword "model" for the parameters, and whatever is no class for a maker
    of optimizers with arguments of its own."""
    class ZenFlowOfModel(ZenFlow):
        def __init__(self, params, **options):
            super().__init__(params, model=model, **options)

    return ZenFlowOfModel


class ZenFlowCallback(transformers.TrainerCallback):
    def __init__(self):
        self._meter, self._clipping = Meter(), Clipping()

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        found = unwrap(optimizer)
        found.attach(model)
        if state.global_step and state.is_world_process_zero:
            say_resumed(found, state.global_step)

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        if args.max_grad_norm:
            self._clipping.take(unwrap(optimizer), args.max_grad_norm)
            args.max_grad_norm = 0.0  # the Trainer then finds the norm alone, for its log

    def on_optimizer_step(self, args, state, control, **kwargs):
        args.max_grad_norm = self._clipping.give_back() or args.max_grad_norm

    def on_log(self, args, state, control, logs=None, optimizer=None, **kwargs):
        if logs is None or "loss" not in logs:
            return  # of an evaluation, or the summary at the end
        figures = self._meter.read(unwrap(optimizer))
        logs.update(figures)
        state.log_history[-1].update(figures)

    def on_train_end(self, args, state, control, optimizer=None, **kwargs):
        unwrap(optimizer).flush()
