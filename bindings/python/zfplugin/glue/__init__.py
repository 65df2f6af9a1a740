# SPDX-License-Identifier: Apache-2.0
"""GLUE fine-tuning in PyTorch: AdamW, the plugin in its synchronous mode, and ZenFlow, judged by zf-conform's test.

``python -m zfplugin.glue --task sst2 --data DIR --model DIR`` trains every arm with the same seeds, data order,
initial weights, schedule and number of steps; only the optimizer differs. The verdict is the paired non-inferiority
test of ``zf-conform verdict`` (conformance/glue/verdict.h). Finished runs are kept in the output directory and are not
repeated.

Modules: tasks (the nine tasks and their files), metrics, model (encoder and tokens), train (one run), judge (verdict,
table, plot), __main__ (the command).
"""
