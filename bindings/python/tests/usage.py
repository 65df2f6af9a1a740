# SPDX-License-Identifier: Apache-2.0
"""Programs of test_torch_usage.py's table: what trainers do with gradients, groups and schedules. usage_weights.py has the rest."""
import support
from support import HYPER, batch, loss_of, mlp, torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

N_STEPS = 14
USES = []  # (name, program, function that makes the model)
ELSEWHERE = set()  # programs that read or write weights outside of the forward of the module that holds them


def use(name, make=mlp, elsewhere=False):
    def take(program):
        USES.append((name, program, make))
        if elsewhere:
            ELSEWHERE.add(program)
        return program
    return take


class Run:
    """A model in training. kept: what is compared after every step. options: of ZenFlow; None: torch's AdamW. synchronizes: after each step
    all weights are fetched."""

    def __init__(self, make, options, synchronizes=False):
        torch.manual_seed(0)
        self.options, self.synchronizes, self.kept, self.own, self.made = options, synchronizes, {}, {}, []
        self.model = make().to(support.DEVICE)
        self.first = [(p, p.detach().clone()) for p in self.model.parameters()]
        self.opt = self.optimizer([p for p in self.model.parameters() if p.requires_grad])

    def optimizer(self, params, **hyper):
        """Over parameters or groups."""
        params, hyper = list(params), {**HYPER, **hyper}
        if self.options is None:
            return torch.optim.AdamW(params, **hyper)
        import zfplugin.torch
        opt = zfplugin.torch.ZenFlow(params, model=self.model, **hyper, **self.options)
        self.made.append(opt)
        if self.synchronizes:
            opt.register_step_post_hook(lambda *_: opt.synchronize())
        return opt

    def backward(self, i, penalty=0.0, scale=1.0):
        loss = loss_of(self.model, i) + penalty
        (scale * loss).backward()
        self.kept["loss"] = loss.detach()

    def end(self, opt=None):
        (opt or self.opt).step()
        (opt or self.opt).zero_grad()

    def step(self, i, penalty=0.0):
        self.backward(i, penalty)
        self.end()

    def once(self, name, make):
        """The result of make() the first time."""
        if name not in self.own:
            self.own[name] = make()
        return self.own[name]

    def keep_weights(self, state=None):
        for name, value in (state or dict(self.model.named_parameters())).items():
            self.kept[name] = value.detach().clone()

    def has_moved(self):
        return all((p - value).abs().max() > 1e-3 for p, value in self.first if p.requires_grad)

    def close(self):
        for opt in self.made:
            opt.flush()
            opt.close()


# ---- gradients ---------------------------------------------------------------------------------------------------------------


@use("requires_grad switched off between backward and step")
def off_at_the_step(run, i):
    run.model.requires_grad_(True)
    run.backward(i)
    run.model[2].requires_grad_(False)
    run.end()


@use("gradients accumulated over a changing number of backwards")
def accumulation(run, i):
    for k in range(1 + i % 3):
        run.backward(10 * i + k, scale=0.5)
    run.end()


@use("clip_grad_norm_ by the trainer")
def clip_norm(run, i):
    run.backward(i)
    run.kept["norm"] = nn.utils.clip_grad_norm_(run.model.parameters(), 0.05 if i % 2 else 1e3)
    run.end()


@use("gradients edited through .data after backward")
def noise(run, i):
    run.backward(i)
    generator = torch.Generator().manual_seed(i)
    for p in run.model.parameters():
        p.grad.data.add_(1e-3 * torch.randn(p.shape, generator=generator))
    run.end()


@use("hooks that change gradients during backward")
def gradient_hooks(run, i):
    run.once("hooks", lambda: [p.register_hook(lambda grad: 0.5 * grad + 1e-3) for p in run.model.parameters()])
    run.step(i)


@use("gradients that are negated lazily, expanded, and shared")
def odd_gradients(run, i):
    run.backward(i)
    run.model[2].weight.grad = torch._neg_view(run.model[2].weight.grad)
    run.model[2].bias.grad = torch.full((1,), 0.1 * i, device=support.DEVICE).expand_as(run.model[2].bias)
    run.model[5].weight.grad = run.model[2].weight.grad
    run.model[3].bias.grad = run.model[2].bias.grad
    run.end()


@use("torch.autograd.grad, .grad assigned by hand")
def by_hand(run, i):
    params = list(run.model.parameters())
    for p, grad in zip(params, torch.autograd.grad(loss_of(run.model, i), params)):
        p.grad = grad
    run.end()


@use("a gradient penalty (double backward)")
def gradient_penalty(run, i):
    loss = loss_of(run.model, i)
    grads = torch.autograd.grad(loss, list(run.model.parameters()), create_graph=True)
    run.step(i + 100, 0.1 * sum(grad.pow(2).sum() for grad in grads))


@use("GradScaler with an overflow, unscale_, clipping")
def scaler(run, i):
    scaler = run.once("scaler", lambda: torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4))
    loss = loss_of(run.model, i)
    scaler.scale(loss * (float("inf") if i == 5 else 1.0)).backward()
    scaler.unscale_(run.opt)
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
    scaler.step(run.opt)
    scaler.update()
    run.opt.zero_grad()
    run.kept["scale"] = scaler.get_scale()


@use("layers that get no gradient in some steps")
def layer_drop(run, i):
    x, y = batch(i)
    for at, layer in enumerate(run.model):
        if not (at in (2, 3, 4) and i % 3 == 1):
            x = layer(x)
    functional.mse_loss(x, y).backward()
    run.end()


@use("step(closure)")
def closure(run, i):
    def evaluate():
        run.opt.zero_grad()
        run.backward(i)
        return run.kept["loss"]
    run.kept["returned"] = run.opt.step(evaluate)


@use("checkpointed activations, both kinds, of a layer used three times", lambda: Checkpointed())
def checkpointed(run, i):
    run.model.use_reentrant = bool(i % 2)
    run.step(i)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.use_reentrant = nn.ModuleList([mlp()[:4], nn.Linear(24, 24), nn.Linear(24, 4)]), False

    def forward(self, x):
        x = self.blocks[0](x)
        for _ in range(3):  # its hook fires once per use, each time with a larger total
            x = torch.tanh(checkpoint(self.blocks[1], x, use_reentrant=self.use_reentrant))
        return self.blocks[2](x)


@use("torch.func.functional_call")
def functional_call(run, i):
    x, y = batch(i)
    functional.mse_loss(torch.func.functional_call(run.model, dict(run.model.named_parameters()), (x,)), y).backward()
    run.end()


@use("bfloat16 autocast")
def autocast(run, i):
    x, y = batch(i)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run.model(x)
    functional.mse_loss(out.float(), y).backward()
    run.end()


@use("convolutions in channels_last", lambda: Convolutions().to(memory_format=torch.channels_last))
def channels_last(run, i):
    run.step(i)


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(),
                         nn.Linear(32, 4))


# ---- groups and schedules ----------------------------------------------------------------------------------------------------


@use("OneCycleLR, which cycles the betas, too")
def one_cycle(run, i):
    schedule = run.once("schedule", lambda: torch.optim.lr_scheduler.OneCycleLR(run.opt, 2e-3, total_steps=N_STEPS + 1))
    run.step(i)
    schedule.step()


@use("groups of their own rates and decays; a group added in mid-run", lambda: mlp(n_hidden=3))
def groups(run, i):
    def make():
        decayed = [p for p in run.model[:-1].parameters() if p.dim() > 1]
        return run.optimizer([{"params": decayed, "weight_decay": 0.2}, {"params": [p for p in run.model[:-1].parameters() if p.dim() < 2],
                                                                        "weight_decay": 0.0, "lr": 3e-3, "betas": (0.8, 0.95)}])
    opt = run.once("opt", make)
    if i == 6:
        opt.add_param_group({"params": list(run.model[-1].parameters()), "lr": 2e-3})
    run.backward(i)
    run.end(opt)
    run.model.zero_grad()


@use("a learning rate that is a tensor")
def tensor_rate(run, i):
    run.opt.param_groups[0]["lr"] = torch.tensor(1e-3 * (i % 5))
    run.step(i)


@use("groups edited by hand: a parameter moved to another, one appended, one removed")
def edited_groups(run, i):
    def make():
        params = list(run.model.parameters())
        return run.optimizer({"params": params[n::3], "lr": 1e-3 * (n + 1)} for n in range(3))
    opt = run.once("opt", make)
    if i == 4:
        opt.param_groups[2]["params"].append(opt.param_groups[0]["params"].pop())
    if i == 6:
        torch.manual_seed(5)
        run.model.append(nn.Linear(4, 4).to(support.DEVICE))
        opt.param_groups.append({**opt.param_groups[0], "params": list(run.model[-1].parameters())})
    if i == 9:
        del opt.param_groups[1]
    run.backward(i)
    run.end(opt)
    run.model.zero_grad()


@use("a layer exchanged, and the group's parameters with it")
def exchanged(run, i):
    if i == 5:
        torch.manual_seed(5)
        run.model[-1] = nn.Linear(24, 4).to(support.DEVICE)
        run.opt.param_groups[0]["params"] = list(run.model.parameters())
    run.step(i)


@use("parameters taken out of the groups and put back")
def regrouped(run, i):
    params, weight = run.opt.param_groups[0]["params"], run.model[2].weight
    if i == 4:
        params[:] = [p for p in params if p is not weight]
    if i == 9:
        params.append(weight)
    run.step(i)
    run.model.zero_grad()


@use("two optimizers on one model, in turn")
def two_optimizers(run, i):
    first, second = run.once("both", lambda: [run.optimizer(run.model[:3].parameters()), run.optimizer(run.model[3:].parameters(), lr=2e-3)])
    run.backward(i)
    run.end(first)
    if i % 3 != 1:
        second.step()
    second.zero_grad()


@use("an optimizer for each parameter, stepped in its hook")
def in_backward(run, i):
    def make():
        for p in run.model.parameters():
            opt = run.optimizer([p])

            def stepped(_, opt=opt):
                opt.step()
                opt.zero_grad()
            p.register_post_accumulate_grad_hook(stepped)
        return True
    run.once("hooks", make)
    run.backward(i)


@use("tied weights (one Parameter in two modules)", lambda: Tied())
def tied(run, i):
    run.step(i)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.back = nn.Linear(8, 24), nn.Linear(24, 8)
        self.again, self.out = nn.Linear(8, 24), nn.Linear(24, 4)
        self.again.weight = self.first.weight

    def forward(self, x):
        return self.out(torch.tanh(self.again(self.back(torch.tanh(self.first(x))))))
