# SPDX-License-Identifier: Apache-2.0
"""The parameters of a model: names, shapes and data types, from a file that anybody may have made. No weight is read.

A safetensors file (its header), a *.index.json beside several, a config.json, or a list of shapes; the content decides.
The list has one tensor or several alike per line, "#" begins a comment:

    embedding 32000x4096
    32 * mlp.up 11008x4096 bf16
    4096
    experts 8|4096x14336           eight matrices in one tensor
"""
import json
import math
import os
import re
import struct

from terminal import Failed, read_file

MOST_ELEMS = 1 << 41  # of a model: its plan stays within a few GB of memory
MOST_PARAMS, MOST_NDIM, MOST_NAME = 1000000, 8, 199
MOST_HEADER_NBYTES = 100000000  # safetensors' own limit
MOST_JSON_NBYTES, MOST_LIST_NBYTES = 1 << 26, 1 << 22
WIDTH = {"bf16": 2, "f16": 2, "f32": 4}
NAMES = {"bfloat16": "bf16", "float16": "f16", "fp16": "f16", "half": "f16", "float32": "f32", "fp32": "f32",
         "float": "f32", **{name: name for name in WIDTH}}
OTHER_WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
                "F8_E4M3": 1, "F8_E5M2": 1}


class Model:
    """tensors: (name, type, whether rows are channels, axes that number matrices, shape), in the order of a forward pass."""

    def __init__(self, path, dtype):
        self.path, self.dtype = path, dtype  # dtype: of all of them, or None: what the file says, else bf16
        self.dtype_said = None  # the member of a config.json that says it
        self.tensors, self.sizes = [], []
        self.n_elems = self.nbytes = self.n_assumed = self.n_not_trained = 0
        self.n_layers = self.hidden = 0  # of a config.json; for the work of attention

    def fail(self, message):
        raise Failed(f"{self.path}: {message}")

    def add(self, name, shape, dtype=None, are_rows=0, n_batch_axes=0):
        n_elems = math.prod(shape)
        if len(shape) > MOST_NDIM:
            self.fail(f'tensor "{name[:100]}" has {len(shape)} axes; at most {MOST_NDIM}')
        if not 0 < len(name.encode()) <= MOST_NAME:
            self.fail(f'tensor "{name[:100]}...": need a name of 1 to {MOST_NAME} bytes')
        if self.n_elems + n_elems > MOST_ELEMS:
            self.fail(f'tensor "{name[:100]}": the model has more than 2^41 elements')
        if len(self.tensors) == MOST_PARAMS:
            self.fail(f"more than {MOST_PARAMS} tensors")
        self.n_assumed += not self.dtype and not dtype
        dtype = self.dtype or dtype or "bf16"
        self.tensors.append((name, dtype, are_rows, n_batch_axes, list(shape)))
        self.sizes.append(n_elems)
        self.n_elems += n_elems
        self.nbytes += n_elems * WIDTH[dtype]


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# ---- lists of shapes ------------------------------------------------------------------------------------------------

SIZES = r"\d+(?:\s*[xX,]\s*\d+)*"
LINE = re.compile(rf"\s*(?:(\d+)\s*\*\s*)?(?:([^\d\s]\S*)\s+)?(?:({SIZES})\s*\|\s*)?({SIZES})\s*(?:\s([^\d\s]\S*)\s*)?", re.ASCII)


def read_list(model, text):
    for number, line in enumerate(text.split("\n"), 1):
        line = line.partition("#")[0]
        if not line.strip():
            continue
        found = LINE.fullmatch(line)
        dtype = found and NAMES.get((found[5] or "bf16").lower())
        batch, sizes = (re.findall(r"\d+", found[i] or "") if found else [] for i in (3, 4))
        shape = [int(size[:20]) for size in batch + sizes]
        if not dtype or max(shape) > 1 << 62:
            model.fail(f'line {number}: "{line[:60]}" is no tensor; need [COUNT *] [NAME] [MATRICES |] SIZE x SIZE ... [bf16 | f16 | f32]')
        count, name = int((found[1] or "1")[:20]), found[2] or "tensor"
        if count > MOST_PARAMS:
            model.fail(f"line {number}: more than {MOST_PARAMS} tensors")
        for i in range(count):
            whole = f"{name}.{number}.{i}" if count > 1 else found[2] or f"tensor.{number}"
            model.add(whole, shape, found[5] and dtype, n_batch_axes=len(batch))


# ---- safetensors ----------------------------------------------------------------------------------------------------


def by_use(tensor):
    """Embeddings, layers, heads; names with numbers by value: layers.2 before layers.10."""
    name = tensor[0]
    place = 0 if re.search("embed|wte|wpe", name) else 2 if re.search("lm_head|classifier|pooler", name) else 1
    return place, [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]


def read_header(path):
    """{name: entry} of a safetensors file, and the bytes of its data."""
    def fail(message):
        raise Failed(f"{path}: {message}")
    head = read_file(path, MOST_HEADER_NBYTES, is_cut=True)
    nbytes = os.stat(path).st_size
    if nbytes < 8:
        fail(f"has {nbytes} bytes; a safetensors file begins with 8 bytes of length")
    length = struct.unpack("<Q", head[:8])[0]
    if length > min(nbytes - 8, MOST_HEADER_NBYTES - 8):
        fail(f"claims a header of {length} bytes; the file has {nbytes}: it is cut short or no safetensors file")
    try:
        header = json.loads(head[8:8 + length])
    except (ValueError, RecursionError) as error:
        fail(f"the header is no JSON object: {error}")
    if not isinstance(header, dict):
        fail("the header is no JSON object")
    header.pop("__metadata__", None)
    return header, nbytes - 8 - length


def take_tensor(model, path, name, entry, n_data):
    def fail(message):
        raise Failed(f"{path}: tensor {name[:80]}: {message}")
    dtype, shape, place = (entry.get(key) for key in ("dtype", "shape", "data_offsets")) if isinstance(entry, dict) else (None,) * 3
    if not isinstance(dtype, str) or not (dtype.lower() in WIDTH or dtype in OTHER_WIDTHS):
        fail('found no "dtype" that the format has')
    if not isinstance(shape, list) or len(shape) > MOST_NDIM:
        fail(f'"shape" must be a list of at most {MOST_NDIM} numbers')
    for i, size in enumerate(shape):
        if not is_count(size):
            fail(f"dimension {i} of its shape is not a whole number from 0")
    if not isinstance(place, list) or len(place) != 2 or not all(map(is_count, place)):
        fail('"data_offsets" must be two whole numbers')
    if not place[0] <= place[1] <= n_data:
        fail(f"bytes {place[0]} to {place[1]} are claimed; the file has {n_data} bytes of data: it is cut short")
    need = math.prod(shape) * (WIDTH.get(dtype.lower()) or OTHER_WIDTHS[dtype])
    if place[1] - place[0] != need:
        fail(f"has {place[1] - place[0]} bytes; its shape in {dtype} needs {need}")
    if dtype.lower() in WIDTH:
        model.add(name, shape, dtype.lower())
    else:
        model.n_not_trained += 1


def read_safetensors(model, paths):
    for path in paths:
        header, n_data = read_header(path)
        for name, entry in header.items():
            take_tensor(model, path, name, entry, n_data)
    order = sorted(range(len(model.tensors)), key=lambda i: by_use(model.tensors[i]))
    model.tensors, model.sizes = ([of[i] for i in order] for of in (model.tensors, model.sizes))


def read_index(model, index):
    for name, file in index["weight_map"].items():
        if not isinstance(file, str) or not file or "/" in file:
            model.fail(f'weight_map["{name[:100]}"] is no name of a file beside it')
    files = dict.fromkeys(index["weight_map"].values())
    read_safetensors(model, [os.path.join(os.path.dirname(model.path), file) for file in files])


# ---- families: the names and shapes that Hugging Face's implementations give -----------------------------------------


class Config:
    """The members of a config.json, and the tensors that are made from them."""

    def __init__(self, model, members):
        self.model, self.members, self.prefix = model, members, ""

    def size(self, *keys, default=None, most=1 << 30):
        """The first of the members that is there, a whole number from 1 to `most`."""
        value = next((self.members[key] for key in keys if key in self.members), None)
        if value is None and default is not None:
            return default
        if not is_count(value) or not 1 <= value <= most:
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            what = "missing" if keys[0] not in self.members else "out of range" if is_whole else "no whole number"
            self.model.fail(f'"{keys[0]}" is {what}; need a whole number from 1 to {most}')
        return value

    def layers(self, *keys):
        self.model.n_layers = self.size(*keys, most=10000)
        return self.model.n_layers

    def is_set(self, key, default):
        value = self.members.get(key)
        return value if isinstance(value, bool) else default

    def add(self, name, *shape):
        self.model.add(self.prefix + name, shape)

    def linear(self, name, rows, columns, has_bias=True):
        self.add(f"{name}.weight", rows, columns)
        if has_bias:
            self.add(f"{name}.bias", rows)

    def norm(self, name, n):
        self.add(f"{name}.weight", n)
        self.add(f"{name}.bias", n)

    def each(self, n, prefix):
        """Numbers of layers, whose names begin so."""
        for i in range(n):
            self.prefix = prefix.format(i)
            yield i
        self.prefix = ""


def llama(c, kind):
    """Llama, Mistral, Qwen2, Qwen3: SwiGLU, RMS norms, grouped queries."""
    h, f, layers = c.size("hidden_size"), c.size("intermediate_size"), c.layers("num_hidden_layers")
    heads, vocab = c.size("num_attention_heads"), c.size("vocab_size")
    kv_heads, head = c.size("num_key_value_heads", default=heads), c.size("head_dim", default=h // heads, most=1 << 16)
    has_bias, has_mlp_bias = c.is_set("attention_bias", kind == "qwen2"), c.is_set("mlp_bias", False)
    c.add("model.embed_tokens.weight", vocab, h)
    for _ in c.each(layers, "model.layers.{}."):
        c.linear("self_attn.q_proj", heads * head, h, has_bias)
        c.linear("self_attn.k_proj", kv_heads * head, h, has_bias)
        c.linear("self_attn.v_proj", kv_heads * head, h, has_bias)
        c.linear("self_attn.o_proj", h, heads * head, has_bias and kind != "qwen2")
        for norm in ("q_norm", "k_norm") if kind == "qwen3" else ():
            c.add(f"self_attn.{norm}.weight", head)
        c.linear("mlp.gate_proj", f, h, has_mlp_bias)
        c.linear("mlp.up_proj", f, h, has_mlp_bias)
        c.linear("mlp.down_proj", h, f, has_mlp_bias)
        c.add("input_layernorm.weight", h)
        c.add("post_attention_layernorm.weight", h)
    c.add("model.norm.weight", h)
    if not c.is_set("tie_word_embeddings", False):
        c.add("lm_head.weight", vocab, h)
    return h


def gpt2(c, _):
    """Its linear layers are Conv1D, [in, out]."""
    def conv1d(name, n_in, n_out):
        c.model.add(f"{c.prefix}{name}.weight", (n_in, n_out), are_rows=1)
        c.add(f"{name}.bias", n_out)
    h, layers, vocab = c.size("n_embd", "hidden_size"), c.layers("n_layer", "num_hidden_layers"), c.size("vocab_size")
    f = c.size("n_inner", default=4 * h)
    c.add("transformer.wte.weight", vocab, h)
    c.add("transformer.wpe.weight", c.size("n_positions", "n_ctx"), h)
    for _ in c.each(layers, "transformer.h.{}."):
        c.norm("ln_1", h)
        conv1d("attn.c_attn", h, 3 * h)
        conv1d("attn.c_proj", h, h)
        c.norm("ln_2", h)
        conv1d("mlp.c_fc", h, f)
        conv1d("mlp.c_proj", f, h)
    c.norm("transformer.ln_f", h)
    if not c.is_set("tie_word_embeddings", True):
        c.add("lm_head.weight", vocab, h)
    return h


def bert(c, _):
    """BERT, RoBERTa: the encoder with its pooler, without a head."""
    h, f, layers = c.size("hidden_size"), c.size("intermediate_size"), c.layers("num_hidden_layers")
    c.add("embeddings.word_embeddings.weight", c.size("vocab_size"), h)
    c.add("embeddings.position_embeddings.weight", c.size("max_position_embeddings"), h)
    c.add("embeddings.token_type_embeddings.weight", c.size("type_vocab_size", default=2), h)
    c.norm("embeddings.LayerNorm", h)
    for _ in c.each(layers, "encoder.layer.{}."):
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            c.linear(name, h, h)
        c.norm("attention.output.LayerNorm", h)
        c.linear("intermediate.dense", f, h)
        c.linear("output.dense", h, f)
        c.norm("output.LayerNorm", h)
    c.linear("pooler.dense", h, h)
    return h


FAMILIES = {"llama": llama, "mistral": llama, "qwen2": llama, "qwen3": llama, "gpt2": gpt2, "bert": bert, "roberta": bert,
            "xlm-roberta": bert}


def read_config(model, config):
    kind = config["model_type"]
    for member in ("dtype", "torch_dtype"):  # what transformers writes, and what it wrote
        said = config.get(member)
        if model.dtype or not isinstance(said, str):
            continue
        model.dtype, model.dtype_said = NAMES.get(said.lower()), member
        if not model.dtype:
            model.fail(f'"{member}" is "{said[:60]}": say --dtype bf16, f16 or f32')
    if kind not in FAMILIES:
        model.fail(f'model_type "{kind[:60]}" is not known; known: {", ".join(FAMILIES)}. Give the model\'s safetensors file, '
                   "or a list of shapes")
    model.hidden = FAMILIES[kind](Config(model, config), kind)


# ---- which reader ---------------------------------------------------------------------------------------------------


def read_text(model, path):
    data = read_file(path, MOST_JSON_NBYTES if path.endswith(".json") else MOST_LIST_NBYTES)
    if b"\0" in data:
        model.fail("has bytes of value 0: this is no text")
    if not data.lstrip().startswith(b"{"):
        return read_list(model, data.decode(errors="replace"))
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        model.fail(error)
    if isinstance(found.get("weight_map"), dict):
        return read_index(model, found)
    if isinstance(found.get("model_type"), str):
        return read_config(model, found)
    return model.fail('has neither "weight_map" (an index of safetensors files) nor "model_type" (a config.json): give one of '
                      "those")


def read_model(path, dtype):
    model = Model(path, dtype)
    head = read_file(path, 9, is_cut=True)  # of a safetensors file: the length of its header, and '{'
    if path.endswith(".safetensors") or (head[6:8] == b"\0\0" and head[8:] == b"{"):
        read_safetensors(model, [path])
    else:
        read_text(model, path)
    if not model.n_elems:
        model.fail("has no tensor to train")
    return model
