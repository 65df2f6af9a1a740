# SPDX-License-Identifier: Apache-2.0
"""Parameters that torch's parallelize_module has cut, with and without fully_shard over the other axis of a mesh, over gloo on the
loopback: what each of four processes does is tensor_worker.py."""
import tempfile
import unittest
from pathlib import Path

from support import TorchTest, torch
from test_torch_ranks import run_ranks

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None


@unittest.skipUnless(torch and fully_shard and torch.distributed.is_gloo_available(), "no torch (2.6) with gloo, fully_shard")
class Tensor(TorchTest):
    def test_what_does_not_count(self):
        """One process: counts_in_norm= says so of DTensors, too."""
        import torch.distributed as dist
        from torch.distributed.tensor import Shard, distribute_tensor

        import zfplugin.torch

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            mesh = dist.init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
            params = {name: torch.nn.Parameter(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])) for name in "ab"}
            opt = zfplugin.torch.ZenFlow(list(params.items()), lr=1e-3, counts_in_norm=lambda name, p: name != "b")
            for p in params.values():
                p.grad = torch.ones_like(p)
            opt.step()
            self.assertAlmostEqual(opt.grad_norm, 12 ** 0.5, places=5)
        finally:
            dist.destroy_process_group()

    def test_four(self):
        import tensor_worker

        run_ranks(4, tensor_worker, "as_one", "hybrid", "copies_agree", "resumes", "to_adamw", "scalars", "refused")

    def test_resume_with_two(self):
        """By torch.distributed.checkpoint."""
        import tensor_worker

        with tempfile.TemporaryDirectory() as folder:
            tensor_worker.FOLDER = Path(folder)
            run_ranks(4, tensor_worker, "saves")
            run_ranks(2, tensor_worker, "loads")


if __name__ == "__main__":
    unittest.main()
