# SPDX-License-Identifier: Apache-2.0
"""Trains three steps with an installed package alone: no torch, no path to a checkout or a build. Prints the library's file."""
import array

import zfplugin

assert "site" in zfplugin.__file__, f"not the installed package: {zfplugin.__file__}"
file = zfplugin.load().file
assert zfplugin.__version__ == zfplugin.load().describe()["version"], zfplugin.__version__
assert "site" in file, f"not the installed library: {file}"
w = array.array("f", [1.0])
with zfplugin.Instance({"zenflow.update_interval": 1, "zenflow.publish_lag": 0}) as opt:
    opt.bind([zfplugin.Param("w", w)])
    for _ in range(3):
        opt.grads_ready([(0, array.array("f", [1.0]))])
        opt.step([zfplugin.Hyper(0.1)])
assert abs(w[0] - 0.7) < 1e-5, w
print("trained with", file)
