# SPDX-License-Identifier: Apache-2.0
"""Parameters on a device that torch alone reaches: a Vulkan driver in software, whose memory is its own to torch (PyPI torchvulkan, Debian's
mesa-vulkan-drivers). Beside torch's AdamW on that device; test_torch_carried_uses.py has the rest of usage.py's table.
"""
import contextlib
import copy
import io
import os
import tempfile
import unittest
import warnings
from unittest import mock

import support
from support import HYPER, TorchTest, mlp, nn, plain_step, torch, values_of

import torchvulkan
from test_torch_usage import BOUND, EXACT, trained, worst_of
from tiny import Language, model_of
from usage import USES
from zfplugin import errors

VULKAN = torch.device("vulkan:0")
SETTINGS = {"in place": {"config": EXACT}, "early": {"config": EXACT, "overlap": True}, "fetch": {"config": EXACT, "fetch": True}}
IN_CI = {"in place": ("groups", "tied", "copied", "sharpness"), "early": ("accumulation", "noise", "scaler"),
         "fetch": ("layer_drop", "one_row", "reassigned", "written_through_it", "averaged", "undone", "restored")}
ROUNDED = {"c_attn.bias": 5e-5}  # a key's bias has no gradient but what rounding leaves, which AdamW divides by itself


def setUpModule():
    if not torchvulkan.is_available():
        if os.environ.get("CI"):
            raise AssertionError("no Vulkan driver: sh conformance/deps.sh --tests installs mesa-vulkan-drivers")
        raise unittest.SkipTest("no Vulkan driver (Debian's mesa-vulkan-drivers)")
    support.DEVICE = VULKAN
    warnings.filterwarnings("ignore", "torchvulkan")  # of what it computes on the CPU


def tearDownModule():
    support.DEVICE = "cpu"


def given(model, step, device=VULKAN):
    """Gradients without a backward: the same on every device."""
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(device, p.dtype)


class Carried(TorchTest):
    def on_both(self, act, make=mlp, n_steps=12, **options):
        """act(model, optimizer, step) beside AdamW on the device."""
        ours, theirs = support.twins(lambda: make().to(VULKAN))
        opt, reference = self.zenflow(ours, **{**HYPER, "model": ours, **options}), torch.optim.AdamW(theirs.parameters(), **HYPER)
        self.train_both(ours, theirs, opt, reference, n_steps, act)
        opt.synchronize()
        difference, name = support.worst(ours.cpu(), theirs.cpu())
        self.assertLessEqual(difference, BOUND, name)
        return opt

    def test_read_in_forward(self):
        """Also saved before it was read: nothing of a step is taken for an edit of what the device still has."""
        def saved(model, opt, step):
            plain_step(model, opt, step)
            model.state_dict()
        for act in (plain_step, saved):
            self.on_both(act, fetch=True)

    def test_written_before_it_was_read(self):
        """An element of a small parameter counts, and the others have the update; of a large one it is refused, and its name is said."""
        def written(model, opt, step):
            (model(torch.full((5,), step % 7 - 3.0, device=VULKAN)).sum() * (-1) ** step).backward()  # no weight has a part in gradients
            opt.step()
            opt.zero_grad()
            if step % 4 == 0:
                model.bias.data[step % 3] = 0.5
        self.on_both(written, make=lambda: nn.Linear(5, 7), fetch=True)
        large = nn.Linear(200, 300).to(VULKAN)
        opt = self.zenflow(large, model=large, fetch=True, **HYPER)
        with self.assertRaisesRegex(errors.StateError, '"weight" was written before its update was there'):
            for _ in range(3):
                large(torch.ones(200, device=VULKAN)).sum().backward()
                opt.step()
                large.weight.data[0] = 0

    def test_uses(self):
        programs = {program.__name__: (name, program, make) for name, program, make in USES}
        for setting, names in IN_CI.items():
            for name, program, make in map(programs.get, names):
                with self.subTest(name, setting=setting):
                    self.assertLessEqual(worst_of(program, make, SETTINGS[setting], trained(program, make)), BOUND)

    def test_language_models(self):
        """24 steps of GPT-2 and Llama; halfway a new optimizer of a new model goes on from what was saved."""
        ids = Language(48).ids[:, :12].to(VULKAN)

        def one_step(model, opt, step):
            loss = model(input_ids=ids[2 * step:2 * step + 2], labels=ids[2 * step:2 * step + 2]).loss
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss.item()

        for family in ("gpt2", "llama"):
            ours = model_of(family, n_layers=1).eval().to(VULKAN)  # without dropout
            theirs, losses = copy.deepcopy(ours), []
            opt, reference = self.zenflow(ours, **HYPER), torch.optim.AdamW(theirs.parameters(), **HYPER)
            for step in range(24):
                losses.append((one_step(ours, opt, step), one_step(theirs, reference, step)))
                if step == 11:
                    saved, state = copy.deepcopy(opt.state_dict()), ours.state_dict()
                    ours = model_of(family, seed=1, n_layers=1).eval().to(VULKAN)
                    ours.load_state_dict(state)
                    opt = self.zenflow(ours, **HYPER)
                    opt.load_state_dict(saved)
            self.assertLess(max(abs(a - b) for a, b in losses), 1e-5)
            self.assertLess(losses[-1][0], losses[0][0] - 0.05)
            for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
                bound = next((most for end, most in ROUNDED.items() if name.endswith(end)), BOUND)
                self.assertLessEqual((p - q).abs().max().item(), bound, name)

    @support.needs("peft")
    def test_peft(self):
        """Adapters alone are trained; what is frozen stays as it is."""
        import peft

        made = []

        def make():
            torch.manual_seed(1)
            made.append(peft.get_peft_model(mlp(), peft.LoraConfig(r=2, target_modules=["0", "2"])))
            return made[-1]
        opt = self.on_both(plain_step, make=make)
        self.assertTrue(all("lora_" in name for name in opt.export()))
        trained, as_made = made[0], make()
        for (name, p), q in zip(trained.named_parameters(), as_made.parameters()):
            self.assertEqual(torch.equal(p.detach().cpu(), q), "lora_" not in name, name)

    @support.needs("transformers", "accelerate")
    def test_trainer(self):
        """Clipped by the plugin in the Trainer's place, accumulated, resumed from a checkpoint; beside AdamW under the same Trainer."""
        import transformers
        from accelerate.state import AcceleratorState, PartialState
        from zfplugin.torch.trainer import ZenFlowCallback
        transformers.utils.logging.set_verbosity_error()
        for of, name in ((PartialState, "default_device"), (transformers.TrainingArguments, "device")):  # they know no Vulkan
            patch = mock.patch.object(of, name, property(lambda self: (getattr(self, "_setup_devices", None), VULKAN)[1]))
            patch.start()
            self.addCleanup(patch.stop)
        for act in (PartialState._reset_state, lambda: AcceleratorState._reset_state(True)):
            act()
            self.addCleanup(act)

        def train(folder, make, is_ours, resumed=None):
            model = model_of("llama", n_layers=1)
            opt = make(model)
            arguments = transformers.TrainingArguments(
                folder, max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_grad_norm=0.05, logging_steps=1, report_to=[],
                disable_tqdm=True, save_steps=3, save_strategy="steps", dataloader_pin_memory=False, lr_scheduler_type="constant")
            with contextlib.redirect_stdout(io.StringIO()):
                trainer = transformers.Trainer(model, arguments, train_dataset=Language(24), optimizers=(opt, None), callbacks=[ZenFlowCallback()] * is_ours)
                trainer.train(resume_from_checkpoint=resumed)
            return model, [entry["grad_norm"] for entry in trainer.state.log_history if "loss" in entry], opt

        def of_torch(model):
            return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

        with tempfile.TemporaryDirectory() as folder:
            theirs, norms, _ = train(folder + "/theirs", of_torch, False)
            for resumed in (None, folder + "/ours/checkpoint-3"):
                ours, mine, opt = train(folder + "/ours", lambda model: self.zenflow(model, lr=1e-3, weight_decay=0.0), True, resumed)
                self.assertEqual(next(ours.parameters()).device, VULKAN)
                self.assertLess(opt.last_report.clip_factor, 0.2)
                torch.testing.assert_close(torch.tensor(mine), torch.tensor(norms), rtol=1e-4, atol=0)
                self.assert_same(ours.cpu(), copy.deepcopy(theirs).cpu(), 1e-5)

    def test_it_is_the_cpus_run_to_the_bit(self):
        """With the same gradients; also where weights wait for their forward."""
        there = mlp()
        here = [copy.deepcopy(there).to(VULKAN) for _ in range(2)]
        plain, opts = self.zenflow(there, **HYPER), [self.zenflow(model, model=model, fetch=is_late, **HYPER) for model, is_late in zip(here, (False, True))]
        for step in range(5):
            given(there, step, "cpu")
            plain.step()
            for model, opt in zip(here, opts):
                given(model, step)
                opt.step()
                opt.synchronize()
                self.assert_equal(copy.deepcopy(model).cpu(), there)

    def test_gradients_in_the_hook(self):
        """Accumulated, edited past the version counter, exchanged, given back."""
        def edited(model, opt, step):
            opt.zero_grad()
            for k in range(2):
                support.loss_of(model, 10 * step + k).backward()
            model[0].weight.grad.data.mul_(0.5)
            model[2].bias.grad = model[2].bias.grad.clone().neg_()
            opt.step()
        self.on_both(edited, overlap=True)
        self.on_both(plain_step, release_gradients=True)

    def test_weights_of_16_bits_keep_the_masters_of_what_nobody_wrote(self):
        runs = []
        for is_edited in (False, True):
            model = torch.nn.Linear(24, 8, bias=False).to(VULKAN, torch.bfloat16)
            with torch.no_grad():
                model.weight.copy_(torch.linspace(-1, 1, 192).view(8, 24))
            opt = self.zenflow(model, **HYPER)
            for step in range(40):
                given(model, step)
                opt.step()
                if is_edited:
                    model.weight.data[3].clamp_(-0.01, 0.01)
            self.assertLessEqual(model.weight[3].abs().max().item(), 0.0101 if is_edited else 2)
            runs.append(opt.export()["weight"])
        rows = torch.arange(8) != 3
        self.assertTrue(torch.equal(runs[0][rows], runs[1][rows]))
        self.assertFalse(torch.equal(runs[0][3], runs[1][3]))

    def test_where_weights_lie(self):
        """One not contiguous, two in one memory, a frozen one, one on the CPU, one that gets no gradient; then all move to the CPU."""
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(6, 6), "b": torch.nn.Linear(6, 6), "frozen": torch.nn.Linear(2, 2).requires_grad_(False),
                                     "turned": torch.nn.Linear(4, 6), "quiet": torch.nn.Linear(2, 2)}).to(VULKAN)
        model["here"] = torch.nn.Linear(2, 3)
        model["turned"].weight.data = model["turned"].weight.data.t().contiguous().t()
        model["b"].weight = torch.nn.Parameter(model["a"].weight.data)
        other = copy.deepcopy(model).cpu()
        other["b"].weight.data = other["a"].weight.data
        opts = [self.zenflow(of, **HYPER) for of in (model, other)]
        quiet = values_of(model["quiet"])
        version = model["quiet"].weight._version
        for step in range(6):
            for of, opt in zip((model, other), opts):
                if step == 4:
                    of.cpu()["b"].weight.data = of["b"].weight.data.clone()  # torch itself unties what it moves
                generator = torch.Generator().manual_seed(step)
                for p in (p for name, p in of.named_parameters() if "quiet" not in name and p.requires_grad):
                    p.grad = torch.randn(p.shape, generator=generator).to(p.device)
                opt.step()
            if step == 3:
                self.assertEqual(model["a"].weight.device.type, "vulkan")
                self.assert_values(model["quiet"], quiet)
                self.assertEqual(model["quiet"].weight._version, version)
            self.assert_equal(copy.deepcopy(model).cpu(), other)

    def test_the_model_is_moved_after_the_optimizer_was_made(self):
        ours, theirs = support.twins()
        opt = self.zenflow(ours, **HYPER)
        ours.to(VULKAN)
        plain = self.zenflow(theirs, **HYPER)
        for step in range(6):
            given(ours, step, ours[0].weight.device)
            given(theirs, step, "cpu")
            opt.step()
            plain.step()
            if step == 2:  # bound by now
                ours.cpu()
            if step == 4:
                ours.to(VULKAN)
        self.assert_equal(ours.cpu(), theirs)

    def test_a_second_optimizer_takes_the_weights_over(self):
        model = mlp().to(VULKAN)
        given(model, 0)
        first, second = self.zenflow(model), self.zenflow(model)
        first.step()
        with self.messages() as said:
            second.step()
        self.assertIn("12 parameters are taken over from an older instance", said.output[0])
        self.assertEqual((first.is_open(), second.is_open()), (False, True))

    def test_what_the_plugin_would_do_on_a_device_is_refused(self):
        for settings in ({"zenflow.mode": "windows"}, {"device.state_mib": "all"}):
            opt = self.zenflow(mlp().to(VULKAN), config=settings)
            with self.assertRaisesRegex(errors.ConfigError, f'{next(iter(settings))} = .*device="cuda"'):
                opt.bind()
        for device, problem in (("vulkan", "allowed: None"), ("cuda", "is on vulkan:0")):
            with self.assertRaisesRegex(errors.ZfError, problem):
                self.zenflow(mlp().to(VULKAN), device=device)
