# SPDX-License-Identifier: Apache-2.0
"""All of usage.py's and usage_weights.py's programs on a Vulkan device in each setting; test_torch_carried.py has some of them."""
import support
from support import TorchTest
from test_torch_carried import SETTINGS, setUpModule, tearDownModule  # noqa: F401
from test_torch_usage import BOUND, trained, worst_of
from usage import USES

NO_DEVICES = {"read_at_its_address": "memory of a device has no address that the host could read"}


class Uses(TorchTest):
    def test_every_use(self):
        for name, program, make in (use for use in USES if use[1].__name__ not in NO_DEVICES):
            torchs = trained(program, make)
            for setting, options in SETTINGS.items():
                with self.subTest(name, setting=setting, device=support.DEVICE):
                    self.assertLessEqual(worst_of(program, make, options, torchs), BOUND)
