# SPDX-License-Identifier: Apache-2.0
"""zf plan of models that transformers makes: published numbers of parameters, of all and of those that a token passes; the readers that
need none of it find the same tensors."""
import json
import math
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ZF = os.environ["ZF"]
sys.path.insert(0, str(Path(ZF).parent))
import models  # noqa: E402
from terminal import Failed  # noqa: E402
from test_cli_plan import PUBLISHED, SMALL  # noqa: E402

BERT = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12)
MADE = {  # parameters of models: by transformers alone
    124439808: dict(model_type="gpt2", n_embd=768, n_layer=12, n_positions=1024, vocab_size=50257),
    109482240: dict(BERT, model_type="bert", max_position_embeddings=512, vocab_size=30522),
    124645632: dict(BERT, model_type="roberta", max_position_embeddings=514, type_vocab_size=1, vocab_size=50265),
}
EXPERTS = {  # as transformers' defaults have them: parameters, and those of a token (deepseek-ai and Mistral say 37 and 12.9 G)
    "mixtral": (46702792704, 12.88e9), "deepseek_v3": (671026404352, 37.55e9), "gpt_oss": (116829156672, 5.71e9),
}
OTHERS = ("qwen3_moe", "qwen3_next", "gemma3_text", "gemma3", "glm4", "glm4_moe", "modernbert", "phi3", "olmo2", "smollm3", "t5", "whisper", "vit",
          "mamba", "bart", "deberta-v2")


class Made(unittest.TestCase):
    def read(self, members):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(members, file)
            file.flush()
            return models.read_model(file.name, None)

    def test_published_models(self):
        for n, config in MADE.items():
            self.assertEqual(self.read(config).n_elems, n)

    def test_what_is_counted_without_transformers_is_what_it_makes(self):
        for n, config in PUBLISHED.items():
            counted = self.read(config)
            with mock.patch.object(models, "LLAMAS", ()):
                made = self.read(config)
            self.assertEqual(n, made.n_elems)
            self.assertEqual(sorted(map(str, made.tensors)), sorted(map(str, counted.tensors)))
            self.assertEqual((made.attended, made.n_passed, made.n_logits), (counted.attended, counted.n_passed, counted.n_logits))

    def test_experts(self):
        for kind, (n, n_active) in EXPERTS.items():
            made = self.read({"model_type": kind, "num_experts_per_tok": {"mixtral": 2, "deepseek_v3": 8, "gpt_oss": 4}[kind]})
            self.assertEqual(made.n_elems, n)
            self.assertLess(abs(made.n_active / n_active - 1), 0.001)
            stacked = [tensor for tensor in made.tensors if len(tensor[4]) == 3]
            self.assertTrue(stacked and all(tensor[3] == 1 for tensor in stacked))

    def test_most_kinds(self):
        for kind in OTHERS:
            made = self.read({"model_type": kind})
            self.assertTrue(made.n_elems > 1e7 and made.n_active <= made.n_elems and made.n_passed > 0, kind)

    def test_architectures(self):
        """A head counts where it is named."""
        bert, llama = dict(MADE[109482240]), dict(SMALL, num_labels=3)
        pooler = 768 * 769
        found = {name: self.read(dict(bert, architectures=[name])) for name in ("BertModel", "BertForMaskedLM")}
        self.assertEqual(found["BertModel"].n_elems, 109482240)
        self.assertEqual(found["BertForMaskedLM"].n_elems, 109482240 - pooler + pooler + 2 * 768 + 30522)  # its own dense layer, norm and bias
        self.assertEqual([found[name].n_logits for name in found], [0, 30522])
        whole, classes, none = (self.read(dict(llama, architectures=[f"Llama{end}"])).n_elems for end in ("ForCausalLM", "ForSequenceClassification", "Model"))
        self.assertEqual((whole - none, classes - none), (64 * 100, 64 * 3))
        for name, said in (("LlamaForNothing", 'has no class "LlamaForNothing"'), ("Path", 'has no class "Path"')):
            with self.assertRaisesRegex(Failed, said):
                self.read(dict(llama, architectures=[name]))

    def test_a_configuration_that_makes_no_model(self):
        with self.assertRaisesRegex(Failed, "cannot make it: "):
            self.read(dict(BERT, model_type="bert", hidden_size=7, vocab_size=10))

    def test_rows_of_conv1d_are_channels(self):
        gpt2 = self.read(MADE[124439808])
        self.assertEqual({name.split(".")[-2] for name, _, are_rows, *_ in gpt2.tensors if are_rows}, {"c_attn", "c_proj", "c_fc"})
        self.assertEqual(sum(math.prod(shape) for *_, shape in gpt2.tensors), 124439808)


def kept_by_backward(transformers, torch, model, vocabulary, n_tokens):
    """Bytes for each token that autograd keeps, without parameters; the logits' part of them alone is known: 4 bytes each."""
    parameters, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor
    tokens = torch.randint(0, vocabulary, (1, n_tokens))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=tokens, labels=tokens)
    return sum(nbytes for nbytes, _ in kept.values()) / n_tokens - 4 * vocabulary


class Activations(unittest.TestCase):
    def test_what_backward_keeps_is_about_what_is_counted(self):
        import torch
        import transformers
        import plan
        sizes = dict(hidden_size=256, intermediate_size=896, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1, vocab_size=500)
        for kind, more, least, most in (("llama", {}, 0.9, 1.1), ("gemma3_text", {"head_dim": 64}, 1.0, 1.9), ("qwen3_moe", {
                "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}, 0.9, 1.5)):
            config = transformers.CONFIG_MAPPING[kind](**sizes, **more)
            model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
            read = Made.read(self, {**config.to_dict(), "architectures": [type(model).__name__]})
            ratio = kept_by_backward(transformers, torch, model, 500, 256) / (2 * plan.KEPT_NBYTES * read.n_passed)
            self.assertTrue(least < ratio < most, (kind, ratio))


if __name__ == "__main__":
    unittest.main()
