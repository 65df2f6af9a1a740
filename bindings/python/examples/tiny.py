# SPDX-License-Identifier: Apache-2.0
"""Shared by the examples: small models of public families with random weights, and a language they can learn.

The language is a fixed random Markov chain over VOCAB tokens in which every token has four successors: the loss falls
from log(VOCAB) = 4.2 towards log(4) = 1.4.
"""
import torch

VOCAB, LENGTH = 64, 32


def sequences(n, seed=0):
    """[n, LENGTH] token ids of the chain."""
    chain = torch.Generator().manual_seed(1234)
    successors = torch.randint(0, VOCAB, (VOCAB, 4), generator=chain)
    generator = torch.Generator().manual_seed(seed)
    out = torch.randint(0, VOCAB, (n, LENGTH), generator=generator)
    for i in range(1, LENGTH):
        pick = torch.randint(0, 4, (n,), generator=generator)
        out[:, i] = successors[out[:, i - 1], pick]
    return out


def model_of(family, seed=0, n_layers=2):
    """A causal language model of a public family, small, with random weights. GPT-2's linear layers are Conv1D."""
    import transformers

    torch.manual_seed(seed)
    sizes = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=VOCAB, n_positions=LENGTH, n_embd=64, n_layer=n_layers, n_head=4, bos_token_id=0, eos_token_id=0)),
        "bert": lambda: transformers.BertLMHeadModel(transformers.BertConfig(
            vocab_size=VOCAB, max_position_embeddings=LENGTH, hidden_size=64, num_hidden_layers=n_layers,
            num_attention_heads=4, intermediate_size=256, is_decoder=True)),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=VOCAB, max_position_embeddings=LENGTH, hidden_size=64, num_hidden_layers=n_layers,
            num_attention_heads=4, num_key_value_heads=2, intermediate_size=172, bos_token_id=0, eos_token_id=0)),
    }
    return sizes[family]().train()


class Language(torch.utils.data.Dataset):
    """Items {"input_ids", "labels"}, as Hugging Face trainers want them."""

    def __init__(self, n, seed=0):
        self.ids = sequences(n, seed)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}
