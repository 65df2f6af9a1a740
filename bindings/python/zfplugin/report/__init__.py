# SPDX-License-Identifier: Apache-2.0
"""Pictures from the JSON files that zf-conform and zf tune leave.

``python -m zfplugin.report RESULTS --plots DIR`` reads what glue, ablation (defaults.json) and zf tune wrote, and nothing else:
pictures can be made again later, on another machine. It needs matplotlib. Modules: results (find and read the files), draw
(the kinds of plots), figures (which plots a result has), __main__ (the command).
"""
