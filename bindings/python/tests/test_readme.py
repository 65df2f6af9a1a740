# SPDX-License-Identifier: Apache-2.0
"""Every block of Python of docs/recipes.md as it stands there, with another learning rate: it runs, it learns, it flushes, and it ends where torch's AdamW does
in the same trainer. Every line of docs/start.md but its installation, and the three lines of README.md."""
import contextlib
import io
import json
import logging
import os
import re
import subprocess
import tempfile
import warnings
from pathlib import Path
from unittest import mock

from support import ROOT, TorchTest, needs, torch
from test_torch_ranks import fully_shard, run_ranks

PARTS = [part.partition("\n") for part in (ROOT / "docs/recipes.md").read_text(encoding="utf-8").split("\n## ")[1:]]
RECIPES = {title: code for title, _, text in PARTS for code in re.findall(r"```python\n(.*?)```", text, re.S)}
BOUND = 2e-4  # of |weight - AdamW's|: torch rounds in another order


def reference():
    """torch's AdamW in the place of a ZenFlow."""
    from zfplugin.torch.parameters import split_names

    class Reference(torch.optim.AdamW):
        def __init__(self, params, model=None, clip_norm=0.0, **hyper):
            super().__init__(split_names(params)[0], **hyper)
            self.flush, self.attach, self.stats, self.clip_norm = (lambda: None), (lambda module: None), dict, clip_norm

        def step(self, closure=None):
            loss = closure() if closure is not None else None
            if self.clip_norm:
                torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.clip_norm)
            super().step()
            return loss

    return Reference


def loss_of(model, dataset):
    with torch.no_grad():
        return model(input_ids=dataset.ids[:32], labels=dataset.ids[:32]).loss.item()


def values_of(model):
    return {name: getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for name, p in model.named_parameters()}


def run_recipe(title, family, is_reference, make=dict, seed=0, patches=lambda is_reference: ()):
    """{name: values} of the model that was trained. make: what more the recipe names, or has in place of what all have."""
    import transformers
    import zfplugin.torch
    import zfplugin.torch.trainer
    from tiny import Language, model_of

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    model, dataset = model_of(family), Language(192, seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.ExitStack() as entered, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        entered.enter_context(TorchTest().assertNoLogs("zfplugin", logging.WARNING))
        entered.callback(os.chdir, os.getcwd())
        os.chdir(folder)  # where trainers write
        for patch in patches(is_reference):
            entered.enter_context(patch)
        names = {"model": model, "dataset": dataset, "loader": torch.utils.data.DataLoader(dataset, batch_size=16),
                 "args": transformers.TrainingArguments(output_dir=folder, max_steps=9, use_cpu=True, report_to=[], disable_tqdm=True,
                                                        gradient_accumulation_steps=2, max_grad_norm=1.0), **make()}
        if is_reference:
            stand_in = reference()
            for place in ("zfplugin.torch", "zfplugin.torch.optimizer", "zfplugin.torch.trainer"):
                entered.enter_context(mock.patch(f"{place}.ZenFlow", stand_in))
        else:
            flush = zfplugin.torch.ZenFlow.flush
            flushed = entered.enter_context(mock.patch.object(zfplugin.torch.ZenFlow, "flush", autospec=True, side_effect=flush))
        before = loss_of(model, dataset)
        exec(compile(RECIPES[title].replace("lr=3e-4", "lr=3e-3"), f"docs/recipes.md: {title}", "exec"), names)  # pylint: disable=exec-used
        assert is_reference or flushed.called, "it does not flush"
        assert loss_of(model, dataset) < before - 0.1, "it does not learn"
        return values_of(model)


def compare(title, family="gpt2", **options):
    ours, theirs = (run_recipe(title, family, is_reference, **options) for is_reference in (False, True))
    apart = max((ours[name] - theirs[name]).abs().max().item() for name in theirs)
    assert apart < BOUND and ours.keys() == theirs.keys(), (title, apart)


# ---- [a fork] ------------------------------------------------------------------------------------------------------------------


def loop():
    """Each of two processes has its own half of the batch. The reference cuts nothing: its gradients are averaged as those of whole tensors are."""
    compare("A loop of your own", seed=torch.distributed.get_rank(), patches=lambda is_reference: [
        mock.patch("torch.distributed.fsdp.fully_shard", (lambda module: None) if is_reference else fully_shard)])


def accelerate_offloaded():
    """Accelerate takes FSDP2 on GPUs alone: its state is told that this CPU is one, and what torch would page-lock stays as it is."""
    import accelerate
    from accelerate.state import AcceleratorState

    def start(state, *args, fsdp_plugin=None, **options):
        begin(state, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin:
            state.distributed_type, state.fsdp_plugin = accelerate.DistributedType.FSDP, fsdp_plugin

    begin = AcceleratorState.__init__
    compare("Accelerate, FSDP2, weights in host memory", "llama", patches=lambda _: [
        mock.patch.object(AcceleratorState, "__init__", start), mock.patch("torch.Tensor.pin_memory", lambda tensor, *_: tensor)])


# ---- this process --------------------------------------------------------------------------------------------------------------


@needs("torch", "transformers", "accelerate")
class Recipes(TorchTest):
    @classmethod
    def setUpClass(cls):
        """Imports what forks would import each for itself."""
        import accelerate  # noqa: F401
        import zfplugin.torch.trainer  # noqa: F401
        from tiny import model_of
        from transformers import TrainingArguments  # noqa: F401
        for family in ("gpt2", "llama"):
            model_of(family)

    def test_all_are_run(self):
        self.assertEqual([*RECIPES], ["A loop of your own", "Transformers' Trainer", "TRL", "Accelerate, FSDP2, weights in host memory", "Lightning"])

    def test_a_loop_on_two_processes(self):
        run_ranks(2, "test_readme", "loop")

    def test_accelerate(self):
        run_ranks(1, "test_readme", "accelerate_offloaded")

    def test_trainer(self):
        compare("Transformers' Trainer", "bert")

    @needs("trl")
    def test_trl(self):
        def make():
            import datasets
            import tokenizers
            import transformers
            from tiny import VOCAB, Language

            datasets.disable_progress_bars()
            words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
            return {"dataset": datasets.Dataset.from_dict({"input_ids": Language(192).ids.tolist()}),
                    "tokenizer": transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0")}

        compare("TRL", "llama", make=make)

    @needs("lightning")
    def test_lightning(self):
        compare("Lightning", "gpt2")


@needs("torch")
class Start(TorchTest):
    PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    README = (ROOT / "README.md").read_text(encoding="utf-8")

    def test_commands(self):
        commands = [line.split("#")[0].split() for line in re.findall(r"^    zf (.*)", self.PAGE + self.README, re.M)]
        self.assertEqual([words[0] for words in commands], ["doctor", "plan", "plan", "plan"])
        shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
        program = Path(os.environ["ZFPLUGIN_BUILD"], "bindings", "cli", "zf")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "my-model").mkdir()
            Path(folder, "my-model", "config.json").write_text(json.dumps(shape), encoding="utf-8")
            for words, said in zip(commands, ("plugin ", "the largest that fits: ", "mode = exact", "the largest that fits: ")):
                done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=True)
                self.assertIn(said, done.stdout)

    def test_program(self):
        code = "".join(re.findall(r"```python\n(.*?)```", self.PAGE, re.S))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "docs/start.md", "exec"), {})  # pylint: disable=exec-used
        self.assertRegex(printed.getvalue(), r"^12 steps, 1[2-3]\.\d bytes per parameter, \d+\.\d % of the last step waited for the plugin$")

    def test_a_row_of_small_moments(self):
        """As docs/memory.md has it; README.md's is taken from there."""
        import decay
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            decay.main("ZenFlow int8")
        figures = printed.getvalue().strip().partition(" | ")[2]
        self.assertIn(f"\n| `int8` | 2.06 | {figures} |\n", (ROOT / "docs/memory.md").read_text(encoding="utf-8"))

    def test_three_lines(self):
        code, = re.findall(r"```python\n(.*?)```", self.README, re.S)
        exec(compile(code, "README.md", "exec"), {"model": torch.nn.Linear(4, 4)})  # pylint: disable=exec-used
