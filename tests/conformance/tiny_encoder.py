# SPDX-License-Identifier: Apache-2.0
"""tiny_encoder.py FOLDER VOCABULARY SEED - a random BERT encoder in Hugging Face's layout, by Python alone."""

import json
import os
import random
import shutil
import struct
import sys

HIDDEN, FFN, LAYERS, POSITIONS = 32, 64, 1, 128


def shapes(n_pieces):
    yield "embeddings.word_embeddings.weight", [n_pieces, HIDDEN]
    yield "embeddings.position_embeddings.weight", [POSITIONS, HIDDEN]
    yield "embeddings.token_type_embeddings.weight", [2, HIDDEN]
    pairs = [("embeddings.LayerNorm", [HIDDEN]), ("pooler.dense", [HIDDEN, HIDDEN])]
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}."
        pairs += [(layer + f"attention.self.{x}", [HIDDEN, HIDDEN]) for x in ("query", "key", "value")]
        pairs += [(layer + "attention.output.dense", [HIDDEN, HIDDEN]), (layer + "intermediate.dense", [FFN, HIDDEN])]
        pairs += [(layer + "output.dense", [HIDDEN, FFN])]
        pairs += [(layer + x + ".LayerNorm", [HIDDEN]) for x in ("attention.output", "output")]
    for name, shape in pairs:
        yield name + ".weight", shape
        yield name + ".bias", shape[:1]


def main():
    folder, vocabulary, seed = sys.argv[1:]
    draw = random.Random(int(seed))
    with open(vocabulary, encoding="utf-8") as file:
        n_pieces = sum(1 for _ in file)
    os.makedirs(folder, exist_ok=True)
    shutil.copy(vocabulary, os.path.join(folder, "vocab.txt"))
    header, data = {}, b""
    for name, shape in shapes(n_pieces):
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        is_norm_weight = name.endswith("LayerNorm.weight")
        values = [1.0 if is_norm_weight else draw.gauss(0.0, 0.05) for _ in range(n)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
        data += struct.pack(f"<{n}f", *values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors lie aligned then
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
                   "intermediate_size": FFN, "vocab_size": n_pieces, "max_position_embeddings": POSITIONS}, file)


main()
