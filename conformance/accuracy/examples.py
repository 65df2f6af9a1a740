# SPDX-License-Identifier: Apache-2.0
"""zf-conform examples: what zf-host trains on, as one file. The pieces of a task's files and, for a fine-tune, the encoder's weights.

The file is a safetensors file (conformance/host/examples.h says what lies where). Most of a vocabulary of 30,522 pieces never occurs:
the pieces that do are numbered anew, so the word table has no more rows. From scratch they are those of the training file, and another
piece of a dev file becomes [UNK]. A pretrained table knows more, so the pieces of every file are kept, and nothing but its size changes.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from array import array

from . import synthetic
from .encoder import Encoder
from .options import Option, count, parse
from .runs import CannotRun, write_bytes
from .tasks import Examples, Task, find_file, find_task, read
from .wordpiece import SPECIAL, UNK, Vocabulary

HEAD = "zf-conform examples - what zf-host trains on: the pieces of a task's files, the weights of an encoder"
END = "exit status: 0 written, 2 could not"
TABLE = (
    Option("task", "NAME", "sst2 (default), cola, mrpc, rte, qnli, wnli, stsb, qqp, mnli", default="sst2"),
    Option("data", "DIR", "official GLUE files (DIR/SST-2/train.tsv ... vocab.txt)"),
    Option("synthetic", "DIR", "instead: the generated corpus, written into DIR where it is missing"),
    Option("model", "DIR", "the BERT encoder to fine-tune (config.json, model.safetensors, vocab.txt)"),
    Option("max-tokens", "N", "cut longer texts (128; rte 256); number of positions", count),
    Option("out", "FILE", "to be written; needed"),
)


class Split:
    """A file's rows as pieces."""

    def __init__(self, examples: Examples, vocabulary: Vocabulary, max_tokens: int):
        self.ids, self.types, self.lengths, self.targets = array("i"), array("i"), array("i"), array("d", examples.labels)
        for texts in examples.texts:
            ids, types = vocabulary.encode(texts, max_tokens)
            self.ids.extend(ids)
            self.types.extend(types)
            self.lengths.append(len(ids))

    def tensors(self, name: str):
        for member, dtype in (("ids", "I32"), ("types", "I32"), ("lengths", "I32"), ("targets", "F64")):
            values = getattr(self, member)
            yield f"{name}.{member}", dtype, (len(values),), values.tobytes()


def renumber(splits: list[Split], n_decide: int, vocabulary: Vocabulary) -> list[int]:
    """Numbers the special pieces, then those of the first n_decide splits in ascending order. Returns the old number of each."""
    special = [vocabulary.ids[piece] for piece in SPECIAL]
    kept = [*special, *sorted({i for split in splits[:n_decide] for i in split.ids} - set(special))]
    new = {old: i for i, old in enumerate(kept)}
    for split in splits:
        split.ids = array("i", (new.get(i, SPECIAL.index(UNK)) for i in split.ids))
    return kept


def save(path: str, metadata: dict, tensors) -> None:
    """A safetensors file. tensors: name, type, shape and bytes of each."""
    header, parts, n = {"__metadata__": {name: str(value) for name, value in metadata.items()}}, [], 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [n, n + len(data)]}
        parts.append(data)
        n += len(data)
    text = json.dumps(header).encode()
    write_bytes(path, [struct.pack("<Q", len(text)), text, *parts])


def make(path: str, task: Task, files: list[Examples], vocabulary: str, model: str | None = None, max_tokens: int | None = None) -> None:
    """Writes the file at path. files: training rows, then each dev set; vocabulary: a file, where no model brings its own."""
    encoder = Encoder(model) if model else None
    pieces = Vocabulary(encoder.vocabulary, encoder.keeps_case) if encoder else Vocabulary(vocabulary)
    n_tokens = max_tokens or task.host_tokens
    if not 5 <= n_tokens <= (encoder.shape["positions"] if encoder else 1024):
        raise CannotRun(f"max-tokens {n_tokens}; a number from 5 to {encoder.shape['positions'] if encoder else 1024} is needed")
    if encoder and pieces.n_pieces > encoder.shape["pieces"]:
        raise CannotRun(f"{encoder.vocabulary}: has {pieces.n_pieces} pieces; the encoder knows {encoder.shape['pieces']}")
    splits = [Split(examples, pieces, n_tokens) for examples in files]
    kept = renumber(splits, len(splits) if encoder else 1, pieces)
    tensors = [t for name, split in zip(("train", "dev", "second_dev"), splits) for t in split.tensors(name)]
    if encoder:
        rows = {"bert.embeddings.word_embeddings.weight": kept, "bert.embeddings.position_embeddings.weight": list(range(n_tokens))}
        tensors += [(name, "F32", values.shape, values.tobytes()) for name, values in encoder.weights(rows)]
    shape = {**(encoder.shape if encoder else {}), "pieces": len(kept), "positions": n_tokens, "labels": len(task.labels)}
    save(path, {"task": task.name, "skipped": sum(x.n_skipped for x in files), **shape}, tensors)


def find_vocabulary(task: Task, data: str) -> str:
    own = os.path.join(data, task.folder, "vocab.txt")
    return own if os.path.exists(own) else os.path.join(data, "vocab.txt")


def make_of_files(path: str, task: Task, data: str, model: str | None, max_tokens: int | None) -> None:
    """The same of a task's official files."""
    files = [read(task, find_file(task, data, name)) for name in ("train.tsv", *task.dev)]
    make(path, task, files, find_vocabulary(task, data), model, max_tokens)


def main(argv) -> int:
    args = parse(HEAD, TABLE, END, argv)
    task = find_task(args.task)
    if not args.out or (args.data is None) == (args.synthetic is None):
        raise CannotRun("--out FILE is needed, and one of --data DIR (GLUE files) and --synthetic DIR (generated)")
    if args.synthetic and task.name != "sst2":
        raise CannotRun(f"the generated corpus has the layout of sst2; task {task.name} needs --data")
    make_of_files(args.out, task, args.data or synthetic.ensure(args.synthetic), args.model, args.max_tokens)
    print(args.out, file=sys.stderr)
    return 0
