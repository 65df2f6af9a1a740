# SPDX-License-Identifier: Apache-2.0
"""Parameters that FSDP2 (fully_shard) has cut over processes, with gloo on the loopback: what each process does is fsdp_worker.py. Beside torch's AdamW under fully_shard and on the whole batch."""
import unittest

from support import TorchTest, needs, torch
from test_torch_ranks import run_ranks

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None


@unittest.skipUnless(torch and fully_shard and torch.distributed.is_gloo_available(), "no torch (2.6) with gloo, fully_shard")
class Cut(TorchTest):
    def test_two(self):
        import fsdp_worker

        run_ranks(2, fsdp_worker, "as_adamw", "shipped_in_backward", "skips_alike", "resumes", "refused")

    @needs("transformers")
    def test_four(self):
        import fsdp_worker
        import transformers

        self.assertTrue(transformers.GPT2LMHeadModel)
        run_ranks(4, fsdp_worker, "as_adamw", "skips_alike", "resumes", "hugging_face")


if __name__ == "__main__":
    unittest.main()
