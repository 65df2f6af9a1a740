# SPDX-License-Identifier: Apache-2.0
"""Pictures and one HTML page from the JSON files that the areas of zf-conform leave.

``python -m zfplugin.report RESULTS --page FILE.html --plots DIR`` reads what abi, exact, shard, glue, ablation
(defaults.json) and perf wrote, and nothing else: a page can be made again later, on another machine, from results that were kept.
It needs matplotlib. Modules: results (find, read and check the files), shapes (what the file of each area must hold),
draw (figures, by kind of plot), blocks (what a section is made of), one module per kind of area (checks, accuracy,
defaults, perf, tune), page (HTML), __main__ (the command).
"""
