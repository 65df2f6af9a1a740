# SPDX-License-Identifier: Apache-2.0
"""zf-conform ablation: what decides the plugin's defaults. Unlike tasks, each trained with AdamW and with many settings of the plugin.

Every cell (a task at one learning rate) is trained with AdamW and with every setting, over the same seeds: same initial weights, rows,
order and rates; only the optimizer differs. The figure of a cell is its gap: the mean training loss of the last quarter of the steps,
relative to AdamW's of the same seed. A setting holds the bar where the mean of its gaps and the worst of them do (judge.BARS). Encoders
are trained by zf-host, language models by PyTorch through the binding.

Modules: plan (tasks, cells, settings), data (the files that runs read), language (a language model's run, a program), judge (gaps, bars,
table), command. Runs are kept as those of the GLUE campaign (runs.py).
"""
