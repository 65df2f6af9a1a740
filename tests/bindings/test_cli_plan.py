# SPDX-License-Identifier: Apache-2.0
"""zf plan: the models that it reads, files that were made to break it, and the times, beside a simulator that was written from the
design. Its script runs in this process, beside the program ZF, which it asks. (Its bytes are zf.plan/0's: tests/plugin/test_dry_run.c.)"""
import contextlib
import functools
import io
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ZF, ROOT = os.environ["ZF"], Path(__file__).parents[2]
os.environ["ZF_COMMAND"] = ZF
sys.path[:0] = [str(Path(ZF).parent), str(ROOT / "conformance/bench")]
import machines  # noqa: E402
import plan as command  # noqa: E402
import plan_text  # noqa: E402

SMALL = dict(model_type="llama", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100)
LLAMA = dict(model_type="llama", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000)
PUBLISHED = {  # parameters of models
    6738415616: LLAMA,
    13015864320: dict(LLAMA, hidden_size=5120, intermediate_size=13824, num_hidden_layers=40, num_attention_heads=40),
    7241732096: dict(LLAMA, model_type="mistral", intermediate_size=14336, num_key_value_heads=8),
    1543714304: dict(model_type="qwen2", hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                     num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
}
LIST = "embedding 1500 x 200 f32\n2 * layer 700x300 bf16\n\nconv 64x32x9 f32   # three axes\nbias 777 f32\n"
MACHINE = {"memory": {"available_nbytes": 1 << 40}, "replay": {"windows": [{"update_interval": 1, "elems_per_s": 1.7857142857e9},
                                                                           {"update_interval": 4, "elems_per_s": 5.88235294e9}]}}
OWN = {**MACHINE, "own": {"ns_per_elem": 2}}


class PlanTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.llama = self.write("llama.json", LLAMA)

    def write(self, name, content):
        """The path of a file of these bytes, this text, or JSON."""
        path = self.root / name
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def tensors(self, name, *tensors, length=None, n_data=None):
        """A safetensors file of (name, shape, type, bytes of an element). length: what it says of its header; n_data: bytes that are there."""
        header, end = {}, 0
        for own, shape, dtype, width in tensors:
            n = width
            for size in shape:
                n *= size
            header[own] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + n]}
            end += n
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        return self.write(name, struct.pack("<Q", len(text) if length is None else length) + text + bytes(end if n_data is None else n_data))

    def plan(self, *words):
        """Exit status, stdout and stderr."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline=""), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "argv", ["plan.py", *map(str, words)]):
            try:
                status = command.main()
            except SystemExit as end:
                status = end.code
        out.flush()
        return status, out.buffer.getvalue().decode(), err.getvalue()

    def says(self, status, text, *words):
        found, out, err = self.plan(*words)
        self.assertEqual(found, status, (words, err))
        self.assertRegex(out + err, re.compile(text, re.MULTILINE))

    def figures(self, *words):
        status, out, err = self.plan(*words, "--json")
        self.assertEqual(status, 0, err)
        return json.loads(out)


class Models(PlanTest):
    def test_the_data_type_which_one_and_who_says_so(self):
        new = self.write("new.json", {**SMALL, "dtype": "float32"})
        self.says(0, r': f32 \(its "dtype"\)', new)
        self.says(0, r': f16 \(its "torch_dtype"\)', self.write("old.json", {**SMALL, "torch_dtype": "float16"}))
        self.says(0, r": bf16 \(--dtype\)", new, "--dtype", "bf16")
        self.says(0, r": bf16 \(assumed where it says none\)", self.write("silent.json", SMALL))
        self.says(0, r": bf16 and f32 \(of its tensors\)", self.write("run.txt", LIST))
        self.says(1, '"dtype" is "float8": say --dtype', self.write("odd.json", {**SMALL, "dtype": "float8"}))

    def test_on_a_terminal_it_says_that_it_works(self):
        words = [ZF, "plan", self.write("run.txt", LIST)]
        said = f"zf: planning {words[-1]}"
        shown = subprocess.run(["script", "-qec", " ".join(f"'{word}'" for word in words), "/dev/null"], stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, check=True)
        self.assertIn(said, shown.stdout)
        piped = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        self.assertNotIn(said, piped.stdout + piped.stderr)

    def test_parameters_of_published_models(self):
        for n, config in PUBLISHED.items():
            self.assertEqual(self.figures(self.write("config.json", config))["n_elems"], n)

    def test_safetensors(self):
        good = self.tensors("good.safetensors", ("layers.10.w", [64, 32], "BF16", 2), ("layers.2.w", [64, 32], "BF16", 2), ("steps", [3], "I64", 8))
        self.tensors("second.safetensors", ("head", [10, 32], "F32", 4))
        self.says(0, "2 tensors, 4096 parameters, .*; 1 that are not trained left out", good)
        index = self.write("model.safetensors.index.json", {"metadata": {}, "weight_map": {
            "layers.10.w": "good.safetensors", "layers.2.w": "good.safetensors", "head": "second.safetensors"}})
        self.assertEqual(self.figures(index)["n_elems"], 4416)
        self.assertEqual(self.figures(index, "--dtype", "f32")["weights_nbytes"], 17664)

    def test_matrices_that_lie_in_one_tensor(self):
        """`8|` of them are as eight tensors, and 8x is one matrix of eight rows, which is said; kernels of convolutions are no such thing."""
        words = ("--ranks", 64, "--stage", 1)
        stacked, apart = (self.write(name, text) for name, text in (("stacked.txt", "4 * e 8|256x512\nconv 64x3x7x7"),
                                                                    ("apart.txt", "32 * e 256x512\nconv 64x3x7x7")))
        one, other = (self.figures(path, *words) for path in (stacked, apart))
        self.assertEqual(one["n_owned_elems"], other["n_owned_elems"])
        self.assertLess(abs(one["host_state_nbytes"] / other["host_state_nbytes"] - 1), 0.01)
        self.assertNotRegex(self.plan(stacked, *words)[1], "one matrix each")
        rows = self.write("rows.txt", "4 * e 8x256x512")
        self.says(0, r"^ *4 tensors such as 8x256x512 are one matrix each; .*: 8\|256x512$", rows)
        self.says(1, "is no tensor; need .*MATRICES", self.write("bar.txt", "e 8|"))

    def test_a_folder_as_the_hub_has_it(self):
        """Its config.json where the model is known; else the headers of its files, of experts as many as it says for each token."""
        experts = [(f"layers.{i}.experts.{k}.w", [64, 32], "BF16", 2) for i in range(2) for k in range(8)]
        self.tensors("model.safetensors", ("embed.w", [100, 32], "BF16", 2), *experts)
        self.tensors("consolidated.safetensors", ("the same again", [999, 32], "BF16", 2))
        self.write("config.json", {"model_type": "some_moe", "num_experts_per_tok": 2, "hidden_size": 32, "num_hidden_layers": 2, "dtype": "float32"})
        plan = self.figures(self.root)
        self.assertEqual((plan["n_elems"], plan["n_active_elems"], plan["weights_nbytes"]), (3200 + 16 * 2048, 3200 + 4 * 2048, 4 * 35968))
        self.says(0, r"35968 parameters, .* f32 \(its \"dtype\"\)\n *each token passes 11392 of them: 2 experts of a layer", self.root)
        (self.root / "config.json").unlink()
        self.assertEqual(self.figures(self.root)["n_active_elems"], 35968)
        self.says(0, "each token counts as passing all experts", self.root)
        self.write("config.json", SMALL)
        self.assertEqual(self.figures(self.root)["n_elems"], self.figures(self.write("small.json", SMALL))["n_elems"])

    def test_experts_spread_over_ranks(self):
        """A rank holds two of eight experts, in one tensor or one each; two of eight ranks have the same, and cut them into halves."""
        experts, rest = 4 * 8 * 512 * 1024, 4 * 1024 * 2048
        for line in ("4 * mlp.experts 8|512x1024\n", "".join(f"4 * experts.{k}.w 512x1024\n" for k in range(8))):
            model = self.write("moe.txt", line + "4 * attention 1024x2048\n")
            for stage, owners in ((0, 1), (1, 8)):
                at = [self.figures(model, "--ranks", 8, "--stage", stage, *more, "--gpu", 80) for more in ((), ("--expert-parallel", 4))]
                cards = [plan["taken"]["card"] for plan in at]
                self.assertEqual([card["weights"] for card in cards], [2 * (experts + rest), 2 * (experts // 4 + rest)])
                self.assertEqual([plan["n_owned_elems"] for plan in at],
                                 [(experts + rest) // owners, experts // 8 + rest // 8 if stage else experts // 4 + rest])
                self.assertEqual([plan["checkpoint_nbytes"] for plan in at], [12 * (experts + rest)] * 2)
                self.assertLess(abs(at[1]["host_state_nbytes"] / (12 * at[1]["n_owned_elems"]) - 1), 0.01)
                self.assertEqual(*(plan["n_active_elems"] for plan in at))
                self.assertGreater(at[0]["staging_nbytes"], at[1]["staging_nbytes"])
        self.says(0, r"a rank has 2 of 8 experts of a layer, 12.58 M parameters; 2 ranks have the same\. Tokens", model, "--ranks", 8, "--expert-parallel", 4)
        # each has its own: of these nothing travels
        alone, all_of_them = (self.figures(model, "--ranks", 8, "--stage", 1, "--latency", 0, "--expert-parallel", n) for n in (8, 1))
        self.assertAlmostEqual(alone["configured"]["reduce_s"] / all_of_them["configured"]["reduce_s"], rest / (experts + rest), 3)
        for n, message in ((3, "need a divisor of --ranks 8"), (16, "need a divisor of --ranks 8")):
            self.says(2, message, model, "--ranks", 8, "--expert-parallel", n)
        self.says(1, "--expert-parallel 16: 8 experts of a layer .* cannot be divided so", model, "--ranks", 16, "--expert-parallel", 16)
        self.says(1, "--expert-parallel 2: 1 experts", self.llama, "--ranks", 2, "--expert-parallel", 2)

    def test_experts_of_one_tensor_are_a_matrix_each(self):
        words = ("--ranks", 64, "--stage", 1)
        named, said = (self.figures(self.write(name, f"4 * {line}\n"), *words) for name, line in (("named.txt", "mlp.experts 8x256x512"), ("said.txt", "e 8|256x512")))
        self.assertEqual(*({key: plan[key] for key in ("n_owned_elems", "host_nbytes", "device_nbytes")} for plan in (named, said)))
        self.says(0, r"4 tensors such as 8\|256x512 are a matrix for each expert: in PyTorch n_batch_axes=", self.root / "named.txt", *words)

    def test_parameters_in_words(self):
        for n, said in ((70553706496, "70.55 G"), (124439808, "124.4 M"), (999999, "999999"), (7, "7")):
            self.assertEqual(plan_text.count(n), said)

    def test_what_is_refused_says_what_and_where(self):
        one = ("w", [64, 32], "BF16", 2)
        self.says(1, "it is cut short", self.tensors("cut.safetensors", one, n_data=100))
        self.says(1, "cut short or no safetensors file", self.tensors("long.safetensors", one, length=1 << 40))
        for header, n_data, said in (({"w": {"dtype": "F32", "shape": [-4, 4], "data_offsets": [0, 64]}}, 64,
                                      "tensor w: dimension 0 of its shape is not a whole number from 0"), ({}, 0, "no tensor to train"),
                                     ({"\x1b[31mw": {"dtype": "F32", "shape": [4], "data_offsets": [0, 99]}}, 16, r"x1b\[31mw")):
            text = json.dumps(header).encode()
            self.says(1, said, self.write("odd.safetensors", struct.pack("<Q", len(text)) + text + bytes(n_data)))
        self.says(1, "begins with 8 bytes of length", self.write("short.safetensors", b"abc"))
        for name, content, said in (
                ("deep.json", "[" * 1000000, "is no tensor; need"), ("deeper.json", '{"a":' * 1000000, "depth"),
                ("neither.json", {"a": 1}, "give one of those"), ("path.json", {"weight_map": {"w": "../../etc/passwd"}}, "no name of a file beside it"),
                ("gone.json", {"weight_map": {"w": "none.safetensors"}}, "none.safetensors: cannot open: No such file"),
                ("family.json", {"model_type": "mamba"}, 'model_type "mamba" takes transformers, .*: install it .* folder with'),
                ("vast.json", dict(LLAMA, hidden_size=1 << 30, intermediate_size=1 << 30, num_hidden_layers=1000), r"more than 2\^41 elements"),
                ("huge.txt", "w 99999999999999999999 x 2\n", "line 1"), ("many.txt", "99999999999 * w 1x1\n", "more than 1000000 tensors"),
                ("words.txt", "hello world\n", 'line 1: "hello world" is no tensor; need'), ("negative.txt", "w -4x4\n", "is no tensor; need"),
                ("empty.txt", "# nothing\n", "no tensor to train"), ("zeros.txt", b"w 4x4\n\0\n", "bytes of value 0")):
            self.says(1, said, self.write(name, content))
        for key, value, said in (("tie_word_embeddings", "true", '"true"; need true or false'), ("num_hidden_layers", 1001, "out of range"),
                                 ("architectures", "LlamaForCausalLM", "need|must be a list")):
            self.says(1, f'"{key}" .*{said}', self.write("bad.json", dict(LLAMA, **{key: value})))
        self.says(1, 'model_type "llama" takes transformers', self.write("head.json", dict(LLAMA, architectures=["LlamaForSequenceClassification"])))
        for key, value, said in (("hidden_size", -1, "out of range"), ("hidden_size", 1 << 62, "out of range"),
                                 ("num_hidden_layers", 0, "out of range"), ("vocab_size", "many", "no whole number")):
            self.says(1, f'"{key}" is {said}', self.write("bad.json", dict(LLAMA, **{key: value})))
        os.mkfifo(self.root / "fifo.safetensors")
        self.says(1, "not a regular file", self.root / "fifo.safetensors")
        (self.root / "none").mkdir()
        self.says(1, "has neither a config.json with", self.root / "none")
        self.says(1, "No such file", self.root / "none.json")

    def test_called_wrongly(self):
        for words, said in (("--tokens -1", "--tokens -1: need a number from 1"), ("--link nan", "--link nan: need a number"),
                            ("--ranks 1e9", "--ranks 1e9: need a whole number from 1 to 65536"),
                            ("--micro-batches 2.5", "need a whole number from 1 to 4096"), ("--local-ranks 1.9", "need a whole number"), ("--no-such-option", "usage")):
            self.says(2, said, self.llama, *words.split())
        self.says(2, "usage")
        self.says(1, "nearest: update_interval", self.llama, "--set", "zenflow.update_intervall=3")
        self.says(1, "stage", self.llama, "--stage", 7)
        self.says(1, "has no speed of replays: make it with", self.llama, "--machine", self.write("neither.json", {"a": 1}))


def rows(plan):
    return {(row["update_interval"], row["publish_lag"]): row for row in plan["choices"]}


class Times(PlanTest):
    def at(self, *words):
        return self.figures(self.llama, "--tokens", 16384, *words)

    def test_of_ranks(self):
        of_stage_1 = (self.llama, "--ranks", 64, "--stage", 1)
        self.says(0, "^work  *ranks keep [0-9.]* to [0-9.]* M parameters; at a step, windows of", self.llama, "--ranks", 3, "--stage", 1)
        self.says(0, "ranks keep .* close on a rank$", self.llama, "--ranks", 8, "--stage", 2)  # all of them are asked
        self.says(0, r"ranks keep .* \(of [0-9]* ranks\)$", self.llama, "--ranks", 256, "--stage", 2)
        # each step waits for the rank that closes most at it; what their exchanges keep is no rest
        self.says(0, r"copies of what ranks exchange [0-9.]*, the rest [01]\.[0-9]* GiB$", *of_stage_1)
        # values that wait to be fetched, 2 bytes of each parameter: on the device only where it exchanges them itself
        on = {transport: self.figures(*of_stage_1, "--set", f"shard.transport={transport}") for transport in ("host", "nccl")}
        waiting = on["nccl"]["staging_nbytes"] - on["host"]["staging_nbytes"]
        self.assertTrue(0 <= on["nccl"]["weights_nbytes"] - waiting < on["nccl"]["weights_nbytes"] / 20, waiting)
        self.assertGreater(on["host"]["host_exchange_nbytes"] - on["nccl"]["host_exchange_nbytes"], waiting)
        # which decides whether a machine has room: need, have and what to do
        status, text, _ = self.plan(*of_stage_1, "--gpu", 100, "--ram", 80)
        need, have, copies = map(float, re.search("host memory: need ([0-9.]*) GiB, have ([0-9.]*); of it ([0-9.]*) are copies of what ranks exchange, "
                                                  r"and \[shard\] transport = nccl needs none\n", text).groups())
        self.assertEqual(status, 1)
        self.assertTrue(have < need < have + copies and abs(copies - on["host"]["host_exchange_nbytes"] / 2**30) < 0.01, text)
        self.says(0, "^taken: ", *of_stage_1, "--gpu", 100, "--ram", 80, "--set", "shard.transport=nccl")
        uneven = self.figures(*of_stage_1, "--set", "zenflow.update_interval=2", "--host", 1, "--link", 1e5, "--net", 1e5, "--latency", 0.001)
        own, most = uneven["configured"], uneven["closes_of_ranks"][1] / uneven["n_owned_elems"]
        self.assertEqual((own["update_interval"], own["publish_lag"]), (2, 0))
        self.assertTrue(0.5 <= most < 0.51, most)
        # under backward replays begin, at 0.88 of their speed, and forward begins before they end. replay_s: the mean over the steps
        waits, slowest = own["step_s"] - own["compute_s"], own["replay_s"] * 2 * most - own["compute_s"]
        self.assertTrue(0.95 * slowest < waits < 1.05 * slowest, (waits, slowest, own))
        self.assertGreater(uneven["host_exchange_nbytes"], 0.5 * uneven["host_nbytes"])

    def test_what_ranks_wait_for(self):
        """Of a network where all values take half a forward pass: each layer's, one lag later all of them, and at stage 3 parameters."""
        n, fast = 32 * 8192**2, ("--ranks", 8, "--host", 1e5, "--link", 1e5, "--latency", 0, "--set", "zenflow.topk_ratio=0")
        layers = self.write("layers.txt", "32 * layer 8192x8192 bf16\n")
        compute = rows(self.figures(layers, *fast))[1, 0]["compute_s"]
        whole = compute / 6  # of 2 bytes of each parameter
        net = 2 * n * 7 / 8 / whole / 1e9
        fetched, late, whole_state, parts = (self.figures(layers, *fast, "--net", net, *words) for words in (
            ("--stage", 1), ("--stage", 1, "--no-fetch"), ("--stage", 1, "--set", "device.state_mib=1024"), ("--stage", 3)))
        waits = {(name, lag): rows(plan)[1, lag]["step_s"] - compute for name, plan in (
            ("fetched", fetched), ("late", late), ("residents", whole_state), ("parts", parts)) for lag in (0, 1)}
        for S in (1, 2):
            self.assertLess(abs(rows(fetched)[S, 0]["gather_s"] / (whole / S) - 1), 0.01)
        bucket = whole / 32
        self.assertTrue(0 < waits["fetched", 0] < 2.1 * bucket, waits)
        self.assertLess(abs(waits["late", 0] - waits["late", 1] - whole), 0.01 * whole, waits)
        self.assertTrue(0 < waits["fetched", 1] < 1.1 * bucket, waits)
        # a third of the state on the device: what other ranks have of it is shown in the step
        share = 1024 * 2**20 / (12 * n / 8)
        self.assertLess(abs(waits["residents", 1] - waits["fetched", 1] - share * whole), 0.01 * whole, waits)
        # all but the last two buckets of a pass come for the next one again
        self.assertTrue(1.8 * whole < rows(parts)[1, 0]["gather_s"] < 2 * whole, rows(parts)[1, 0])
        self.assertTrue(waits["fetched", 1] < waits["parts", 0] < 2.1 * bucket, waits)

    def test_the_busiest_rank(self):
        """Three rows on 16 ranks: whoever keeps one of them decides what is needed and how long it takes."""
        big = (self.write("big.txt", "small 16x100\nbig 3x5000000\n"), "--ranks", 16, "--local-ranks", 1, "--stage", 1)
        plan = self.figures(*big)
        self.assertEqual(plan["owned_of_ranks"], [100, 5000100])
        self.assertEqual(plan["n_owned_elems"], 5000100)
        self.assertGreater(plan["host_state_nbytes"], 12 * 5000100)
        self.assertLess(abs(rows(plan)[1, 1]["replay_s"] / (5000100 * 28 / 50e9) - 1), 1e-3)
        self.assertEqual(command.asked_ranks(8, 0), list(range(8)))
        asked = command.asked_ranks(4096, 28)
        self.assertEqual((asked[:14], asked[-1], len(set(asked))), (list(range(14)), 4095, 28))

    def test_in_two_levels(self):
        """By the volumes of plugin/ranks/nodes.h, of machines with 8 ranks: 2 bytes of a gradient, and as many of a value, at S = 2 half."""
        words = ("--ranks", 64, "--stage", 1, "--latency", 0, "--net", 2, "--set", "zenflow.topk_ratio=0")
        one = rows(self.at(*words))[2, 1]
        two = rows(self.at(*words, "--inside", 80, "--set", "shard.transport=host_two_level"))[2, 1]
        whole = 2 * 6738415616
        for name, nbytes in (("reduce_s", whole), ("gather_s", whole / 2)):
            self.assertLess(abs(one[name] / (nbytes * 63 / 64 / 2e9) - 1), 1e-3, (name, one))
            self.assertLess(abs(two[name] / (nbytes * 7 / 8 / 80e9 + nbytes * 7 / 8 / 8 / 2e9) - 1), 1e-3, (name, two))
        self.assertLess(two["step_s"], one["step_s"])
        for transport, n in (("nccl", 1), ("nccl_two_level", 2)):  # collectives of a bucket
            slow = ("--ranks", 512, "--stage", 1, "--inside", 1e6, "--net", 1e6, "--latency", 1e4, "--set", f"shard.transport={transport}")
            late, given = self.at(*slow), self.at(*slow, "--set", "shard.bucket_bytes=1000000000")
            self.assertLess(abs(rows(late)[1, 0]["gather_s"] / (0.01 * n * late["buckets"]) - 1), 0.01)
            self.assertLess(given["buckets"], late["buckets"])
            self.assertLess(abs(rows(given)[1, 0]["gather_s"] / (0.01 * n * given["buckets"]) - 1), 0.01)
        one_machine = [rows(self.at("--ranks", 8, "--set", f"shard.transport={transport}"))[2, 1] for transport in ("host", "host_two_level")]
        self.assertEqual(*one_machine)
        self.says(1, "12 ranks are no machines of 8", self.llama, "--ranks", 12, "--set", "shard.transport=host_two_level")

    def test_the_plugins_own_passes(self):
        """By --own, or as the machine's file says where the CPU is the device."""
        fast, own_file = functools.partial(self.at, "--host", 1e5, "--link", 1e5), self.write("own.json", OWN)
        given, read = fast("--own", 2), fast("--machine", own_file, "--device", "cpu")
        own = 2e-9 * given["n_elems"]
        for plan, seconds in ((given, own), (read, own), (fast("--machine", own_file), 0), (fast("--machine", own_file, "--device", "cpu", "--own", 0), 0)):
            self.assertTrue(all(abs(row["own_s"] - seconds) <= 1e-5 * own for row in plan["choices"]), plan["choices"])
        for row, without in zip(given["choices"], fast()["choices"]):  # nothing hides them, and they are no waiting
            self.assertLess(abs(row["step_s"] - without["step_s"] - own), 0.01 * own)
        self.assertEqual((given["recommended"]["update_interval"], given["recommended"]["publish_lag"]), (1, 0))
        self.says(0, "2 ns per parameter and step of the plugin's own passes, as measured in", self.llama, "--machine", own_file, "--device", "cpu")
        self.says(0, r"^the plugin's own +13[0-9]*\.[0-9] \|[ =-]*\|$", self.llama, "--own", 2)
        self.says(0, r"lag 0, waiting 0\.[0-9] \(0\.[0-9] %\)$", self.llama, "--tokens", 16384, "--host", 1e5, "--link", 1e5, "--own", 2)

    def test_the_timeline(self):
        """To the letter as docs/tools.md has it, of the command that stands there; what ranks exchange is drawn, too."""
        page = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
        words, = re.findall(r"^    \$ zf plan mistral-7b/ (.*)$", page, re.MULTILINE)
        text = self.plan(self.write("config.json", PUBLISHED[7241732096]), *words.split())[1]
        drawn = text[text.index("\nstep "):text.index("\n\n  S  lag")].replace("\n", "\n    ")
        self.assertIn(f"{drawn}\n\n", page)
        self.says(0, r"^sums over ranks +[0-9.]+ \|.*\|\n(.*\n)*values to ranks +[0-9.]+ \|.*\|$", self.llama, "--ranks", 8, "--stage", 1)

    def test_figures_of_documents(self):
        """The row of docs/tools.md's table that reads most; README.md's bytes of a parameter on the host, of the plugin's own way and where torch carries."""
        self.assertIn(f"\n{machines.row([ZF], machines.MACHINES[4])}\n", (ROOT / "docs/tools.md").read_text(encoding="utf-8"))
        found = {}
        for moments in ("float32", "int8"):
            plan = self.figures(self.llama, "--no-fetch", "--set", f"host.moments_dtype={moments}", "--set", "host.early_mib=0")
            found[moments] = (plan["host_nbytes"] + plan["device_nbytes"]) / plan["n_elems"]
            carried = self.figures(self.llama, "--gpu", 1000, "--ram", 1000, "--set", f"host.moments_dtype={moments}")["taken"]
            self.assertTrue(carried["carries"] and abs(carried["host_nbytes"] / plan["n_elems"] - found[moments]) < 0.1)
        own, own_8 = (f"{found[moments]:.1f}" for moments in found)
        text = f"| **{own}**, also carried by torch; in 8 bits {own_8} |"
        self.assertIn(text, (ROOT / "README.md").read_text(encoding="utf-8"))

    def test_the_times(self):
        slow, late, machine = self.at(), self.at("--no-fetch"), self.write("machine.json", MACHINE)
        fast, measured = self.at("--host", 1e5, "--link", 1e5), self.at("--machine", machine)
        shared, spread = self.at("--ranks", 8, "--local-ranks", 8), self.at("--ranks", 8, "--local-ranks", 1)
        short = self.figures(self.llama, "--tokens", 3400)
        state = f"{short['exact_state_mib']:.0f}"
        resident = self.figures(self.llama, "--tokens", 3400, "--set", f"device.state_mib={state}")
        self.says(0, rf"^# mode = exact waits no longer than that from .device. state_mib = {state} on: [0-9.]* % of the state", self.llama,
                  "--tokens", 3400)
        n, tokens = slow["n_elems"], 16384
        compute = tokens * (6 * n + 12 * 32 * 4096 * 2048) / (312e12 * 0.4)
        for plan in (slow, fast, measured):
            for row in plan["choices"]:
                self.assertLess(abs(row["compute_s"] / compute - 1), 1e-3)
                self.assertGreaterEqual(row["step_s"], row["compute_s"] * 0.9999)
        # nothing is waited for on a machine without limits, and the least late setting is chosen there
        self.assertTrue(all(row["step_s"] < 1.01 * row["compute_s"] for row in fast["choices"]), fast["choices"])
        self.assertEqual((fast["recommended"]["update_interval"], fast["recommended"]["publish_lag"]), (1, 0))
        # S = 1: a replay moves 28 bytes per parameter at 50 GB/s; the link 2 bytes at 25 GB/s, down at every step, up 1 / S
        for S in (1, 2, 4):
            row = rows(slow)[S, 1]
            for name, seconds in (("replay_s", n * (26 + 2 * S) / S / 50e9), ("down_s", 2 * n / 25e9), ("up_s", 2 * n / S / 25e9)):
                self.assertLess(abs(row[name] / seconds - 1), 1e-3, (name, row))
        # a replay that is longer than the step decides how long a step with lag 1 takes: not below the replay, nor twice it
        row = rows(slow)[1, 1]
        self.assertTrue(row["replay_s"] * 0.99 < row["step_s"] or row["replay_s"] < compute)
        for lag in (0, 1):
            steps = [rows(slow)[S, lag]["step_s"] for S in (1, 2, 3, 4, 8)]
            self.assertEqual(steps, sorted(steps, reverse=True))
        self.assertTrue(all(rows(slow)[S, 0]["step_s"] >= rows(slow)[S, 1]["step_s"] * 0.9999 for S in (1, 2, 3, 4, 8)))
        # a trainer that does not fetch waits with lag 0, the default all the same, for what no early replay hides under backward
        self.assertEqual((slow["configured"]["publish_lag"], late["configured"]["publish_lag"]), (0, 0))
        for S in (1, 2, 4):
            row, whole = rows(late)[S, 0], compute + n * (26 + 2 * S) / S / 50e9
            self.assertTrue(whole - compute * 2 / 3 < row["step_s"] < whole - 0.8 * min(compute * 2 / 3, (whole - compute) / 2), (row, whole))
        # part of the state on the device: none of its replay is waited for, and the setting that is named for exact does that
        self.assertTrue(short["exact_state_mib"] > 0 == fast["exact_state_mib"])
        exact = rows(resident)[1, 0]
        self.assertTrue(exact["step_s"] <= exact["compute_s"] / 0.969 < rows(short)[1, 0]["step_s"], (exact, short))
        # lag 1 rather than a window of eight steps, though that would do with lag 0
        row = rows(short)[8, 0]
        self.assertTrue(row["step_s"] < 1.03 * row["compute_s"] and short["recommended"]["publish_lag"] == 1, short["recommended"])
        self.assertTrue(all(plan["recommended"]["update_interval"] <= 4 for plan in (slow, late, shared, spread)))
        # the ranks of a machine share its workers
        self.assertLess(abs(rows(shared)[2, 1]["replay_s"] / rows(spread)[2, 1]["replay_s"] - 8), 1e-3)
        # all of the gradients are summed: 2 x 2 bytes per parameter, 7/8 of them, at 25 GB/s
        self.assertLess(abs(rows(spread)[2, 1]["reduce_s"] / (4 * n * 7 / 8 / 25e9) - 1), 0.01)
        # what a machine measured is what is used: 50 GB/s in both windows
        self.assertLess(abs(rows(measured)[4, 0]["replay_s"] / rows(slow)[4, 0]["replay_s"] - 1), 1e-3)

    def test_what_a_machine_measured(self):
        link = self.write("link.json", {**OWN, "cuda": {"devices": [{"link": {"up_gb_per_s": 26, "down_gb_per_s": 25, "both_gb_per_s": 41}}]}})
        self.says(0, r"  20\.5 GB/s between host and device, each way, per rank, as measured in", self.llama, "--machine", link)
        self.says(0, "  30 GB/s between host and device, each way, per rank$", self.llama, "--machine", link, "--link", 30)
        one = self.write("one.json", {**OWN, "cuda": {"devices": [{"is_integrated": True}]}})
        self.says(0, "its memory is the host's: to offload saves nothing there", self.llama, "--machine", one)
        self.says(0, "replays, as measured in [^,]*$", self.llama, "--machine", self.write("machine.json", MACHINE))
        windows = [{**row, "least_elems_per_s": 2e9, "most_elems_per_s": 6e9} for row in MACHINE["replay"]["windows"]]
        self.says(0, "replays, as measured in .*which differed by a factor of 3.0", self.llama, "--machine",
                  self.write("varies.json", {**MACHINE, "replay": {"windows": windows}}))
        self.says(0, " 2 ns .*which differed by a factor of 2.0", self.llama, "--device", "cpu", "--machine",
                  self.write("varies.json", {**OWN, "own": {"ns_per_elem": 2, "least_ns_per_elem": 1.5, "most_ns_per_elem": 3}}))
        small = self.write("small.json", {**MACHINE, "memory": {"available_nbytes": 1 << 30}})
        self.says(1, "^nothing fits; .*: host memory: need [0-9.]* GiB, have 1.00$", self.llama, "--machine", small)

    def test_room_for_early_replays_is_what_is_left(self):
        """As bind_params halves it; without any the setting still fits, and its times are those of one that replays nothing early."""
        def at(gib, *words):
            machine = {**MACHINE, "memory": {"available_nbytes": gib * 2**30}}
            return self.at("--machine", self.write("machine.json", machine), "--host", 50, *words)
        whole, half, none = at(1000), at(230), at(115)
        self.assertLess(abs(whole["host_early_nbytes"] / (14 * whole["n_elems"]) - 1), 1e-2)  # state and value
        self.assertEqual(none["host_early_nbytes"], 0)
        self.assertLess(abs(half["host_early_nbytes"] / whole["host_early_nbytes"] - 0.5), 1e-3)
        for plan in (half, none):
            self.assertTrue(plan["does_fit"] and 0.99 < plan["choices"][0]["host_nbytes"] / plan["host_nbytes"] < 1.01)
            self.assertEqual(whole["host_nbytes"] - plan["host_nbytes"], whole["host_early_nbytes"] - plan["host_early_nbytes"])
        steps = [rows(plan)[1, 0]["step_s"] for plan in (whole, half, none)]
        self.assertEqual(steps, sorted(steps))
        self.assertLess(steps[0], 0.95 * steps[2])
        limit = "host.memory_limit_mib={}".format
        self.says(1, r"host memory 9\.77 GiB for a rank \(\[host\] memory_limit_mib\)$", self.llama, "--set", limit(10000))
        early = [self.figures(self.llama, "--set", limit(mib))["host_early_nbytes"] for mib in (1000000, 140000)]
        self.assertTrue(0 < early[1] < 0.8 * early[0], early)
        self.assertTrue(at(1, "--set", limit(140000))["does_fit"])  # the host's word counts, as in bind_params

    def test_the_recommended_configuration_is_one(self):
        text = self.plan(self.llama, "--ranks", 8)[1]
        path = self.write("recommended.ini", text[text.index("# the least late"):])
        self.assertRegex(text, "(?m)^publish_lag = ")
        subprocess.run([ZF, "config", path], check=True, stdout=subprocess.DEVNULL)
        self.says(0, "with state on the host", self.llama, "--set", "device.state_mib=all")

    def test_exact_early_replays_and_state_on_the_device(self):
        """Beside a simulation that was written from the design, not from the program."""
        even, found = self.write("even.txt", f"{LAYERS} * layer 1024x1024 bf16\n"), []  # 12 MiB of state each
        for host, tokens in ((20, 8192), (20, 24000), (40, 8192), (40, 24000)):
            for S, mib in ((1, 0), (1, 228), (2, 0), (2, 228), (2, 396)):
                plan = self.figures(even, "--tokens", tokens, "--host", host, "--link", 1e5, "--own", 0, "--set",
                                    f"zenflow.update_interval={S}", "--set", f"device.state_mib={mib}")
                own, replay = plan["configured"], plan["n_elems"] * (26 + 2 * S) / S / (host * 1e9)
                found.append(own["compute_s"] / own["step_s"])
                want = simulated_speed(own["compute_s"] / 3, own["compute_s"] * 2 / 3, replay, mib / 12)
                self.assertEqual((own["update_interval"], own["publish_lag"]), (S, 0))
                self.assertLess(abs(found[-1] / want - 1), 1e-4, (host, tokens, S, mib))
        self.assertTrue(min(found) < 0.3 and sum(0.3 < x < 0.995 for x in found) >= 8, found)


ELEMS = 32000 * 4096 + 40 * 8192 * 20480


class Fits(PlanTest):
    """--gpu and --ram, in GiB: 1 of the card's is CUDA's, 4 of the host's are the system's."""

    def setUp(self):
        super().setUp()
        self.model = self.write("model.txt", "embed 32000x4096 bf16\n40 * layer 8192x20480 bf16\n")

    def ask(self, gpu, ram, *words, status=0):
        found, out, err = self.plan(self.model, "--gpu", gpu, "--ram", ram, "--activations", 2, *words, "--json")
        self.assertEqual(found, status, err)
        return json.loads(out)

    def test_the_card_holds_weights_gradients_activations_and_the_plugin(self):
        """Of each way what it has, in bytes; taken is the first that fits."""
        n, outside, layer = 2 * ELEMS, 2 * 32000 * 4096, 2 * 8192 * 20480
        plan = self.ask(1000, 1000)
        ways = {way["way"]: way for way in plan["ways"] if way["moments_dtype"] == "float32"}
        for name, weights, gradients in (("kept", n, n), ("released", n, 2 * layer), ("streamed", 2 * layer + outside, layer + outside)):
            self.assertEqual(ways[name]["card"], {"weights": weights, "gradients": gradients, "activations": 2 << 30, "plugin": 0})
            self.assertEqual(ways[name]["carries"], name != "streamed")
            self.assertEqual(ways[name]["card_nbytes"], sum(ways[name]["card"].values()))
        self.assertEqual(plan["taken"]["way"], "kept")
        self.assertLess(abs(ways["kept"]["host_nbytes"] / ELEMS - 14.05), 0.05)  # what carries 2, state 12
        # of several micro-batches the plugin adds up what it is given: where torch carries in host memory, else on the card, where it takes more than gradients
        parts = next(way for way in self.ask(1000, 1000, "--micro-batches", 4)["ways"] if way["way"] == "released")
        self.assertEqual((parts["card"], parts["host_nbytes"] - ways["released"]["host_nbytes"]), (ways["released"]["card"], plan["staging_nbytes"] + plan["sums_nbytes"]))
        own = ("--set", "device.state_mib=1")
        parts = next(way for way in self.ask(1000, 1000, "--micro-batches", 4, *own)["ways"] if way["way"] == "released")["card"]
        plan = self.ask(1000, 1000, *own)
        self.assertEqual((parts["gradients"], parts["plugin"]), (2 * 2 * 8192 * 20480, sum(plan[of] for of in ("device_nbytes", "staging_nbytes", "sums_nbytes"))))
        self.assertGreater(plan["sums_nbytes"], 4 * ELEMS - 1)
        for gpu, has_room in ((80, True), (35, False)):
            said = self.plan(self.model, "--gpu", gpu, "--ram", 1000, "--activations", 2, *own)[1]
            self.assertEqual("where a step's gradient comes in parts, which the card has not: accumulate micro-batches in the trainer\n" in said, not has_room)
        self.assertLess(abs(ways["streamed"]["host_nbytes"] / ELEMS - 16.0), 0.1)  # weights and gradients 2, state 12
        for name in ("kept", "released", "streamed"):
            need = ways[name]["card_nbytes"] / 2**30 + 1
            self.assertEqual(self.ask(math.ceil(need * 100) / 100, 1000)["taken"]["way"], name)
            less = self.ask(math.floor(need * 100) / 100, 1000, status=name == "streamed")
            self.assertFalse({way["way"]: way for way in less["ways"]}[name]["does_fit"])

    def test_moments_and_what_nothing_fits_lacks(self):
        """Smaller ones are tried where larger do not fit, in this order; before that, of the plugin's own way, a trainer that does not fetch."""
        saved = {"float32": 0, "bfloat16_stochastic": 4, "int8_bfloat16": 8 - 3.03125, "int8": 8 - 2.0625}  # bytes of a parameter
        no_more = ("--set", "device.state_mib=1")  # what is said is not changed
        need = {name: self.ask(1000, 1000, "--no-fetch", *no_more, "--set", f"host.moments_dtype={name}")["ways"][0]["host_nbytes"] / 2**30 + 4 for name in saved}
        for name, nbytes in saved.items():
            self.assertLess(abs(need["float32"] - need[name] - nbytes * ELEMS / 2**30), 0.1, name)
            found = self.ask(1000, need[name] + 0.01, "--no-fetch", *no_more)["taken"]
            self.assertEqual((found["way"], found["moments_dtype"]), ("kept", name))
        found = self.ask(1000, need["float32"] + 0.01, *no_more)["taken"]
        self.assertEqual((found["way"], found["moments_dtype"], found["fetches"]), ("kept", "float32", False))
        least = need["int8"]
        words = (self.model, "--gpu", 1000, "--activations", 2, "--ram", least - 1, "--no-fetch", *no_more)
        status, text, _ = self.plan(*words)
        self.assertEqual(status, 1)
        need, have = map(float, re.search("^nothing fits; .*: host memory: need ([0-9.]*) GiB, have ([0-9.]*)$", text, re.MULTILINE).groups())
        self.assertTrue(abs(have - least + 5) < 0.02 and abs(need - have - 1) < 0.02, (need, have, least))
        self.assertNotRegex(text, "state_mib|^.zenflow")  # no advice
        self.assertEqual(self.figures(*words[:-2], "--set", "host.moments_dtype=float32", "--ram", 1000)["taken"]["moments_dtype"], "float32")

    def test_muon_of_the_matrices_of_hidden_layers(self):
        """One moment of theirs, in 2 bytes with bfloat16_stochastic; what a step carries is what test_torch_muon.py counts of these shapes."""
        shapes = self.write("muon.txt", "embed 200x96 f32\nup 256x128 f32\ndown 128x256 f32\n")
        self.assertEqual(self.figures(shapes, "--rule", "muon")["carried"], {"down_nbytes": 470016, "up_nbytes": 470016, "copies": 10})
        large = self.write("large.txt", "embed 2000x512 bf16\n8 * up 1024x512 bf16\nexperts 4|1024x512\nnorm 512\nlm_head 2000x512\n")
        n, n_rest = 12 * 1024 * 512, 4000 * 512 + 512
        for moments, nbytes in (("float32", 8 * n + 12 * n_rest), ("bfloat16_stochastic", 6 * n + 8 * n_rest), ("int8", 8 * n + 6.07 * n_rest)):
            found = self.figures(large, "--rule", "muon", "--device", "cpu", "--set", f"host.moments_dtype={moments}")
            self.assertLess(abs(found["device_nbytes"] - nbytes), 0.02 * nbytes, moments)
        self.says(0, r"muon +6.291 M parameters.*\nlink +0.027 GiB down and 0.027 up at a step, in 40 copies", large, "--rule", "muon")
        self.says(1, 'mode = exact', large, "--rule", "muon", "--set", "zenflow.mode=windows")

    def test_state_goes_to_a_card_that_has_room_for_it(self):
        """As much as fits, so that the host has room for the rest; what is printed is a configuration, and its bytes fit."""
        short = self.ask(100, 80)
        self.assertTrue(short["taken"]["moments_dtype"] == "float32" and short["taken"]["state_mib"] > 20000, short["taken"])
        state = ("--set", f"device.state_mib={short['taken']['state_mib']}")
        again = self.ask(100, 80, *state)
        self.assertTrue(again["does_fit"])
        self.assertEqual([again[key] for key in ("host_least_nbytes", "device_nbytes")], [short[key] for key in ("host_least_nbytes", "device_nbytes")])
        self.says(0, f"^state_mib = {short['taken']['state_mib']}$", self.model, "--gpu", 100, "--ram", 80, "--activations", 2)

    def test_state_that_hides_waits_is_advised_where_the_card_has_room(self):
        words = ("--tokens", 3400)
        need = self.ask(1000, 1000, *words)
        mib, kept = need["exact_state_mib"], need["ways"][0]["card_nbytes"] / 2**30 + 1
        self.assertGreater(mib, 20000)
        self.assertEqual([self.ask(kept + mib / 1024 + more, 1000, *words)["exact_state_mib"] for more in (1, -1)], [mib, 0])
        self.says(0, "no --gpu says whether the card has room", self.model, *words)

    def test_each_setting_is_checked_for_fit(self):
        """Windows have selected channels on the card, exact has none: where just exact fits it is what is advised, though it waits."""
        need = self.ask(1000, 1000)["ways"][0]["card_nbytes"] / 2**30 + 1.01
        plan = self.ask(need, 1000, "--tokens", 3400, "--link", 10)  # over which nothing is streamed sooner
        self.assertEqual({setting for setting, row in rows(plan).items() if row["does_fit"]}, {(1, 0)})
        self.assertEqual((plan["recommended"]["update_interval"], plan["recommended"]["publish_lag"]), (1, 0))
        self.assertEqual(rows(plan)[1, 0]["host_nbytes"], plan["host_nbytes"])  # it is mode = exact itself
        wide = self.ask(need + 20, 1000, "--tokens", 3400, "--link", 10)
        self.assertTrue(all(row["does_fit"] for row in wide["choices"]) and wide["recommended"]["update_interval"] > 1)

    def test_activations_are_made_to_fit(self):
        """In micro-batches of a sequence at least, then again in backward; as it is asked for they stay."""
        words = (self.model, "--ram", 1000, "--tokens", 8192)
        card = self.figures(*words, "--gpu", 1000)["ways"][0]["card"]
        for share, want in ((1, (False, 1)), (1 / 2, (False, 2)), (1 / 5, (True, 2))):
            gpu = 1.01 + (sum(card.values()) - card["activations"] * (1 - share)) / 2**30
            way = self.figures(*words, "--gpu", gpu)["ways"][0]
            self.assertEqual((way["way"], way["recompute"], way["micro_batches"]), ("kept", *want))
            if want == (False, 2):
                self.says(0, "float32 moments, weights and gradients on the card, torch carries, 2 micro-batches$", *words, "--gpu", gpu)
        plan = self.plan(self.model, "--gpu", 46, "--ram", 1000, "--micro-batches", 2, "--recompute", "--json")[1]
        self.assertEqual({(way["recompute"], way["micro_batches"]) for way in json.loads(plan)["ways"]}, {(True, 2)})

    def test_speed_is_of_a_step_without_offload(self):
        plan = self.ask(1000, 1000, "--tflops", 10)
        for way in plan["ways"]:
            self.assertTrue(way["step_s"] >= plan["plain_s"] * 0.999 and way["step_s"] < 1.2 * plan["plain_s"], way)
        slow = {way["way"]: way["step_s"] for way in self.ask(1000, 1000, "--link", 1)["ways"][:3]}
        self.assertGreater(slow["streamed"], 2 * 2 * ELEMS / 1e9)  # weights come twice

    def test_the_largest_of_some_models(self):
        status, out, err = self.plan("--gpu", 24, "--ram", 64)
        self.assertEqual(status, 0, err)
        name, n = re.search(r"^(\S+) +([0-9.]+) G[^!]*$(?=\nthe largest that fits: \1)", out, re.MULTILINE).groups()
        self.assertTrue(float(n) >= 7 and "\nmoments_dtype = int8" in out and "torch carries, " in out, (name, out))
        self.says(1, "^nothing fits$", "--gpu", 2, "--ram", 8)
        self.says(2, "MODEL is missing; without one --gpu GIB and --ram GIB say", "--gpu", 24)

    def test_experts_that_a_token_does_not_pass_are_no_work(self):
        for k in (2, 8):
            self.write("config.json", {"model_type": "some_moe", "num_experts_per_tok": k})
            self.tensors("model.safetensors", *((f"layers.0.experts.{i}.w", [640, 320], "BF16", 2) for i in range(8)))
            plan = self.figures(self.root, "--tokens", 10000, "--sequence", 1)
            want = 6 * 10000 * 640 * 320 * k / (312e12 * 0.4)
            self.assertLess(abs(plan["configured"]["compute_s"] / want - 1), 1e-3)

    def test_the_cards_memory_as_a_machine_measured_it(self):
        machine = {**MACHINE, "cuda": {"devices": [{"memory_nbytes": 24 << 30, "link": {"both_gb_per_s": 41}}]}}
        self.says(0, r"^machine    card 23\.00 GiB beside CUDA's own, host memory 1024\.00 GiB", self.model, "--machine", self.write("m.json", machine))


LAYERS, STEPS, EARLY = 64, 40, 0.88


def simulated_speed(forward, backward, replay, n_resident):
    """Compute by time of a step: a worker that replays one layer after the other, and a device that waits for it."""
    host = [0.0 if i < n_resident else replay / LAYERS for i in range(LAYERS)]
    ready, now, worker, ends = [0.0] * LAYERS, 0.0, 0.0, []
    for _ in range(STEPS):
        for i in range(LAYERS):  # a layer begins once its values are in place
            now = max(now, ready[i]) + forward / LAYERS
        arrived = [now + backward * (LAYERS - i) / LAYERS for i in range(LAYERS)]
        now += backward
        done, left = {}, [i for i in range(LAYERS) if host[i]]
        while worker < now and left:  # the norm is not known: the newest first, out of place
            there = [i for i in left if arrived[i] <= worker]
            if not there:
                worker = min(arrived[i] for i in left)
                continue
            left.remove(there[0])
            worker += host[there[0]] / EARLY
            done[there[0]] = worker
            while sum(host[i] for i in done) > 2 / 3 * sum(host) * (1 + 1e-9):
                del done[max(done)]  # given up: what is needed last
        for i in range(LAYERS):  # the norm is known: what is needed first
            if host[i] and i not in done:
                worker = done[i] = max(worker, now) + host[i]
            ready[i] = max(done.get(i, now), now)
        ends.append(now)
    return (forward + backward) * (STEPS - 10) / (ends[-1] - ends[9])
