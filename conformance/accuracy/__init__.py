# SPDX-License-Identifier: Apache-2.0
"""Accuracy: does training through the plugin reach what AdamW reaches? Python drives, judges and draws; a trainer trains.

``zf-conform glue`` is ``python3 -m zfplugin.accuracy glue``: one GLUE task by AdamW, by the plugin in its exact mode and by the
plugin as configured, over seeds. ``zf-conform ablation`` is ``python3 -m zfplugin.accuracy ablation``: unlike tasks, each with many
settings of the plugin. Both keep finished runs and do not repeat them.

A trainer is a program that does one run and writes a JSON report: zf-host (C, conformance/host) or zfplugin.accuracy.pytorch.

Modules: tasks (GLUE's nine tasks and their files), trainers (the command line of a run, and what decides its result), runs (processes,
a few at a time; kept files), probe (what a plugin makes of a configuration), scores (what predictions are worth), judge (verdicts and figures, with SciPy), text (the table),
result (the JSON file), picture (of the losses), campaign (one task of glue), options (command lines), glue and ablation (the commands). It needs scipy and numpy; the picture needs matplotlib; torch only where torch trains.
"""
