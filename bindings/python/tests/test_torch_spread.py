# SPDX-License-Identifier: Apache-2.0
"""Models that are spread over eight processes, or resumed on another number of them: spread_worker.py. A row of .ci/matrix runs it."""
import tempfile
import unittest
from pathlib import Path

from support import TorchTest, torch
from test_torch_ranks import fully_shard, run_ranks


@unittest.skipUnless(fully_shard and torch.distributed.is_gloo_available(), "no torch (2.6) with gloo, fully_shard")
class Spread(TorchTest):
    def test_tensor_pipeline_data(self):
        """Eight processes: two by data, two stages, two by tensor."""
        run_ranks(8, "spread_worker", "tensor_pipeline_data")

    def test_experts_resume_elsewhere(self):
        """On 4, then 2, then 8 processes."""
        import spread_worker

        with tempfile.TemporaryDirectory() as folder:
            spread_worker.FOLDER = Path(folder)
            for n in spread_worker.JOBS:
                run_ranks(n, "spread_worker", "resumes_elsewhere")
