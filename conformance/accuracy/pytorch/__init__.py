# SPDX-License-Identifier: Apache-2.0
"""The trainer of PyTorch: fine-tunes an encoder on a GLUE task once, by torch's AdamW or through the PyTorch binding (zfplugin.torch).

``python3 -m zfplugin.accuracy.pytorch --help``. Modules: model (encoder and tokens), train (one run),
deepspeed (DeepSpeed's optimizers, optional), __main__ (the program). It needs torch and transformers.
"""
