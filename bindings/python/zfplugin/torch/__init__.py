# SPDX-License-Identifier: Apache-2.0
"""zfplugin.torch: the plugin as a torch.optim.Optimizer.

    import zfplugin.torch
    opt = zfplugin.torch.ZenFlow(model.named_parameters(), lr=1e-3)
    ... loss.backward(); opt.step(); opt.zero_grad() ...
    opt.flush()                       # at the end: every update has arrived

optimizer.py is the Optimizer, states.py how its state is saved and loaded, binding.py what is bound and how it follows the trainer, parameters.py
the weights and how changes of them are noticed, carried.py their mirrors where they lie on another device, lanes.py the copies,
gradients.py and bucket.py how gradients travel, fetch.py when values come to their readers, saving.py weights
that leave the run, figures.py what it tells of itself, processes.py and ranks.py several processes, cut.py parameters that are cut over them. trainer.py and
lightning.py are callbacks for Hugging Face's and Lightning's Trainer; precision() looks at any optimizer's number formats; unwrap() finds the optimizer inside of wrappers.
"""
import torch

if not hasattr(getattr(torch, "compiler", None), "is_compiling"):
    raise ImportError(f"zfplugin.torch needs PyTorch 2.3 or newer; this is {torch.__version__}")

from .optimizer import ZenFlow
from .precision import precision
from .wrappers import unwrap

__all__ = ["ZenFlow", "precision", "unwrap"]
