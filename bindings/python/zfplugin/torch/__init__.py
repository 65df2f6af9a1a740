"""zfplugin.torch: the plugin as a torch.optim.Optimizer.

    import zfplugin.torch
    opt = zfplugin.torch.ZenFlow(model.named_parameters(), lr=1e-3)
    ... loss.backward(); opt.step(); opt.zero_grad() ...
    opt.flush()                       # at the end: every update has arrived

optimizer.py is the Optimizer, parameters.py what is bound and how changes of weights are noticed, gradients.py how
gradients travel during backward.
"""
from .optimizer import ZenFlow

__all__ = ["ZenFlow"]
