# SPDX-License-Identifier: Apache-2.0
"""A pretrained BERT encoder in a folder as Hugging Face's libraries leave it: config.json, model.safetensors, vocab.txt and, where
it is there, tokenizer_config.json.

Supported is what zf-host computes: post-LayerNorm, learned absolute positions, exact GELU. Anything else that a file states is
refused by name instead of being computed wrongly. Tensors may be named with or without "bert." in front, and LayerNorm's "gamma"
and "beta" as the first releases had them; tensors that the encoder does not have are left unread.
"""

from __future__ import annotations

import json
import math
import os

from .runs import CannotRun

# Of config.json: how the examples' metadata call it, and the value where the key is missing (None: it is needed).
COUNTS = {"hidden_size": ("hidden", None), "num_hidden_layers": ("layers", None), "num_attention_heads": ("heads", None),
          "intermediate_size": ("ffn", None), "vocab_size": ("pieces", None), "max_position_embeddings": ("positions", None),
          "type_vocab_size": ("types", 2)}
REALS = {"layer_norm_eps": ("layer_norm_eps", 1e-12), "initializer_range": ("init_std", 0.02)}
CHOICES = {"model_type": ("bert",), "hidden_act": ("gelu", "gelu_python"), "position_embedding_type": ("absolute",),
           "is_decoder": (False,), "add_cross_attention": (False,)}
FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_json(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except OSError as error:
        raise CannotRun(f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:
        raise CannotRun(f"{path}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CannotRun(f"{path}: found no JSON object")
    return value


def shape_of(path: str) -> dict:
    """What config.json makes of the encoder, by the names of the examples' metadata."""
    config, out = read_json(path), {}
    for key, values in CHOICES.items():
        if config.get(key, values[0]) not in (*values, None):
            raise CannotRun(f'{path}: "{key}" is {json.dumps(config[key])}; zf-host has {json.dumps(values[0])} only')
    for key, (name, default) in {**COUNTS, **REALS}.items():
        value = config.get(key, default)
        is_fit = isinstance(value, int) and 0 < value < 2**24 if key in COUNTS else isinstance(value, (int, float)) and 0 <= value <= 1
        if not is_fit or isinstance(value, bool):
            raise CannotRun(f'{path}: "{key}" is {"missing" if value is None else json.dumps(value)}; a number is needed')
        out[name] = value
    if out["hidden"] % out["heads"]:
        raise CannotRun(f'{path}: "hidden_size" {out["hidden"]} is not a multiple of "num_attention_heads" {out["heads"]}')
    return out


def keeps_case(path: str) -> bool:
    """Whether letters stay as they are. BERT's default, without a file, is to fold them."""
    config = read_json(path) if os.path.exists(path) else {}
    if config.get("tokenize_chinese_chars") is False or config.get("do_basic_tokenize") is False:
        raise CannotRun(f'{path}: "tokenize_chinese_chars" or "do_basic_tokenize" is false; BERT\'s basic tokenizer is there alone')
    out = config.get("do_lower_case") is False
    if config.get("strip_accents") not in (None, not out):
        raise CannotRun(f'{path}: "strip_accents" and "do_lower_case" differ; both or neither are folded')
    return out


def outline(c: dict) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors, as BertForSequenceClassification has them."""
    h, ffn = c["hidden"], c["ffn"]
    tables = {"word": c["pieces"], "position": c["positions"], "token_type": c["types"]}
    out = {f"bert.embeddings.{name}_embeddings.weight": (rows, h) for name, rows in tables.items()}
    pairs = {"bert.embeddings.LayerNorm": (h,), "bert.pooler.dense": (h, h)}
    for i in range(c["layers"]):
        at = f"bert.encoder.layer.{i}."
        pairs.update({f"{at}attention.self.{name}": (h, h) for name in ("query", "key", "value")})
        pairs.update({f"{at}attention.output.dense": (h, h), f"{at}attention.output.LayerNorm": (h,), f"{at}intermediate.dense": (ffn, h),
                      f"{at}output.dense": (h, ffn), f"{at}output.LayerNorm": (h,)})
    for name, shape in pairs.items():
        out[name + ".weight"], out[name + ".bias"] = shape, shape[:1]
    return out


class Tensors:
    """Those of a safetensors file, read one at a time."""

    def __init__(self, path: str):
        self.path = path
        try:
            with open(path, "rb") as file:
                n = int.from_bytes(file.read(8), "little")
                self.begin, self.nbytes = 8 + n, os.fstat(file.fileno()).st_size
                header = json.loads(file.read(n)) if self.begin <= self.nbytes else None
        except OSError as error:
            raise CannotRun(f"{path}: cannot read: {error.strerror}") from None
        except ValueError as error:
            raise CannotRun(f"{path}: its header is no JSON: {error}") from None
        if not isinstance(header, dict):
            raise CannotRun(f"{path}: cut short, or no safetensors file")
        self.header = header

    def find(self, name: str) -> str | None:
        """Under which of its possible names a tensor is there."""
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        names = (name, old, name.removeprefix("bert."), old.removeprefix("bert."))
        return next((n for n in names if n in self.header), None)

    def read(self, name: str, shape: tuple[int, ...]):
        """A float32 array of numpy's."""
        import numpy

        t = self.header[name]
        if tuple(t["shape"]) != shape:
            raise CannotRun(f"{self.path}: tensor {name} is {t['shape']}; config.json makes it {list(shape)}")
        if t["dtype"] not in FLOATS:
            raise CannotRun(f"{self.path}: tensor {name} has type {t['dtype']}; F32, F16 or BF16 is needed")
        dtype, (begin, end) = numpy.dtype(FLOATS[t["dtype"]]), t["data_offsets"]
        if end - begin != math.prod(shape) * dtype.itemsize or not 0 <= begin <= end <= self.nbytes - self.begin:
            raise CannotRun(f"{self.path}: tensor {name}: bytes {begin} to {end} are not its own, or the file is cut short")
        values = numpy.fromfile(self.path, dtype, math.prod(shape), offset=self.begin + begin).reshape(shape)
        return (values.astype("<u4") << 16).view("<f4") if t["dtype"] == "BF16" else values.astype("<f4")


class Encoder:
    def __init__(self, folder: str):
        at = lambda name: os.path.join(folder, name)
        self.shape, self.keeps_case, self.vocabulary = shape_of(at("config.json")), keeps_case(at("tokenizer_config.json")), at("vocab.txt")
        self.tensors, self.names = Tensors(at("model.safetensors")), {}
        for name in outline(self.shape):
            if found := self.tensors.find(name):
                self.names[name] = found
            elif ".pooler." not in name:
                raise CannotRun(f'{at("model.safetensors")}: {name} is missing (also looked for without "bert."): no BERT encoder')

    def weights(self, rows: dict[str, list[int]]):
        """Name and array of each tensor, one after the other. rows: those that are taken of a table, by its name."""
        shapes = outline(self.shape)
        for name, found in self.names.items():
            values = self.tensors.read(found, shapes[name])
            yield name, values[rows[name]] if name in rows else values
