# SPDX-License-Identifier: Apache-2.0
"""The ablation that decides the plugin's defaults: unlike tasks, each trained with AdamW and with many settings of the plugin.

``python -m zfplugin.ablation --data DIR --model NAME`` trains every cell (a task at one learning rate) with AdamW and with every
setting, over the same seeds: same initial weights, rows, order and rates; only the optimizer differs. The figure of a cell is
its gap: the mean training loss of the last quarter of the steps, relative to AdamW's of the same seed. A setting holds the bar where
the mean of its gaps and the worst of them do (judge.BARS). Encoders are trained by the reference host zf-host, the language
model by PyTorch through the binding. Finished runs are kept in the output directory and not repeated.

Modules: plan (tasks, cells, settings), data (the files that runs read), runs (one process per run, kept by what decides it),
gpt (the language model's run, a program), judge (gaps, bars, table), __main__ (the command). The plot is zfplugin.report's.
"""
