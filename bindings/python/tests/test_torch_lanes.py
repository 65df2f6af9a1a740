# SPDX-License-Identifier: Apache-2.0
"""Copies beside the trainer's kernels, on a device of torch's that has no streams (Vulkan) and gets stand-ins for them here.

Model: what a side stream is given to copy is done late: up to an event that is waited for, or by chance when one is asked; what it
copies from is read then. A copy that is not behind the current stream, or whose source was let go, copies NaN. The current stream computes at
once, so with the same gradients the weights are the bits of a run on the CPU, and planted faults change them.
"""
import contextlib
import copy
import random
import weakref
from unittest import mock

import support
from support import HYPER, TorchTest, torch, values_of
from test_torch_carried import VULKAN, setUpModule, tearDownModule  # noqa: F401

import torchvulkan
from torch import nn
from torch.overrides import TorchFunctionMode
from zfplugin import errors, progress
from zfplugin.torch import carried, gradients, lanes


class Stream:
    """Of the device; the current one computes at once."""

    faults = ()

    def __init__(self, device=None):
        self.queue, self.is_behind = [], False

    def wait_stream(self, other):
        other.run()
        self.is_behind = "nothing waits" not in Stream.faults

    def wait_event(self, event):
        if "values are not waited for" not in Stream.faults:
            event.stream.run(event)

    def run(self, until=None):
        """What was given to it, up to an event."""
        while self.queue and (until is None or not until.is_over):
            self.queue.pop(0)()

    def add_copy(self, to, values):
        torch.autograd.graph.increment_version([to])
        is_behind, values = self.is_behind, weakref.ref(values)

        def act():
            found = values() if is_behind else None
            if found is None:
                to.data.fill_(torch.nan)
            else:
                to.data.copy_(found.data)
        self.queue.append(act)


class Event:
    chance = random.Random(1)

    def __init__(self):
        self.is_over, self.stream = False, None

    def record(self, stream):
        self.stream = stream
        stream.queue.append(lambda: setattr(self, "is_over", True))

    def query(self):
        for _ in range(Event.chance.randrange(4)):
            if self.stream.queue:
                self.stream.queue.pop(0)()
        return self.is_over

    def synchronize(self):
        if "no event is waited for" not in Stream.faults:
            self.stream.run(self)


class _Copies(TorchFunctionMode):
    def __init__(self, stream):
        super().__init__()
        self.stream = stream

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.copy_:
            self.stream.add_copy(*args[:2])
        elif function is torch._foreach_copy_:
            for to, values in zip(*args):
                self.stream.add_copy(to, values)
        else:
            return function(*args, **(kwargs or {}))
        return args[0]


CURRENT = Stream()


@contextlib.contextmanager
def stream(of):
    with _Copies(of):
        yield
    of.is_behind = False


class Given(nn.Module):
    """The gradient of its weight is what its forward is given, to the bit."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).reshape(shape))

    def forward(self, grad):
        self.seen = self.weight.detach().cpu()
        return (self.weight * grad).sum()


def model():
    return nn.ModuleList([Given(64, 48), Given(48), Given(300, 64), Given(), Given(7, 5, 3)])


class NoMemory(RuntimeError):
    """As torch.OutOfMemoryError."""


@contextlib.contextmanager
def short_of_memory(after):
    """The device has none for the copy or digest with this number, from now on and once; 0: for each."""
    left = [after]

    def failing(name):
        method = getattr(lanes.Side, name)

        def call(lane, *args):
            left[0] -= 1
            if left[0] == 0:
                raise NoMemory(name)
            return method(lane, *args)
        return mock.patch.object(lanes.Side, name, call)
    with failing("run"), failing("digest"):
        yield


def with_streams(test):
    """For this test the device has streams and events."""
    for name, of in (("Stream", Stream), ("Event", Event), ("stream", stream), ("current_stream", lambda device=None: CURRENT)):
        patch = mock.patch.object(torchvulkan, name, of, create=True)
        patch.start()
        test.addCleanup(patch.stop)
    Stream.faults = ()
    test.addCleanup(setattr, Stream, "faults", ())
    Event.chance.seed(1)


class Lanes(TorchTest):
    def setUp(self):
        super().setUp()
        with_streams(self)

    def run_beside_the_cpu(self, act=None, n_steps=8, n_backwards=1, edit=None, **options):
        """act(model, step) between backward and step, whose gradients the CPU gets; edit(model, step) after the step, on both. The optimizer,
        and whether all weights were the same after each step."""
        here, is_same = model().to(VULKAN), True
        there = copy.deepcopy(here).cpu()
        opt, plain = self.zenflow(here, model=here, **{**HYPER, **options}), self.zenflow(there, **{**HYPER, "clip_norm": options.get("clip_norm", 0)})
        with mock.patch("zfplugin.torch.bucket.BUCKET_PARAMS", 1):
            for step in range(n_steps):
                generator, kept = torch.Generator().manual_seed(step), {}
                for _ in range(n_backwards):
                    for name, layer in enumerate(here):
                        grad = torch.randn(layer.weight.shape, generator=generator)
                        kept[name] = kept.get(name, 0) + grad
                        if name != 1 or step % 3 != 1:
                            layer(grad.to(VULKAN)).backward()
                if act is not None:
                    act(here, step)
                for number, (mine, theirs) in enumerate(zip(here, there)):
                    grad = mine.weight.grad.cpu() if mine.weight.grad is not None else kept[number] if options.get("release_gradients") else None
                    theirs.weight.grad = None if number == 1 and step % 3 == 1 else grad
                try:
                    opt.step()
                except errors.NonfiniteError:
                    return opt, False
                opt.zero_grad()
                plain.step()
                for of in (here, there) if edit is not None else ():
                    opt.synchronize()
                    edit(of, step)
                opt.synchronize()
                CURRENT.run()
                is_same = is_same and all(torch.equal(p.detach().cpu(), q) for p, q in zip(here.parameters(), there.parameters()))
        return opt, is_same

    def check(self, act=None, **options):
        opt, is_same = self.run_beside_the_cpu(act, **options)
        self.assertTrue(is_same)
        return opt

    def test_plain_accumulated_given_back_and_fetched(self):
        n_early = []

        def count(of, step):
            n_early.append(sum(seen.held is not None for seen in self.made[0]._binding.feed.gradients) if step else 0)
        opt = self.check(count)
        self.assertEqual(n_early, [0, 4, 5, 5, 4, 5, 5, 4])  # all but before the first step
        self.assertEqual(opt.stats()["lost_overlap_nbytes"], 0)
        self.check(n_backwards=2)
        self.check(release_gradients=True)
        self.check(release_gradients=2, n_backwards=2)
        self.check(fetch=True)
        self.check(overlap=False)
        self.check(clip_norm=0.5)

    def test_updates_begin_before_their_step_by_default(self):
        """Also where the plugin clips, with a bound that clips nothing; not where gradients travel at step()."""
        for home, options in (("plugin", {"overlap": False}), ("host", {"clip_norm": 1e6}), ("host", {"fetch": True})):
            opt, _ = self.run_beside_the_cpu(n_steps=1, **options)
            self.assertEqual({decl.home for decl in opt._binding.table.decls}, {home})
            n_taken = home == "plugin"
            while not n_taken:  # until a worker came to it
                opt = self.check(n_steps=6, **options)
                n_taken = opt.stats()["early_taken"]

    def run_read_in_forward(self, n_steps=6):
        """With fetch=True, where the first module's forward begins once all updates are over. Whether each forward read what the step before
        gave, and how many modules were started before their own hook came."""
        here, n_ahead, is_same = model().to(VULKAN), 0, True
        there = copy.deepcopy(here).cpu()
        opt, plain = self.zenflow(here, model=here, fetch=True, **HYPER), self.zenflow(there, **HYPER)
        fetcher = opt._fetcher
        push_ahead = fetcher._push_ahead

        def push_all():
            nonlocal n_ahead
            for _, fence in fetcher.ahead:
                opt._instance.wait(fence)
            late = len(fetcher.late)
            push_ahead()
            n_ahead += late - len(fetcher.late)
        with mock.patch.object(fetcher, "_push_ahead", push_all):
            for step in range(n_steps):
                generator, before = torch.Generator().manual_seed(step), [layer.weight.detach().clone() for layer in there]
                for mine, theirs in zip(here, there):
                    theirs.weight.grad = torch.randn(theirs.weight.shape, generator=generator)
                    mine(theirs.weight.grad.to(VULKAN)).backward()
                is_same = is_same and all(torch.equal(mine.seen, values) for mine, values in zip(here, before))
                for each in (opt, plain):
                    each.step()
                    each.zero_grad()
        return is_same, n_ahead

    def test_values_of_the_next_modules_are_started_ahead(self):
        self.assertEqual(self.run_read_in_forward(), (True, 4 * 4))  # all but the first, from the third step on
        Stream.faults = ("values are not waited for",)
        self.assertFalse(self.run_read_in_forward()[0])

    def run_with_late_values(self):
        """Each other step reads weights where no hook fetches them. Whether values that did not go up before their gradients came are there once
        they are asked for."""
        here, is_same = model().to(VULKAN), True
        there = copy.deepcopy(here).cpu()
        opt, plain = self.zenflow(here, model=here, fetch=True, **HYPER), self.zenflow(there, **HYPER)
        for step in range(5):
            generator = torch.Generator().manual_seed(step)
            for mine, theirs in zip(here, there):
                theirs.weight.grad = torch.randn(theirs.weight.shape, generator=generator)
                grad = theirs.weight.grad.to(VULKAN)
                (mine.weight.clone() * grad).sum().backward() if step % 2 else mine(grad).backward()
            opt.synchronize()
            CURRENT.run()
            is_same = is_same and all(torch.equal(p.detach().cpu(), q) for p, q in zip(here.parameters(), there.parameters()))
            for each in (opt, plain):
                each.step()
                each.zero_grad()
        return is_same

    def test_a_gradient_comes_into_a_place_that_is_free(self):
        self.assertTrue(self.run_with_late_values())
        with mock.patch.object(gradients.GradientFeed, "_is_free", lambda feed, i: True), \
                mock.patch.object(carried.Mirrors, "late", lambda mirrors, params: []):
            self.assertFalse(self.run_with_late_values(), "a place given to the next gradient before its value went up")

    def test_gradients_changed_after_their_hook(self):
        def clip(of, step):
            nn.utils.clip_grad_norm_(of.parameters(), 0.5 if step % 2 else 1e6)

        def past_the_counter(of, step):
            of[2].weight.grad.data.neg_()
            of[0].weight.grad.data.copy_(of[0].weight.grad.flip(0))

        def columns(of, step):
            of[0].weight.grad.data.copy_(of[0].weight.grad.flip(1))
            of[4].weight.grad = of[4].weight.grad * 2

        for act in (clip, past_the_counter, columns):
            self.check(act)

    def test_weights_written_on_the_device(self):
        def edit(of, step):
            if step % 2:
                of[0].weight.data[5].clamp_(-0.1, 0.1)
            if step == 4:
                of[2].weight.data = of[2].weight.data.flip(0)
        for options in ({}, {"fetch": True}):
            self.check(edit=edit, **options)

    def run_loop(self, seed):
        """Steps of a trainer's loop drawn at random, with the same gradients on the CPU: whether each read of weights gives the same bits. A
        batch for which the device has no memory is left out, as trainers do."""
        draw = random.Random(seed)
        options, is_late = {"fetch": draw.random() < 0.7, "clip_norm": draw.choice((0, 0.5))}, False
        options.update(draw.choice(({}, {"overlap": False}, {"release_gradients": True})))
        is_kept = not options.get("release_gradients")
        here = model().to(VULKAN, draw.choice((torch.float32, torch.bfloat16)))
        there = copy.deepcopy(here).cpu()
        opt, plain = self.zenflow(here, model=here, **{**HYPER, **options}), self.zenflow(there, **{**HYPER, "clip_norm": options["clip_norm"]})

        def on_both(act, *layers):
            for of in (here, there):
                act(of, *layers)

        def synchronize():
            opt.synchronize()
            CURRENT.run()

        def backward(of, k, grad, reads_in_forward):
            grad, layer = grad.to(of[k].weight), of[k]
            (layer(grad) if reads_in_forward else (layer.weight.clone() * grad).sum()).backward()

        def swap(of):
            """An average is evaluated: no trace."""
            kept = values_of(of)
            for p in of.parameters():
                p.data.mul_(0.5)
            with torch.no_grad():
                of[1](torch.zeros_like(of[1].weight))
                of[2](torch.zeros_like(of[2].weight))
            for p, values in zip(of.parameters(), kept):
                p.data.copy_(values)

        def write(of, k, value):
            if is_kept:
                of[k].weight.data.view(-1)[:1].fill_(value)
            else:  # what moves no version counter is seen when its gradient was given back
                with torch.no_grad():
                    of[k].weight.view(-1)[:1].fill_(value)

        def dropped():
            for each in (opt, plain):
                each.zero_grad()

        def backwards(step):
            for k in draw.sample(range(len(here)), draw.choice((4, 5, 5, 5))):
                on_both(backward, k, torch.randn(here[k].weight.shape, generator=torch.Generator().manual_seed(100 * step + k)), draw.random() < 0.8)

        def until_step(step):
            if draw.random() < 0.2:
                backwards(step + 50)
                dropped()
            backwards(step)
            k, change = draw.randrange(len(here)), draw.choice((None, "gradient", "weight", "load") if is_kept else (None, None, "load"))
            if change == "gradient" and here[k].weight.grad is not None:
                on_both(lambda of, k: of[k].weight.grad.data.neg_(), k)
            elif change == "weight":
                synchronize()
                on_both(write, k, 0.25)
            elif change == "load" and step:
                with contextlib.nullcontext() if is_kept else self.assertRaisesRegex(errors.StateError, "given back.*zero_grad"):
                    opt.load_state_dict(opt.state_dict())
            opt.step()

        for step in range(8):
            n_made = opt.stats()["steps"]
            with short_of_memory(draw.choice((0, 0, draw.randrange(1, 12), draw.randrange(1, 60)))), contextlib.suppress(NoMemory):
                until_step(step)
            is_made = opt.stats()["steps"] > n_made
            if is_made:
                plain.step()
            is_late = is_late and not is_made
            dropped()
            change, k = draw.choice(("small", "small", "any", "swap", "read", None)), draw.randrange(len(here))
            if change == "small" and is_kept and is_made:  # an element of a small one counts, though its update is not there yet
                is_late = True
                on_both(write, draw.choice((1, 3, 4)), 0.5 + 0.01 * step)
            elif change in ("small", "any"):
                synchronize()
                on_both(write, k, 0.75)
            elif change == "swap" and is_kept:
                synchronize()
                on_both(swap)
            if not is_late and (change == "read" or step == 7):
                synchronize()
                if not all(torch.equal(p.detach().cpu(), q) for p, q in zip(here.parameters(), there.parameters())):
                    return False
        return all(torch.equal(mine, theirs) for mine, theirs in zip(opt.export().values(), plain.export().values())) or change is not None

    def test_loops(self):
        for seed in range(24):
            self.assertTrue(self.run_loop(seed), seed)

    def test_values_move_to_the_cpu_before_the_step(self):
        """Gradients that travelled count; those that are still on the device are no gradients of what is not there any more."""
        for options, is_refused in (({"fetch": True}, False), ({"overlap": False}, True)):
            here = model().to(VULKAN)
            there = copy.deepcopy(here).cpu()
            opt, plain = self.zenflow(here, model=here, **HYPER, **options), self.zenflow(there, **HYPER)
            for step in range(3):
                for of, each in ((here, opt), (there, plain)):
                    each.zero_grad()
                    for layer in of:
                        layer(torch.full(layer.weight.shape, 1.0 + step, device=layer.weight.device)).backward()
                    if step == 2 and of is here:
                        opt.synchronize()
                        for p in here.parameters():
                            p.data = p.data.cpu()
                    with self.assertRaisesRegex(errors.DeviceError, '"0.weight" is on vulkan:0, the parameter on cpu') \
                            if is_refused and step == 2 and of is here else contextlib.nullcontext():
                        each.step()
            opt.synchronize()
            self.assertEqual(is_refused, any(not torch.equal(p, q) for p, q in zip(here.parameters(), there.parameters())))

    def test_small_ones_travel_together(self):
        """600 of two types, beside a large one: a copy of each pack down and up, a digest of each where it is compared."""
        of = nn.ParameterList([torch.randn(48 + i % 3) for i in range(600)] + [torch.randn(16).bfloat16() for _ in range(8)] + [torch.randn(300, 64)]).to(VULKAN)
        there = copy.deepcopy(of).cpu()
        opt, plain = (self.zenflow(list(each.named_parameters()), **HYPER) for each in (of, there))
        counts = {}

        def counted(name):
            method = getattr(lanes.Side, name)

            def call(lane, *args):
                counts[name] = counts.get(name, 0) + (len(args[0]) if name == "copy_up" else 1)
                return method(lane, *args)
            return mock.patch.object(lanes.Side, name, call)
        for step in range(4):
            counts.clear()
            with counted("copy"), counted("copy_up"), counted("digest"):
                for each in (of, there):
                    for p in each:
                        p.grad = None
                    sum((p.float() * (1 + step) * 0.1 * i).sum() for i, p in enumerate(each)).backward()
                opt.step()
            plain.step()
            CURRENT.run()
            for mine, theirs in zip(of, there):
                self.assertTrue(torch.equal(mine.detach().cpu(), theirs))
        self.assertLessEqual(counts["copy"], 8)
        self.assertLessEqual(counts["copy_up"], 5)
        self.assertLessEqual(counts["digest"], 2 * counts["copy"] + 2 * counts["copy_up"])

    def test_a_capture_is_refused(self):
        of = model().to(VULKAN)
        opt = self.zenflow(of)
        opt.bind()
        for layer in of:
            layer(torch.ones(layer.weight.shape, device=VULKAN)).backward()
        with mock.patch.object(torchvulkan, "is_current_stream_capturing", lambda: True, create=True), \
                self.assertRaisesRegex(errors.StateError, "graph is being captured"):
            opt.step()

    def test_a_device_that_cannot_make_a_digest(self):
        with mock.patch.object(lanes.Side, "digest", side_effect=NotImplementedError("sum of int64")):
            self.assertFalse(lanes.lane_of(VULKAN).is_stream)
            self.check()

    def test_planted_faults(self):
        """Each is seen by the weights."""
        for fault in ("nothing waits", "no event is waited for", "values are not waited for"):
            Stream.faults = (fault,)
            _, is_same = self.run_beside_the_cpu()
            self.assertFalse(is_same, fault)
        Stream.faults = ()
        init = carried.Load.__init__

        def lets_go(load, *args):
            init(load, *args)
            load._travels, load.tensors = None, [t.clone() for t in load.tensors]
        with mock.patch.object(carried.Load, "__init__", lets_go):
            self.assertFalse(self.run_beside_the_cpu(release_gradients=True)[1], "memory given back under a copy")
        with mock.patch.object(lanes.Room, "take", lambda room, tensor: room._block[:tensor.nbytes].view(tensor.dtype)):
            self.assertFalse(self.run_beside_the_cpu()[1], "a place reused too early")

    def test_memory_of_copies(self):
        """Contiguous; where it is page-locked at most an eighth more than is needed."""
        tensors = [torch.empty(100, 7), torch.empty(64, 48).t(), torch.empty(0), torch.empty(()), torch.empty(10, 10)[:, ::2],
                   *(torch.empty(1000, n, dtype=torch.bfloat16) for n in range(100, 2000, 100))]
        blocks, empty, terminal = [], torch.empty, support.Terminal()

        def slow(*shape, pin_memory=False, **options):
            """As long as the line of progress takes to appear, or to be written again."""
            made = empty(*shape, **options)
            if pin_memory:
                blocks.append(made.nbytes)
                terminal.wait()
            return made
        with mock.patch.object(torch, "empty", slow), mock.patch.multiple(progress, LONG=0.01, PERIOD=0.01), contextlib.redirect_stderr(terminal):
            for is_pinned in (True, False):
                found = lanes.host_memory(tensors, is_pinned)
                for mine, of in zip(found, tensors):
                    self.assertEqual((mine.shape, mine.dtype, mine.device.type), (of.shape, of.dtype, "cpu"))
                    mine.fill_(1)
        self.assertTrue(all(mine.is_contiguous() for mine in found))
        self.assertTrue(all(n & (n - 1) == 0 for n in blocks))
        self.assertLess(sum(blocks), 1.125 * sum(of.nbytes for of in tensors) + (1 << 20))
        self.assertRegex(terminal.getvalue(), r"\A\r\033\[Kzfplugin: page-locking host memory, 0 of 36 MiB \.\.\. \d+ s\r.* 3\d of 36 MiB [^\n]*\r\033\[K\Z")
