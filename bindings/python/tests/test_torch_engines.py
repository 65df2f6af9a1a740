# SPDX-License-Identifier: Apache-2.0
"""The optimizer of engines that keep weights in host memory themselves: stepped on a thread of its own, over a part of the model, with
gradients in buffers that stay, one optimizer for each parameter. Beside torch's AdamW."""
import collections
import gc
import itertools
import os
import queue
import random
import threading

import support
from support import HYPER, TorchTest, loss_of, mlp, torch, twins


def workers():
    """Threads of this process that update for the plugin."""
    names = collections.Counter()
    for number in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{number}/comm", encoding="ascii") as file:
                names[file.read().strip()] += 1
        except FileNotFoundError:
            pass  # it ended meanwhile
    return names["zf-worker"]


class OptimizerThread:
    """Does what it is given, in order, on a thread of its own."""

    def __init__(self):
        self._given, self._done = queue.Queue(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        for act in iter(self._given.get, None):
            act()

    def launch(self, act):
        self._given.put(act)

    def wait(self):
        self._done.clear()
        self.launch(self._done.set)
        assert self._done.wait(60)

    def end(self):
        self.launch(None)
        self._thread.join()


class Engines(TorchTest):
    def test_tensors_of_every_size(self):
        """None, one, and many elements, of one axis and of three, in any order; numbers as tensors; maximized; decay of both kinds."""
        numbers = (0.01, (0.9, 0.999)), (torch.tensor(0.001), (torch.tensor(0.8), torch.tensor(0.95)))
        for (lr, betas), decay, maximize, rule in itertools.product(numbers, (0.0, 0.01), (False, True), ("adam", "adamw")):
            ours = [torch.randn(n, n + 1, n + 2, requires_grad=True) for n in range(1, 9)] + \
                [torch.randn(n, requires_grad=True) for n in (*range(70), 255, 256, 257, 1023, 1024)]
            random.Random(1).shuffle(ours)
            theirs = [p.detach().clone().requires_grad_() for p in ours]
            hyper = {"lr": lr, "betas": betas, "eps": 1e-4, "weight_decay": decay, "maximize": maximize}
            opt = self.zenflow([(f"p{i}", p) for i, p in enumerate(ours)], rule=rule, **hyper)
            reference = torch.optim.Adam(theirs, decoupled_weight_decay=rule == "adamw", **hyper)
            for _ in range(6):
                for p, q in zip(ours, theirs):
                    p.grad = torch.randn_like(p)
                    q.grad = p.grad.clone()
                opt.step()
                reference.step()
            for p, q in zip(ours, theirs):
                torch.testing.assert_close(p, q, rtol=0, atol=1e-6)

    def test_on_a_thread_of_its_own_over_a_part(self):
        """The model trains in bfloat16 copies; two optimizers, of half of the fp32 weights each, step on one thread behind them. One step late
        or not, as torch's AdamW on the same thread."""
        for is_late in (False, True):
            runs = []
            for of_torch in (False, True):
                model = mlp(dtype=torch.bfloat16)
                masters = [p.detach().float().requires_grad_() for p in model.parameters()]
                halves = [[(f"p{i}", p) for i, p in enumerate(masters)][k::2] for k in range(2)]
                opts = [torch.optim.AdamW([p for _, p in half], **HYPER) if of_torch else self.zenflow(half, **HYPER) for half in halves]
                thread = OptimizerThread()
                self.addCleanup(thread.end)

                def update(grads, masters=masters, opts=opts):
                    for p, grad in zip(masters, grads):
                        p.grad = grad
                    for opt in opts:
                        opt.step()
                        opt.zero_grad()

                for step in range(12):
                    model.zero_grad()
                    loss_of(model, step, torch.bfloat16).backward()
                    if is_late:
                        thread.wait()  # for the step before
                    thread.launch(lambda grads=[p.grad.float() for p in model.parameters()], update=update: update(grads))
                    if not is_late:
                        thread.wait()
                        with torch.no_grad():
                            for p, master in zip(model.parameters(), masters):
                                p.copy_(master)
                thread.wait()
                runs.append(masters)
            for p, q in zip(*runs):
                torch.testing.assert_close(p, q, rtol=0, atol=support.BOUND)

    def test_gradients_in_buffers_that_stay(self):
        """Weights and gradients in memory that processes share; gradients are added there, and zeroed there."""
        ours, theirs = twins()
        opt, reference = self.zenflow(ours, **HYPER), torch.optim.AdamW(theirs.parameters(), **HYPER)
        for model, its in ((ours, opt), (theirs, reference)):
            model.share_memory()
            buffers = [torch.zeros_like(p).share_memory_() for p in model.parameters()]
            for step in range(10):
                for k in range(2):
                    loss_of(model, 2 * step + k).backward()
                    for p, buffer in zip(model.parameters(), buffers):
                        buffer.add_(p.grad)
                        p.grad = None
                for p, buffer in zip(model.parameters(), buffers):
                    p.grad = buffer
                its.step()
                for p, buffer in zip(model.parameters(), buffers):
                    buffer.zero_()
                    p.grad = None
        self.assert_same(ours, theirs)

    def test_one_optimizer_per_parameter(self):
        """They share one team of workers, which ends with the last of them; a fork has one of its own."""
        gc.collect()
        self.assertEqual(workers(), 0)
        ours, theirs = twins()
        opts = [self.zenflow([named], **HYPER, overlap=i % 2 == 0) for i, named in enumerate(ours.named_parameters())]
        opts[0].bind()
        n_workers, reference = workers(), torch.optim.AdamW(theirs.parameters(), **HYPER)
        self.assertGreater(n_workers, 0)

        def step(number):
            for model, its in ((ours, opts), (theirs, [reference])):
                model.zero_grad()
                loss_of(model, number).backward()
                for opt in its:
                    opt.step()

        for number in range(8):
            step(number)
            self.assertEqual(workers(), n_workers)
        self.assert_same(ours, theirs)

        def in_the_fork():
            model, opt = self.alone()
            support.plain_step(model, opt, 0)
            assert workers() == n_workers
            opt.close()
        status, said = support.in_a_fork(in_the_fork)
        self.assertEqual(status, 0, said)
        for opt in opts[1:]:
            opt.close()
        self.assertEqual(workers(), n_workers)
        opts[0].step()
        opts[0].close()
        self.assertEqual(workers(), 0)
