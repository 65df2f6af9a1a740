# SPDX-License-Identifier: Apache-2.0
"""A host that enqueues its work: what the binding does on CUDA, on the CPU backend's queues, which are as asynchronous.

QueuePlace stands for devices.Cuda: hooks get a queue as their stream and return at once. torch itself computes on this thread,
so a test waits (finish()) where a GPU's kernels would wait in stream order: before it reads weights and before it writes what the
plugin still reads. devices.Cuda is tested on a stub of torch.cuda. What neither shows is listed in the README.
"""
import ctypes as C
import threading
import types
import unittest
from unittest import mock

import support
from support import ALL_SELECTED, SYNCHRONOUS, TorchTest, config, torch

import zfplugin.torch
from zfplugin import _abi, errors, library, places
from zfplugin.torch import devices

WINDOWS = {"zenflow.update_interval": 3, "zenflow.publish_lag": 1, "zenflow.topk_ratio": 0.25, "zenflow.full_warm_up_rounds": 2,
           "zenflow.select_interval": 2}
AT_FETCH = {**WINDOWS, "zenflow.publish_lag": 0}


class QueuePlace:
    """Two queues of zf.cpu/1. use: the one on which this thread enqueues now."""

    is_stream, name, number = True, "cpu", 0

    def __init__(self):
        lib = library.load(support.library_path())
        self.cpu = lib.extension(_abi.EXT_CPU, _abi.CpuExt)
        self.kind, self.device_type = _abi.STREAM_CPU_QUEUE, _abi.DEVICE_CPU
        self.queues, self.handles, self.use = [], [], 0
        self.kept, self.launched, self.n_finished, self.n_given_back = [], [], 0, 0
        for _ in range(2):
            queue, stream = C.c_void_p(), _abi.Stream(struct_size=C.sizeof(_abi.Stream))
            record = errors.new_record()
            assert self.cpu.queue_create(C.byref(queue), C.byref(stream), C.byref(record)) >= 0
            self.queues.append(queue)
            self.handles.append(stream.handle)

    def current(self):
        return self.handles[self.use], 0

    def finish(self):
        self.n_finished += 1
        self.settle()

    def settle(self):
        """The wait that a GPU's kernels would have in stream order: it is not the binding that waits."""
        for queue in self.queues:
            record = errors.new_record()
            assert self.cpu.queue_sync(queue, 60 * 10**9, C.byref(record)) >= 0

    def launch(self, act):
        """On the first queue, behind all that was given to it."""
        self.launched.append(C.CFUNCTYPE(None, C.c_void_p)(lambda _: act()))
        record = errors.new_record()
        assert self.cpu.queue_launch(self.queues[0], C.cast(self.launched[-1], C.c_void_p), None, C.byref(record)) >= 0

    def give_back(self):
        self.n_given_back += 1

    def keep(self, tensor):
        self.kept.append(tensor.data_ptr())

    def close(self):
        for queue in self.queues:
            self.cpu.queue_destroy(queue)


class StreamTest(TorchTest):
    def setUp(self):
        super().setUp()
        self.place = QueuePlace()
        self.addCleanup(self.place.close)  # after the optimizers, which tearDown closes

    def streamed(self, trained, **kwargs):
        """An optimizer whose hooks are in the place's stream order."""
        with mock.patch.object(devices, "of", lambda *_: self.place):
            opt = self.zenflow(trained, **kwargs)
            opt.bind()
        return opt

    def step(self, model, opt, number, *, in_place=False):
        opt.zero_grad(set_to_none=not in_place)
        support.loss_of(model, number).backward()
        opt.step()
        if isinstance(opt, zfplugin.torch.ZenFlow):
            self.place.finish()


class Training(StreamTest):
    def test_out_of_memory_is_tried_again_without_torchs_cache(self):
        call, n_failed = zfplugin.Instance.call, [1]

        def failing(self, slot, *args, doing):
            if doing == "bind" and n_failed[0] > 0:
                n_failed[0] -= 1
                raise errors.OutOfMemoryError("device memory: need 2 MiB, have 1 MiB")
            return call(self, slot, *args, doing=doing)

        for n, n_steps in ((1, 1), (2, None)):
            n_failed[0] = n
            with mock.patch.object(zfplugin.Instance, "call", failing):
                if n_steps is None:
                    with self.assertRaises(errors.OutOfMemoryError):
                        self.streamed(support.mlp())
                else:
                    self.step(*(lambda model: (model, self.streamed(model)))(support.mlp()), 0)
        self.assertEqual(self.place.n_given_back, 2)
        with mock.patch.object(zfplugin.Instance, "call", failing), self.assertRaises(errors.OutOfMemoryError):
            n_failed[0] = 1
            self.zenflow(support.mlp()).bind()  # on the CPU there is nothing to give back
        self.assertEqual(self.place.n_given_back, 2)

    @mock.patch("zfplugin.torch.bucket.BUCKET_PARAMS", 2)  # most are shipped during backward
    def run_beside_the_threads(self, n_steps, settings, act=None, backward=None, **options):
        """The same bits as on the calling thread. act(model, number): after each step; backward(model, number): in place of one backward."""
        ours, theirs = support.twins()
        opt, plain = self.streamed(ours, config=config(settings), **options), self.zenflow(theirs, config=config(settings))
        backward = backward or (lambda model, number: support.loss_of(model, number).backward())
        for number in range(n_steps):
            for model, its in ((ours, opt), (theirs, plain)):
                its.zero_grad(set_to_none=number % 2 == 0)
                backward(model, number)
                its.step()
                self.place.finish()
                if act:
                    act(model, number)
            self.assert_same(ours, theirs, 0)
        self.assert_same(ours, theirs, 0, flushed=(opt, plain))

    def test_windows(self):
        for settings, options in ((WINDOWS, {}), (WINDOWS, {"overlap": True}), (WINDOWS, {"release_gradients": True}),
                                  (SYNCHRONOUS, {"release_gradients": True}), (ALL_SELECTED, {"overlap": False})):
            self.run_beside_the_threads(14, settings, **options)

    def test_gradients_changed_after_backward(self):
        def backward(model, number):
            support.loss_of(model, number).backward()
            model[0].weight.grad.data.mul_(0.25)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        self.run_beside_the_threads(9, WINDOWS, backward=backward)

    def test_operations_in_place_are_noticed(self):
        def backward(model, number):
            support.loss_of(model, number).backward()
            for layer in (0, -1):
                for _ in range(1 + number % 2):
                    model[layer].weight.grad.mul_(0.5)
        self.run_beside_the_threads(9, WINDOWS, backward=backward, overlap=True)

    def test_a_norm_of_this_thread_is_refused(self):
        model, _ = support.twins()
        opt = self.streamed(model, config=config(WINDOWS))
        hypers = [zfplugin.Hyper(lr=1e-3)]
        with self.assertRaisesRegex(errors.ArgumentError, "host_norm"):
            opt._instance.step(hypers, host_norm=1.0)
        opt._instance.step(hypers)

    def test_backward_on_another_stream(self):
        ours, theirs = support.twins()
        opt = self.streamed(ours, config=config(WINDOWS), overlap=True)
        plain = self.zenflow(theirs, config=config(WINDOWS))
        for number in range(12):
            self.step(theirs, plain, number)
            opt.zero_grad()
            self.place.use = number % 2
            loss = support.loss_of(ours, number)
            handle = ours[3].weight.register_post_accumulate_grad_hook(lambda _: setattr(self.place, "use", 1 - self.place.use))
            loss.backward()  # a part of the gradients on each
            handle.remove()
            self.place.finish()  # as autograd makes the stream of now wait for its own
            self.place.use = 0
            opt.step()
            self.place.finish()
            self.assert_same(ours, theirs, 0)


class Asynchrony(StreamTest):
    def test_what_is_no_hook_finds_the_hosts_work_done(self):
        model = support.mlp()
        opt = self.streamed(model, config=config(WINDOWS))
        self.step(model, opt, 0)
        state = opt.state_dict()
        for act in (opt.flush, opt.drain, opt.export, opt.state_dict, lambda: opt.load_state_dict(state), opt.synchronize,
                    lambda: opt._instance.written([0])):
            before = self.place.n_finished
            act()
            self.assertEqual(self.place.n_finished > before, act != opt.synchronize)  # a fetch is a hook

    def shipped_early(self, opt, model, number):
        """Whether gradients travelled during the backward of this step."""
        opt.zero_grad()
        support.loss_of(model, number).backward()
        shipped = sum(of.held is not None for of in opt._binding.feed.gradients)
        opt.step()
        self.place.finish()
        return shipped > 0

    def test_gradients_travel_early_where_that_was_said(self):
        for overlap in (None, True):
            model = support.mlp()
            opt = self.streamed(model, config=config(WINDOWS), overlap=overlap)
            self.assertEqual([self.shipped_early(opt, model, number) for number in range(5)], 5 * [bool(overlap)])

    def test_a_plain_loop_waits_for_nothing(self):
        """Neither for the device nor for the host's work, if version counters alone tell of edits."""
        for options in ({}, {"overlap": True}, {"release_gradients": True}):
            for is_fetched in (False, True):
                model = support.mlp()
                opt = self.streamed(model, config=config(AT_FETCH, {"zenflow.on_overwrite": "off"}), model=model, fetch=is_fetched, **options)
                for module in model.modules():
                    module.register_forward_pre_hook(lambda *_: self.place.settle())
                waits, has_waited, has_returned = [], [], threading.Event()
                for number in range(12):
                    before = self.place.n_finished, opt.stats()["host_waits"]
                    opt.zero_grad()
                    loss = support.loss_of(model, number)
                    if number > 3:
                        has_returned.clear()
                        self.place.launch(lambda: has_waited.append(not has_returned.wait(20)))  # until then the device stands still
                    loss.backward()
                    opt.step()
                    has_returned.set()
                    waits.append((self.place.n_finished - before[0], opt.stats()["host_waits"] - before[1]))
                    self.place.settle()
                self.assertEqual(set(waits[4:]), {(0, 0)}, options)
                self.assertFalse(any(has_waited), options)

    def test_one_look_serves_all_fetches_of_a_pass(self):
        ours = support.mlp()
        opt = self.streamed(ours, config=config(AT_FETCH), model=ours, fetch=True)
        for module in ours:
            module.register_forward_pre_hook(lambda *_: self.place.finish())
        for number in range(8):
            self.step(ours, opt, number)
        before = self.place.n_finished
        with mock.patch.object(opt._binding.table, "find_edited", wraps=opt._binding.table.find_edited) as look:
            support.loss_of(ours, 100)
        self.assertEqual(look.call_count, 1)
        self.assertGreater(self.place.n_finished, before)


class EditedUnseen(StreamTest):
    """Edits that move no version counter."""

    def test_weights(self):
        """Each counts as on the calling thread."""
        ours, theirs = support.twins()
        opt, plain = self.streamed(ours, config=config(WINDOWS)), self.zenflow(theirs, config=config(WINDOWS))
        for number in range(40):
            for model, its in ((ours, opt), (theirs, plain)):
                self.step(model, its, number)
                self.place.settle()
                if number in (5, 30):
                    model[0].weight.data.mul_(0.5)
        self.assert_same(ours, theirs, 0, flushed=(opt, plain))

    def test_gradients(self):
        """They are read at step, where every change counts."""
        ours, theirs = support.twins()
        opt, plain = self.streamed(ours, config=config(SYNCHRONOUS)), self.zenflow(theirs, config=config(SYNCHRONOUS))
        for number in range(20):
            for model, its in ((ours, opt), (theirs, plain)):
                its.zero_grad()
                support.loss_of(model, number).backward()
                model[0].weight.grad.data.neg_()
                its.step()
                self.place.settle()
        self.assert_same(ours, theirs, 0)


class Fetching(StreamTest):
    def open(self, settings=AT_FETCH):
        ours, theirs = support.twins()
        opt = self.streamed(ours, config=config(settings), model=ours, fetch=True)
        plain = self.zenflow(theirs, config=config(settings), model=theirs)
        for module in ours.modules():  # behind the optimizer's own: kernels wait for what was fetched
            module.register_forward_pre_hook(lambda *_: self.place.finish())
        return ours, theirs, opt, plain

    def test_an_average_is_swapped_in_for_an_evaluation(self):
        ours, theirs, opt, plain = self.open()
        for number in range(14):
            self.step(ours, opt, number)
            self.step(theirs, plain, number)
            if number in (4, 9):
                losses = []
                opt.synchronize()
                self.place.finish()
                for model in (ours, theirs):
                    kept = [p.detach().clone() for p in model.parameters()]
                    for p in model.parameters():
                        p.data.fill_(0.125)
                    with torch.no_grad():
                        losses.append(support.loss_of(model, 50).item())
                    for p, values in zip(model.parameters(), kept):
                        self.assertTrue(bool((p == 0.125).all()))
                        p.data.copy_(values)
                self.assertEqual(*losses)
        self.assert_same(ours, theirs, 0, flushed=(opt, plain))


class States(StreamTest):
    def test_the_optimizer_is_made_before_the_model_is_moved(self):
        ours, theirs = support.twins()
        opt = self.zenflow(ours)  # on the CPU's thread
        with mock.patch.object(devices, "of", lambda *_: self.place):
            opt.bind()
        self.assertIs(opt._instance.place, self.place)
        reference = torch.optim.AdamW(theirs.parameters())
        for number in range(5):
            self.step(ours, opt, number)
            self.step(theirs, reference, number)
        self.assert_same(ours, theirs)


class StubStream:
    def __init__(self, handle):
        self.cuda_stream, self.n_waits = handle, 0

    def synchronize(self):
        self.n_waits += 1


class CudaPlace(unittest.TestCase):
    """devices.Cuda, on a stub of torch.cuda."""

    def stub(self, streams, is_capturing=False):
        self.addCleanup(mock.patch.stopall)
        mock.patch.object(torch.cuda, "current_stream", lambda number: streams[number]).start()
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: is_capturing).start()

    def test_the_stream_of_now(self):
        streams = {0: StubStream(0), 1: StubStream(0x7F00)}
        self.stub(streams)
        self.assertEqual(devices.Cuda(0).current(), (0, 0))
        self.assertEqual(devices.Cuda(1).current(), (0x7F00, 0))
        stream = _abi.Stream()
        places.tell(stream, devices.Cuda(1).current())
        self.assertEqual((stream.handle, stream.flags), (0x7F00, 0))
        devices.Cuda(1).finish()
        self.assertEqual((streams[0].n_waits, streams[1].n_waits), (0, 1))

    def test_capture_is_said(self):
        self.stub({0: StubStream(8)}, is_capturing=True)
        self.assertEqual(devices.Cuda(0).current(), (8, _abi.STREAM_FLAG_CAPTURING))

    def test_what_torch_does_not_use_is_given_back(self):
        with mock.patch.object(torch.cuda, "synchronize") as wait, mock.patch.object(torch.cuda, "empty_cache") as empty:
            devices.Cuda(1).give_back()
        wait.assert_called_once_with(1)
        empty.assert_called_once_with()

    def test_memory_is_kept_for_the_stream_of_now(self):
        streams = {1: StubStream(0x7F00)}
        self.stub(streams)
        tensor = mock.Mock()
        devices.Cuda(1).keep(tensor)
        tensor.record_stream.assert_called_once_with(streams[1])

    def test_of_parameters(self):
        def param(device):
            return types.SimpleNamespace(device=torch.device(device))
        self.assertIs(devices.of([], {}), places.HOST_THREAD)
        self.assertIs(devices.of([param("cpu")], {}), places.HOST_THREAD)
        self.assertIs(devices.of([param("meta")], {}), places.HOST_THREAD)
        self.assertIs(devices.of([param("cuda:3")], {}), places.HOST_THREAD)  # torch carries
        found = devices.of([param("cuda:3")], {}, "cuda")
        self.assertEqual((found.kind, found.device_type, found.number, found.name),
                         (_abi.STREAM_CUDA, _abi.DEVICE_CUDA, 3, "cuda:3"))
        self.assertEqual(devices.of([param("cuda")], {}, "cuda").number, 0)
        there = param("xla:0")
        with self.assertRaisesRegex(errors.DeviceError, '"w" is on xla:0'):
            devices.of([there], {id(there): "w"}, "cuda")
        with mock.patch.object(torch.version, "hip", "6.0"), self.assertRaisesRegex(errors.DeviceError, "ROCm"):
            devices.of([param("cuda:0")], {}, "cuda")

    def test_parameters_elsewhere_are_named(self):
        model = support.mlp()
        opt = support.zenflow(model)
        self.addCleanup(opt.close)
        opt._instance.place = devices.Cuda(1)
        opt._place = devices.Cuda(1)
        with mock.patch.object(devices, "of", lambda *_: opt._place), \
                self.assertRaisesRegex(errors.DeviceError, '"0.weight" is on cpu, what is trained with it on cuda:1'):
            opt.bind()
