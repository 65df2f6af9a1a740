# SPDX-License-Identifier: Apache-2.0
"""zfplugin: libzfplugin's selective, stall-free optimizer offload from Python, over its C ABI with ctypes alone.

    import zfplugin.torch
    opt = zfplugin.torch.ZenFlow(model.parameters(), lr=1e-3, config="zf.ini")

This package needs neither torch nor numpy; zfplugin.torch needs torch. Modules: library (find and open), instance (one
optimizer for any framework), tensors (descriptors, DLPack), errors, torch (the torch.optim.Optimizer).
"""
from . import errors
from .collectives import Collectives
from .errors import *  # noqa: F401,F403 - the exception classes are part of the public names
from .instance import Hyper, Instance, Param, Report
from .library import Library, load
from .rules import MatrixRule, RuleCallback
from .version import VERSION as __version__

__all__ = ["Collectives", "Hyper", "Instance", "Library", "MatrixRule", "Param", "Report", "RuleCallback", "errors", "load"]
