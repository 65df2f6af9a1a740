# SPDX-License-Identifier: Apache-2.0
"""Parameters that FSDP2 (fully_shard) has cut over processes, under torchrun with gloo on the loopback: what each process does
is fsdp_worker.py. Beside torch's AdamW under fully_shard and on the whole batch."""
import unittest

from support import HERE, TorchTest, torch
from test_examples import needs
from test_torch_ranks import torchrun

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None


@unittest.skipUnless(torch and fully_shard and torch.distributed.is_gloo_available(), "no torch (2.6) with gloo, fully_shard")
class Cut(TorchTest):
    def run_cases(self, n_ranks, *cases):
        output = torchrun(n_ranks, HERE / "fsdp_worker.py", *cases)
        for case in cases:
            self.assertIn(f"done: {case}", output)

    def test_two(self):
        self.run_cases(2, "as_adamw", "shipped_in_backward", "skips_alike", "resumes", "refused")

    @needs("transformers")
    def test_four(self):
        self.run_cases(4, "as_adamw", "skips_alike", "resumes", "hugging_face")


if __name__ == "__main__":
    unittest.main()
