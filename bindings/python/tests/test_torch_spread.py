# SPDX-License-Identifier: Apache-2.0
"""Models that are spread over eight processes, or resumed on another number of them: spread_worker.py. What is long of a few processes,
too. A row of .ci/matrix runs it."""
import runpy
import sys
import tempfile
import unittest
from pathlib import Path

from support import HERE, TorchTest, in_a_fork, needs, torch
from test_torch_ranks import fully_shard, run_ranks

EXAMPLE = str(HERE.parent / "examples" / "ranks_loop.py")


def run_example():
    """[a fork of a fork]"""
    runpy.run_path(EXAMPLE, run_name="__main__")


def launch_example():
    """[a fork]"""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    from transformers import GPT2LMHeadModel  # noqa: F401, so that its ranks have it

    sys.argv[:] = [EXAMPLE, "--steps", "6", "--stage", "1"]
    elastic_launch(LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", start_method="fork"), run_example)()


@unittest.skipUnless(fully_shard and torch.distributed.is_gloo_available(), "no torch (2.6) with gloo, fully_shard")
class Spread(TorchTest):
    def test_tensor_pipeline_data(self):
        """Eight processes: two by data, two stages, two by tensor."""
        run_ranks(8, "spread_worker", "tensor_pipeline_data")

    @needs("transformers")
    def test_example(self):
        """Under torchrun's agent, whose processes are forks here."""
        self.assertRegex(in_a_fork(launch_example)[1], "loss .* at the last of 6")

    def test_every_use_on_two(self):
        run_ranks(2, "ranks_worker", "used")

    def test_tensor_parallel(self):
        """Two by two processes."""
        run_ranks(4, "cut_worker", "hybrid", "copies_agree", "resumes", "to_adamw")

    def test_offloaded(self):
        """CPUOffloadPolicy, 200 steps."""
        for n in (1, 2, 4):
            run_ranks(n, "cut_worker", "offloaded_long")

    def test_experts(self):
        """Four processes, two of which have each expert."""
        run_ranks(4, "spread_worker", "experts", "experts_under_one_name", "experts_in_meshes")

    def test_experts_resume_elsewhere(self):
        """On 4, then 2, then 8 processes."""
        import spread_worker

        with tempfile.TemporaryDirectory() as folder:
            spread_worker.FOLDER = Path(folder)
            for n in spread_worker.JOBS:
                run_ranks(n, "spread_worker", "resumes_elsewhere")
