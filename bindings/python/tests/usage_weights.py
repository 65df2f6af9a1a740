# SPDX-License-Identifier: Apache-2.0
"""Programs of test_torch_usage.py's table: weights that the model reads in other places, that the trainer reads or writes."""
import copy
import ctypes
import io

import support
from support import batch, loss_of, mlp, torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from usage import use

# ---- weights that the model reads in other places ----------------------------------------------------------------------------


@use("a weight read outside of its module's forward", lambda: Early(), elsewhere=True)
def read_early(run, i):
    run.step(i)


class Early(nn.Module):
    """Its last layer's weight is read before the last layer, too; its first one's at the end."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x):
        x = self.first(x)
        x = x + 0.1 * x[:, :4] @ self.last.weight
        return self.last(torch.tanh(self.middle(x)) @ (torch.eye(24, device=x.device) + self.first.weight @ self.first.weight.t()))


@use("an embedding that is the output layer, too", lambda: TiedByHand(), elsewhere=True)
def tied_by_hand(run, i):
    run.step(i)


class TiedByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.middle, self.tokens = nn.Linear(8, 24), nn.Embedding(12, 24)

    def forward(self, x):
        scores = functional.linear(self.middle(x), self.tokens.weight)
        return (self.tokens(x.argmax(1)) + 0.02 * scores @ self.tokens.weight)[:, :4]


@use("an L2 penalty over model.parameters() before the forward", elsewhere=True)
def penalty(run, i):
    run.step(i, 0.1 * sum(p.pow(2).sum() for p in run.model.parameters()))


def normed():
    model = mlp()
    parametrizations.weight_norm(model[2])
    parametrizations.spectral_norm(model[5])
    return model


@use("weight_norm and spectral_norm", normed)
def parametrized(run, i):
    run.step(i)


@use("torch.nn.utils.prune", elsewhere=True)
def pruned(run, i):
    run.step(i)
    if i in (4, 8):
        with torch.no_grad():
            prune.l1_unstructured(*((run.model[5], "weight") if i == 4 else (run.model[2], "bias")), amount=0.3)


# ---- weights that the trainer reads between step and forward -----------------------------------------------------------------


@use("evaluation between steps under no_grad and inference_mode")
def evaluated(run, i):
    run.step(i)
    run.model.eval()
    with torch.no_grad() if i % 2 else torch.inference_mode():
        run.kept["scores"] = run.model(batch(i)[0])
    run.model.train()


@use("evaluation that joins weights of layers, every third step", lambda: Joined(), elsewhere=True)
def evaluated_joined(run, i):
    run.step(i)
    if i % 3 == 2:
        run.model.eval()
        with torch.no_grad():
            run.kept["scores"] = run.model(batch(i)[0])
        run.model.train()


class Joined(nn.Module):
    """Two layers side by side, which an evaluation computes as one."""

    def __init__(self):
        super().__init__()
        self.first, self.a, self.b, self.last = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 24, bias=False), nn.Linear(24, 4)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(self.a(x) + self.b(x) if self.training else functional.linear(x, self.a.weight + self.b.weight, self.a.bias))


@use("weights read at their address, as safetensors' save_file does", elsewhere=True)
def read_at_its_address(run, i):
    run.step(i)
    for name, p in run.model.named_parameters():
        values = (ctypes.c_float * p.numel()).from_address(p.data_ptr())
        run.kept["saved " + name] = torch.tensor(list(values)).view(p.shape)


@use("deepcopy(model) and torch.save(model)", elsewhere=True)
def copied(run, i):
    run.step(i)
    file = io.BytesIO()
    torch.save(run.model, file)
    file.seek(0)
    for of, model in (("copy", copy.deepcopy(run.model)), ("file", torch.load(file, weights_only=False))):
        run.keep_weights({f"{name} of the {of}": p for name, p in model.named_parameters()})


@use("values of model.state_dict() written in place")
def written_through_it(run, i):
    run.step(i)
    if i % 6 == 4:
        state = run.model.state_dict()
        state["2.weight"][3].fill_(0.05)
        state["5.weight"].mul_(0.5)


@use("soft updates of a target network", elsewhere=True)
def soft_target(run, i):
    run.step(i)
    for name, p in run.model.named_parameters():
        run.kept.setdefault(name, torch.zeros_like(p.data)).lerp_(p.data, 0.05)


@use("AveragedModel", elsewhere=True)
def averaged(run, i):
    average = run.once("average", lambda: torch.optim.swa_utils.AveragedModel(run.model))
    run.step(i)
    average.update_parameters(run.model)
    run.keep_weights(dict(average.module.named_parameters()))


@use("weights read in a hook of step()", elsewhere=True)
def step_hook(run, i):
    run.once("hook", lambda: run.opt.register_step_post_hook(lambda *_: run.keep_weights()))
    run.step(i)


@use("LoRA: eval() merges, state_dict(), train() takes it out", lambda: adapted(), elsewhere=True)
def lora_merged(run, i):
    run.step(i)
    run.model.eval()
    run.keep_weights({name: value for name, value in run.model.state_dict().items() if name.endswith((".a", ".b"))})
    run.model.train()


class Adapted(nn.Module):
    """A linear layer with an adapter of low rank that can be merged into its weight."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n) / n**0.5, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(4, n) / 2), nn.Parameter(torch.randn(n, 4) / 2)
        self.is_merged = False

    def merge(self, is_on):
        if is_on != self.is_merged:
            self.weight.data += (1 if is_on else -1) * (self.b.data @ self.a.data)
            self.is_merged = is_on

    def train(self, mode=True):
        self.merge(not mode)
        return super().train(mode)

    def forward(self, x):
        return functional.linear(x, self.weight if self.is_merged else self.weight + self.b @ self.a)


def adapted():
    return nn.Sequential(nn.Linear(8, 24), Adapted(24), nn.GELU(), Adapted(24), nn.Linear(24, 4))


# ---- weights that the trainer writes -----------------------------------------------------------------------------------------


@use("in-place initialisation after the optimizer was made")
def initialised(run, i):
    def init(module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            module.bias.data.fill_(0.01)
    run.once("init", lambda: torch.manual_seed(7) and run.model.apply(init))
    if i == 7:
        torch.manual_seed(8)
        run.model[-1].apply(init)
    run.step(i)


@use("pruning by magnitude between step and forward", elsewhere=True)
def pruned_by_magnitude(run, i):
    run.step(i)
    if i % 3 == 1:
        for p in run.model.parameters():
            if p.dim() > 1:
                with torch.no_grad():
                    p.mul_(p.abs() >= p.abs().flatten().kthvalue(p.numel() // 10).values)


@use("edits of one row, and of a row through .data")
def one_row(run, i):
    run.backward(i)
    if i % 3 == 2:
        with torch.no_grad():
            run.model[2].weight[3] = 0.25
        run.model[5].weight.data[5] = -0.125
    run.end()


@use("p.data = other memory, or its own, turned")
def reassigned(run, i):
    run.backward(i)
    if i % 4 == 1:
        for p in run.model.parameters():
            p.data = p.data.clone()
    if i == 6:
        run.model[2].weight.data = torch.full((24, 24), 0.03, device=support.DEVICE)
    if i == 8:
        run.model[5].weight.data = run.model[5].weight.data.t()  # in its own memory
    run.end()


@use("one buffer under all weights, scaled", elsewhere=True)
def one_buffer(run, i):
    run.step(i)
    if i == 4:
        with torch.no_grad():
            run.own["buffer"] = nn.utils.parameters_to_vector(run.model.parameters()).clone()
            nn.utils.vector_to_parameters(run.own["buffer"], run.model.parameters())
    if i > 4 and i % 4 == 0:
        run.own["buffer"].mul_(0.98)


@use("steps undone by load_state_dict of the model and of a layer, behind a checkpoint")
def undone(run, i):
    before = copy.deepcopy(run.model.state_dict())
    run.step(i)
    if i % 3 == 2:
        run.model.state_dict()
        if i % 2:
            run.model.load_state_dict(before)
        else:
            run.model[2].load_state_dict({name: before["2." + name] for name in ("weight", "bias")})


@use("lookahead", elsewhere=True)
def lookahead(run, i):
    run.step(i)
    for name, p in run.model.named_parameters():
        slow = run.own.setdefault(name, p.detach().clone())
        if i % 3 == 2:
            slow.add_(p.detach() - slow, alpha=0.5)
            p.data.copy_(slow)


@use("weights cloned before a forward and put back after it", elsewhere=True)
def restored(run, i):
    before = [p.detach().clone() for p in run.model.parameters()]
    with torch.no_grad():
        loss_of(run.model, i)
        for p, values in zip(run.model.parameters(), before):
            p.copy_(values)
    run.step(i)


@use("Reptile: inner steps, then a part of the way back")
def reptile(run, i):
    start = run.once("start", lambda: copy.deepcopy(run.model.state_dict()))
    run.step(i)
    if i % 4 == 3:
        start = {name: value + 0.5 * (run.model.state_dict()[name] - value) for name, value in start.items()}
        run.model.load_state_dict(start)
        run.own["start"] = copy.deepcopy(start)


@use("SAM that puts values back by assignment")
def sharpness(run, i):
    run.backward(i)
    before = [p.data.clone() for p in run.model.parameters()]
    for p in run.model.parameters():
        p.data.add_(0.05 * p.grad / (p.grad.norm() + 1e-12))
    run.opt.zero_grad()
    run.backward(i)
    for p, values in zip(run.model.parameters(), before):
        p.data = values
    run.end()


@use("a training step compiled as a whole")
def compiled_step(run, i):
    def step(x, y):
        run.opt.zero_grad()
        functional.mse_loss(run.model(x), y).backward()
        run.opt.step()

    def compile_anew():
        torch._dynamo.reset()  # of the other runs' steps
        return torch.compile(step, backend="eager")
    with torch._dynamo.config.patch(recompile_limit=2):  # beyond it, a step runs as it is
        run.once("compiled", compile_anew)(*batch(i))


@use("torch.compile")
def compiled(run, i):
    model = run.once("compiled", lambda: torch.compile(run.model, backend="aot_eager"))
    x, y = batch(i)
    functional.mse_loss(model(x), y).backward()
    run.end()
