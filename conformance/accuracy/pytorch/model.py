# SPDX-License-Identifier: Apache-2.0
"""The encoder to fine-tune and the tokens of a data set."""

from __future__ import annotations

import dataclasses
import importlib.util
import os

import torch

from ..runs import CannotRun
from ..tasks import Examples, Task


def locate(model: str) -> str:
    """A directory stays; the name of an installed package that carries a model becomes its directory; else a hub id."""
    if os.path.isdir(model):
        return model
    if model.isidentifier():
        spec = importlib.util.find_spec(model)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for root, _, files in os.walk(folder):
                if "config.json" in files and "model.safetensors" in files:
                    return root
        if spec:
            raise CannotRun(f"package {model!r} is installed but holds no config.json beside model.safetensors")
    return model


def build(path: str, task: Task, seed: int, dropout: float | None = None):
    """The pretrained encoder with a fresh classifier, the same for every arm of a seed."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(seed)
    kind = "regression" if not task.labels else "single_label_classification"
    rates = {} if dropout is None else {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=task.n_outputs, problem_type=kind, dtype=torch.float32, **rates)


@dataclasses.dataclass
class Tokens:
    """Token ids and token types of every example, unpadded, and the labels."""

    ids: list[list[int]]
    types: list[list[int]]
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows) -> dict:
        """Examples `rows`, padded to the longest of them: tensors [len(rows), length]."""
        def padded(of_rows):
            return torch.nn.utils.rnn.pad_sequence([torch.tensor(own) for own in of_rows], batch_first=True)

        return {"input_ids": padded(self.ids[r] for r in rows), "token_type_ids": padded(self.types[r] for r in rows),
                "attention_mask": padded([1] * len(self.ids[r]) for r in rows), "labels": self.labels[torch.as_tensor(rows)]}


def tokenize(path: str, task: Task, examples: Examples) -> Tokens:
    from transformers import AutoTokenizer

    columns = list(zip(*examples.texts))
    encoded = AutoTokenizer.from_pretrained(path)(
        *[list(c) for c in columns], truncation=True, max_length=task.max_length, return_token_type_ids=True)
    labels = torch.tensor(examples.labels)
    return Tokens(encoded["input_ids"], encoded["token_type_ids"], labels.long() if task.labels else labels)
