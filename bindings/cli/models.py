# SPDX-License-Identifier: Apache-2.0
"""The parameters of a model: names, shapes and data types, from a file that anybody may have made. No weight is read.

A folder as the Hub has it, a safetensors file (its header), a *.index.json beside several, a config.json, or a list of shapes; the content
decides. Llama and its like are counted from their config.json here, every other model by transformers, without memory. The list has one tensor or several alike per line, "#" begins a comment:

    embedding 32000x4096
    32 * mlp.up 11008x4096 bf16
    4096
    experts 8|4096x14336           eight matrices in one tensor
"""
import collections
import functools
import glob
import json
import math
import os
import re
import struct

from terminal import Failed, read_file

MOST_ELEMS = 1 << 41  # of a model: its plan stays within a few GB of memory
MOST_PARAMS, MOST_NDIM, MOST_NAME, MOST_LAYERS = 1000000, 8, 199, 1000
MOST_HEADER_NBYTES = 100000000  # safetensors' own limit
MOST_JSON_NBYTES, MOST_LIST_NBYTES = 1 << 26, 1 << 22
WIDTH = {"bf16": 2, "f16": 2, "f32": 4}
NAMES = {"bfloat16": "bf16", "float16": "f16", "fp16": "f16", "half": "f16", "float32": "f32", "fp32": "f32",
         "float": "f32", **{name: name for name in WIDTH}}
OTHER_WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
                "F8_E4M3": 1, "F8_E5M2": 1}
EXPERT = re.compile(r"(?:^|\.)experts(?:\.(\d+))?(?:\.|$)")  # of which a token passes some; none that is shared
LANGUAGE_MODEL = re.compile("LM|Generation|PreTraining")  # in the name of a class
EMBEDDING, HEAD = re.compile("embed|wte|wpe|shared.weight"), re.compile("lm_head|classifier|pooler")


class Model:
    """tensors: (name, type, whether rows are channels, axes that number matrices, shape), in the order of a forward pass."""

    def __init__(self, path, dtype):
        self.path, self.dtype = path, dtype  # dtype: of all of them, or None: what the file says, else bf16
        self.dtype_said = None  # the member of a config.json that says it
        self.tensors, self.sizes = [], []
        self.n_elems = self.nbytes = self.n_assumed = self.n_not_trained = 0
        self.n_layers = self.hidden = 0
        self.attended = 0  # layers x width, where a config.json says them
        self.experts_per_token, self.has_head = 0, True  # 0: nobody says, so all of them

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
        if len(shape) == 3 and EXPERT.search(name):
            n_batch_axes = 1
        self.tensors.append((name, dtype, are_rows, n_batch_axes, list(shape)))
        self.sizes.append(n_elems)
        self.n_elems += n_elems
        self.nbytes += n_elems * WIDTH[dtype]

    @functools.cached_property
    def n_experts(self):
        """The number of experts of a layer; 1: it has none."""
        found = [(EXPERT.search(name), shape) for name, *_, shape in self.tensors]
        return max((shape[0] if len(shape) == 3 else int(of[1] or 0) + 1 for of, shape in found if of), default=1)

    @functools.cached_property
    def expert_share(self):
        """The share of a layer's experts that each token passes."""
        return min(self.experts_per_token / self.n_experts, 1) if self.experts_per_token else 1

    def held(self, n_kinds):
        """The part of a rank where each layer's experts are spread over n_kinds ranks: the first of them; all ranks have as many."""
        if n_kinds == 1:
            return self
        if self.n_experts % n_kinds:
            self.fail(f"--expert-parallel {n_kinds}: {self.n_experts} experts of a layer ({EXPERT.pattern!r} in a tensor's name) cannot be divided so")
        out, n = Model(self.path, None), self.n_experts // n_kinds
        for name, dtype, are_rows, n_batch, shape in self.tensors:
            found = EXPERT.search(name)
            is_stacked = found and (n_batch or not found[1]) and shape[0] == self.n_experts
            if not found or is_stacked or int(found[1] or 0) < n:
                out.add(name, [n, *shape[1:]] if is_stacked else shape, dtype, are_rows, n_batch)
        return out

    def of_token(self, of_tensor):
        """Sum of of_tensor(name, axes that number matrices, shape) over what each token passes."""
        return sum(of_tensor(name, n_batch, shape) * (self.expert_share if EXPERT.search(name) else 1)
                   for name, _, _, n_batch, shape in self.tensors)

    @functools.cached_property
    def n_active(self):
        return round(self.of_token(lambda name, n_batch, shape: math.prod(shape)))

    @functools.cached_property
    def n_passed(self):
        """Elements that go into matrices and come out of them, for each token; those of embeddings and the head are not among them."""
        return round(self.of_token(lambda name, n_batch, shape: 0 if len(shape) < n_batch + 2 or EMBEDDING.search(name) or HEAD.search(name)
                                   else math.prod(shape[:n_batch]) * (shape[-2] + shape[-1])))

    def layer_nbytes(self):
        """Bytes of a layer's weights, and of what is outside of layers."""
        outside = sum(n * WIDTH[tensor[1]] for tensor, n in zip(self.tensors, self.sizes) if EMBEDDING.search(tensor[0]) or HEAD.search(tensor[0]))
        return (self.nbytes - outside) / max(self.n_layers, 1), outside

    def largest_nbytes(self):
        return max(n * WIDTH[tensor[1]] for tensor, n in zip(self.tensors, self.sizes))

    @functools.cached_property
    def n_logits(self):
        """For each token; 0: it has no head of a language model."""
        return max((shape[0] for name, *_, shape in self.tensors if EMBEDDING.search(name) and len(shape) > 1), default=0) * self.has_head


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
        model.n_layers = max(model.n_layers, count)
        for i in range(count):
            whole = f"{name}.{number}.{i}" if count > 1 else found[2] or f"tensor.{number}"
            model.add(whole, shape, found[5] and dtype, n_batch_axes=len(batch))


# ---- safetensors ----------------------------------------------------------------------------------------------------


def by_use(tensor):
    """Embeddings, layers, heads; names with numbers by value: layers.2 before layers.10."""
    name = tensor[0]
    place = 0 if EMBEDDING.search(name) else 2 if HEAD.search(name) else 1
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


def files_of_index(model, folder, index):
    for name, file in index["weight_map"].items():
        if not isinstance(file, str) or not file or "/" in file:
            model.fail(f'weight_map["{name[:100]}"] is no name of a file beside it')
    return [os.path.join(folder, file) for file in dict.fromkeys(index["weight_map"].values())]


# ---- config.json ----------------------------------------------------------------------------------------------------


class Config:
    """The members of a config.json; those of its text model where it has several."""

    def __init__(self, model, members):
        text = members.get("text_config")
        self.model, self.whole = model, members
        self.members = {**members, **text} if isinstance(text, dict) else members
        named = members.get("architectures") or [""]
        if not isinstance(named, list) or not isinstance(named[0], str):
            model.fail('"architectures" must be a list of names of classes')
        self.architecture = named[0]  # or ""

    def find(self, *keys):
        """The first of the members that is there."""
        return next((self.members[key] for key in keys if self.members.get(key) is not None), None)

    def count(self, *keys):
        """A whole number, or 0 where nothing says it."""
        value = self.find(*keys)
        return value if is_count(value) else 0

    def size(self, key, default=None, most=1 << 30):
        """A whole number from 1 to `most`."""
        value = self.find(key) if key in self.members else default
        if not is_count(value) or not 1 <= value <= most:
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            what = "missing" if value is None else "out of range" if is_whole else "no whole number"
            self.model.fail(f'"{key}" is {what}; need a whole number from 1 to {most}')
        return value

    def is_set(self, key, default=False):
        value = self.members.get(key, default)
        if not isinstance(value, bool):
            self.model.fail(f'"{key}" is {json.dumps(value)[:60]}; need true or false')
        return value


def llama(c, kind):
    """Llama, Mistral, Qwen2, Qwen3: SwiGLU, RMS norms, grouped queries; names and shapes are those of Hugging Face."""
    add, h, f = c.model.add, c.size("hidden_size"), c.size("intermediate_size")
    heads, vocab = c.size("num_attention_heads"), c.size("vocab_size")
    kv_heads, head = c.size("num_key_value_heads", default=heads), c.size("head_dim", default=max(h // heads, 1))
    has_bias, has_mlp_bias, is_tied = c.is_set("attention_bias", kind == "qwen2"), c.is_set("mlp_bias"), c.is_set("tie_word_embeddings")
    add("model.embed_tokens.weight", (vocab, h))
    for i in range(c.size("num_hidden_layers", most=MOST_LAYERS)):
        at = f"model.layers.{i}."
        for name, rows, columns, is_biased in (
                ("self_attn.q_proj", heads * head, h, has_bias), ("self_attn.k_proj", kv_heads * head, h, has_bias),
                ("self_attn.v_proj", kv_heads * head, h, has_bias), ("self_attn.o_proj", h, heads * head, has_bias and kind != "qwen2"),
                ("mlp.gate_proj", f, h, has_mlp_bias), ("mlp.up_proj", f, h, has_mlp_bias), ("mlp.down_proj", h, f, has_mlp_bias)):
            add(f"{at}{name}.weight", (rows, columns))
            if is_biased:
                add(f"{at}{name}.bias", (rows,))
        for norm, n in (("q_norm", head), ("k_norm", head)) if kind == "qwen3" else ():
            add(f"{at}self_attn.{norm}.weight", (n,))
        add(f"{at}input_layernorm.weight", (h,))
        add(f"{at}post_attention_layernorm.weight", (h,))
    add("model.norm.weight", (h,))
    if not is_tied:
        add("lm_head.weight", (vocab, h))


def shape(kind, hidden, intermediate, layers, heads, kv_heads, vocab, **more):
    return {"model_type": kind, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab, "tie_word_embeddings": False, **more}


SHAPES = {  # the largest first
    "Llama-3-70B": shape("llama", 8192, 28672, 80, 64, 8, 128256),
    "Qwen2.5-32B": shape("qwen2", 5120, 27648, 64, 40, 8, 152064),
    "Qwen2.5-14B": shape("qwen2", 5120, 13824, 48, 40, 8, 152064),
    "Mistral-Nemo-12B": shape("mistral", 5120, 14336, 40, 32, 8, 131072, head_dim=128),
    "Llama-3-8B": shape("llama", 4096, 14336, 32, 32, 8, 128256),
    "Mistral-7B": shape("mistral", 4096, 14336, 32, 32, 8, 32000),
    "Qwen2.5-3B": shape("qwen2", 2048, 11008, 36, 16, 2, 151936, tie_word_embeddings=True),
    "Qwen2.5-1.5B": shape("qwen2", 1536, 8960, 28, 12, 2, 151936, tie_word_embeddings=True),
    "Qwen2.5-0.5B": shape("qwen2", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
}
LLAMAS = ("llama", "mistral", "qwen2", "qwen3")


def class_of(transformers, c, config):
    """The class that is trained: the one that it names, else a language model that generates, else the model without a head."""
    if c.architecture:
        found = getattr(transformers, c.architecture, None)
        if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
            c.model.fail(f'transformers {transformers.__version__} has no class "{c.architecture[:80]}", which "architectures" names')
        return found

    def of(task):
        return getattr(transformers, f"MODEL_{task}MAPPING").get(type(config), None)
    return of("FOR_SEQ_TO_SEQ_CAUSAL_LM_") or (not of("FOR_MASKED_LM_") and of("FOR_CAUSAL_LM_")) or of("")


def build(c, kind):
    """Makes the model by transformers, without memory, and takes its parameters. False: it is not installed, or does not know it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import torch
        import transformers
    except ImportError:
        return False
    if kind not in transformers.CONFIG_MAPPING:
        return False
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(c.whole)
        kind_of_model = class_of(transformers, c, config)
        with torch.device("meta"):
            made = kind_of_model(config)
    except Failed:
        raise
    except Exception as error:  # whatever its code finds wrong
        c.model.fail(f"transformers {transformers.__version__} cannot make it: {type(error).__name__}: {error}")
    c.model.has_head = bool(LANGUAGE_MODEL.search(kind_of_model.__name__))
    rows = {id(module.weight) for module in made.modules() if type(module).__name__ == "Conv1D"}  # [in, out]
    for name, param in made.named_parameters():
        if param.requires_grad:
            c.model.add(name, tuple(param.shape), are_rows=int(id(param) in rows))
        else:
            c.model.n_not_trained += 1
    return True


def take_figures(c):
    """Facts that no shape tells: the data type, layers and width, experts per token."""
    model, members = c.model, c.members
    for member in ("dtype", "torch_dtype"):  # the name of today, and the former one
        said = members.get(member)
        if model.dtype or not isinstance(said, str):
            continue
        model.dtype, model.dtype_said = NAMES.get(said.lower()), member
        if not model.dtype:
            model.fail(f'"{member}" is "{said[:60]}": say --dtype bf16, f16 or f32')
    for key, value in members.items():
        if "layer" in key and is_count(value) and value > MOST_LAYERS:
            model.fail(f'"{key}" is out of range; need a whole number from 1 to {MOST_LAYERS}')
    model.n_layers = c.count("num_hidden_layers", "n_layer", "num_layers", "n_layers") or c.count("encoder_layers") + c.count("decoder_layers")
    model.hidden = c.count("hidden_size", "n_embd", "d_model", "dim")
    model.attended = model.n_layers * model.hidden
    model.experts_per_token = c.count("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
    model.has_head = not c.architecture or bool(LANGUAGE_MODEL.search(c.architecture))


def read_config(model, members, folder=""):
    """folder: where nothing else knows the model, the safetensors files in it count."""
    c, kind = Config(model, members), members["model_type"]
    take_figures(c)
    if kind in LLAMAS and (not c.architecture or c.architecture.endswith("ForCausalLM")):
        return llama(c, kind)
    files = [] if build(c, kind) else files_in(model, folder) if folder else []
    read_safetensors(model, files)
    if not model.tensors:
        model.fail(f'model_type "{kind[:60]}" takes transformers, in a version that knows it: install it for the Python of zf (ZF_PYTHON). '
                   f"Without it {', '.join(LLAMAS)} are known, as causal language models. Or give the folder with the model's safetensors "
                   "files, or a list of shapes")
    return None


# ---- which reader ---------------------------------------------------------------------------------------------------


def read_json(model, path, data):
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Failed(f"{path}: {error}") from None


def files_in(model, folder):
    """The safetensors files that a folder's index names, else the usual one, else all."""
    index, one = os.path.join(folder, "model.safetensors.index.json"), os.path.join(folder, "model.safetensors")
    if os.path.isfile(index):
        found = read_json(model, index, read_file(index, MOST_JSON_NBYTES))
        if isinstance(found, dict) and isinstance(found.get("weight_map"), dict):
            return files_of_index(model, folder, found)
    return [one] if os.path.isfile(one) else sorted(glob.glob(os.path.join(glob.escape(folder), "*.safetensors")))


def read_folder(model, folder):
    config = os.path.join(folder, "config.json")
    if os.path.isfile(config):
        found = read_json(model, config, read_file(config, MOST_JSON_NBYTES))
        if isinstance(found, dict) and isinstance(found.get("model_type"), str):
            return read_config(model, found, folder)
    files = files_in(model, folder)
    return read_safetensors(model, files) if files else model.fail('has neither a config.json with "model_type" nor a safetensors file')


def read_text(model, path):
    data = read_file(path, MOST_JSON_NBYTES if path.endswith(".json") else MOST_LIST_NBYTES)
    if b"\0" in data:
        model.fail("has bytes of value 0: this is no text")
    if not data.lstrip().startswith(b"{"):
        return read_list(model, data.decode(errors="replace"))
    found = read_json(model, path, data)
    if isinstance(found.get("weight_map"), dict):
        return read_safetensors(model, files_of_index(model, os.path.dirname(path), found))
    if isinstance(found.get("model_type"), str):
        return read_config(model, found)
    return model.fail('has neither "weight_map" (an index of safetensors files) nor "model_type" (a config.json): give one of '
                      "those")


def read_model(path, dtype):
    model = Model(path, dtype)
    head = b"" if os.path.isdir(path) else read_file(path, 9, is_cut=True)  # of a safetensors file: the length of its header, and '{'
    if os.path.isdir(path):
        read_folder(model, path)
    elif path.endswith(".safetensors") or (head[6:8] == b"\0\0" and head[8:] == b"{"):
        read_safetensors(model, [path])
    else:
        read_text(model, path)
    if not model.n_elems:
        model.fail("has no tensor to train")
    model.n_layers = model.n_layers or 1 + max((int(n) for name, *_ in model.tensors for n in re.findall(r"\.(\d{1,4})\.", name)[:1]), default=0)
    sides = collections.Counter(side for *_, n_batch, shape in model.tensors if len(shape) >= n_batch + 2 for side in shape[-2:])
    model.hidden = model.hidden or max(sides, key=sides.get, default=0)
    return model


def read_shape(name, dtype):
    model = Model(name, dtype)
    read_config(model, SHAPES[name])
    return model
