# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO-Offload and its ZenFlow, to stand beside AdamW and the plugin: on the CPU, one process, gloo, ZeRO stage 2,
offload_optimizer cpu, the model in bfloat16 with fp32 master weights. Optional: pip install deepspeed; a C++ compiler builds its optimizer
at its first start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from pathlib import Path

from .train import groups, rate

# The plugin's selection; the window is twice the plugin's, which starts with 50 synchronous steps.
ZENFLOW = {"topk_ratio": 0.1, "select_strategy": "step", "select_interval": 16, "update_interval": 4, "full_warm_up_rounds": 0,
           "overlap_step": False}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def building():
    """DeepSpeed compiles here, one process at a time. torch's builder waits for a file that a process left which was ended meanwhile; whoever
    is in here is alone, so such a file is nobody's."""
    folder = Path(tempfile.gettempdir(), f"zfplugin-deepspeed-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    with open(folder / "in-use", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in folder.glob("*/lock"):
            left.unlink()
        yield


class Engine:
    """What train.Stepper is to torch's optimizers."""

    def __init__(self, model, s):
        os.environ.update(DS_ACCELERATOR="cpu", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(free_port()))
        with building():
            self._start(model, s)
        self.settings, self.n_steps = s, 0

    def _start(self, model, s) -> None:
        import deepspeed

        zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
        if s.optimizer == "deepspeed-zenflow":
            zero["zenflow"] = dict(ZENFLOW)
        config = {"train_micro_batch_size_per_gpu": s.batch, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
                  "gradient_clipping": s.clip, "steps_per_print": 10**9, "zero_optimization": zero,
                  "optimizer": {"type": "AdamW", "params": {"lr": s.lr, "betas": [0.9, 0.999], "eps": 1e-8}}}
        deepspeed.init_distributed("gloo")
        parameters = [{**g, "params": [p for _, p in g["params"]]} for g in groups(model, s.weight_decay)]
        self.model, self.optimizer, _, _ = deepspeed.initialize(model=model, config=config, model_parameters=parameters)

    def step(self, loss) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * rate(self.n_steps, self.settings)
        self.model.backward(loss)
        self.model.step()
        self.n_steps += 1

    def finish(self) -> None:
        pass

    def counters(self) -> dict:
        return {}
