# SPDX-License-Identifier: Apache-2.0
"""The framework-neutral instance, on plain array.array memory: no torch, no numpy."""
import array
import contextlib
import ctypes
import gc
import json
import logging
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path
from unittest import mock

import support
import zfplugin
from zfplugin import _abi, progress, state, tensors


def floats(*values):
    return array.array("f", values)


def adamw(w, grads, lr, betas=(0.9, 0.999), eps=1e-8, decay=0.0):
    """Weights after these gradients, in double."""
    m = v = 0.0
    for n, g in enumerate(grads, 1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        w = w * (1 - lr * decay) - lr / (1 - betas[0] ** n) * m / (math.sqrt(v / (1 - betas[1] ** n)) + eps)
    return w


class InstanceTest(unittest.TestCase):
    def make(self, *parts):
        instance = zfplugin.Instance(support.config(*parts))
        self.addCleanup(instance.close)
        return instance


class Bind(InstanceTest):
    def test_one_that_takes_long_is_shown_on_a_terminal(self):
        """It is as slow as the line takes to appear. One that is over before shows nothing."""
        call = zfplugin.Instance.call
        for is_long in (True, False):
            terminal = support.Terminal()

            def slow(instance, function, *args, doing, is_long=is_long, terminal=terminal, **options):
                if doing == "bind" and is_long:
                    terminal.wait()
                return call(instance, function, *args, doing=doing, **options)
            with mock.patch.multiple(progress, LONG=0.01 if is_long else 1e9, PERIOD=0.01), mock.patch.object(zfplugin.Instance, "call", slow), \
                    contextlib.redirect_stderr(terminal):
                self.make(support.SYNCHRONOUS).bind([zfplugin.Param("a", floats(1))])
            self.assertRegex(terminal.getvalue(), r"\A(\r\033\[Kzfplugin: taking memory for masters and moments ... \d+ s)+\r\033\[K\Z" if is_long else r"\A\Z")

    def test_matrices_of_a_tied_parameter_are_its_owners(self):
        w, g = memoryview(floats(*[1.0] * 8)).cast("B").cast("f", (2, 4)), memoryview(floats(*range(8))).cast("B").cast("f", (2, 4))
        opt = self.make(support.SYNCHRONOUS)
        opt.bind([zfplugin.Param("owner", w, n_batch_axes=1), zfplugin.Param("tied", w, tied_to=0)])
        view = tensors.view(g, "g")
        item = _abi.GradItem(struct_size=ctypes.sizeof(_abi.GradItem), id=1, flags=_abi.GRAD_TOTAL | _abi.GRAD_LAST, tensor=view.address,
                             n_batches=1)
        opt.call(opt.table.grads_ready, ctypes.byref(item), 1, ctypes.sizeof(item), ctypes.byref(opt.stream), None, doing="grads_ready")
        with self.assertRaisesRegex(zfplugin.ZfError, r"0\.\.0"):  # one of two: the step lacks the other
            opt.step([zfplugin.Hyper(lr=0.1)], wait=True)


class WholeMatrices(InstanceTest):
    RULES = (zfplugin.MatrixRule("reversed", 1), "adamw")

    def bound(self, update):
        instance, arrays = self.make(support.SYNCHRONOUS), [floats(1, 2, 3), floats(1, 1)]
        instance.update_matrices = update
        instance.bind([zfplugin.Param("a", arrays[0]), zfplugin.Param("b", arrays[1], group=1)], self.RULES)
        return instance, arrays

    def test_a_function_gets_them_whole(self):
        seen = []

        def update(updates):
            for of in updates:
                w, m, g = (ctypes.cast(at, ctypes.POINTER(ctypes.c_float)) for at in (of.w, of.m, of.g))
                seen.append((of.param, of.rows, of.n, of.lr, m[0]))
                for i in range(of.rows):
                    w[i] -= of.lr * g[of.rows - 1 - i]
                    m[i] += 1
        instance, (a, b) = self.bound(update)
        for _ in range(2):
            instance.grads_ready([(0, floats(1, 2, 4)), (1, floats(1, 1))])
            instance.step([zfplugin.Hyper(0.5), zfplugin.Hyper(0.1)])
        self.assertEqual((list(a), seen), ([-3, 0, 2], [(0, 3, 1, 0.5, 0), (0, 3, 2, 0.5, 1)]))
        self.assertAlmostEqual(b[0], adamw(1, [1, 1], 0.1), 6)

    def test_what_it_raises_is_the_cause(self):
        def update(_):
            raise KeyError("none")
        instance, _ = self.bound(update)
        instance.grads_ready([(0, floats(1, 2, 4))])
        with self.assertRaises(zfplugin.ZfError) as caught:
            instance.step([zfplugin.Hyper(0.5), zfplugin.Hyper(0.1)])
        self.assertIsInstance(caught.exception.__cause__, KeyError)


class Training(InstanceTest):
    def test_a_newer_instance_takes_over(self):
        older, newer, other = (self.make(support.SYNCHRONOUS) for _ in range(3))
        a, b = floats(1, 2), floats(-1)
        older.bind([zfplugin.Param("a", a), zfplugin.Param("b", b)])
        other.bind([zfplugin.Param("c", floats(3))])
        with self.assertLogs("zfplugin", logging.WARNING) as logged:
            newer.bind([zfplugin.Param("b", b), zfplugin.Param("a", a, frozen=True)])
        self.assertIn("1 parameters are taken over", logged.output[0])
        self.assertTrue(older.is_closed)
        self.assertFalse(other.is_closed)
        newer.grads_ready([(0, floats(0.5))])
        self.assertTrue(newer.step([zfplugin.Hyper(1e-2)]).applied)

    def test_what_bind_says_adds_up(self):
        """The parts of what host memory holds per parameter; and on a CPU there is no device."""
        opt = zfplugin.Instance()
        self.addCleanup(opt.close)
        with self.assertLogs("zfplugin", logging.INFO) as said:
            opt.bind([zfplugin.Param("w", array.array("f", bytes(4 << 20)))])
        (line,) = [line for line in said.output if "bytes per parameter" in line]
        whole, parts = re.search(r"\(([0-9.]+) bytes per parameter: (.*?)\)", line).groups()
        self.assertAlmostEqual(float(whole), sum(float(part.split()[-1]) for part in parts.split(", ")), delta=0.03)
        self.assertRegex(line, "as a device's, in host memory too, [0-9.]+ MiB")

    def test_where_the_time_of_a_step_went(self):
        opt = self.make(support.SYNCHRONOUS)
        opt.bind([zfplugin.Param("a", floats(1, 2))])
        self.assertIsNone(opt.step_record())
        for bad in (False, True, False):
            opt.grads_ready([(0, floats(math.inf if bad else 0.5, 1))])
            report = opt.step([zfplugin.Hyper(1e-2)])
            record = opt.step_record()
            self.assertEqual((record["step"], record["applied"], record["skip_reason"]),
                             (report.step, not bad, "nonfinite" if bad else ""))
            self.assertEqual(record["clip_factor"], report.clip_factor)
            self.assertTrue(record["is_finished"] and record["step_ns"] > record["host_wait_ns"] >= 0)  # 0: the device was faster
        self.assertEqual([opt.step_record(step) and opt.step_record(step)["step"] for step in (1, 2, 3, 4)], [1, 2, 3, None])
        self.assertEqual(sum(opt.step_record(step)["down_grad_nbytes"] for step in (1, 2, 3)), opt.stats()["down_grad_nbytes"])

    def test_two_groups_follow_adamw(self):
        opt = self.make(support.SYNCHRONOUS)
        a, b = floats(1, 2, 3, 4), floats(-1)
        self.assertEqual(opt.bind([zfplugin.Param("a", a), zfplugin.Param("b", b, group=1)]), [0, 1])
        grads = [0.5, -0.25, 2.0, 0.125, -1.5]
        for g in grads:
            opt.grads_ready([(0, floats(g, -g, 2 * g, g)), (1, floats(g))])
            report = opt.step([zfplugin.Hyper(1e-2), zfplugin.Hyper(1e-1, (0.8, 0.9), 1e-6, 0.1)])
            self.assertTrue(report.applied)
        for start, factor, now in zip((1, 2, 3, 4), (1, -1, 2, 1), a):
            self.assertAlmostEqual(now, adamw(start, [factor * g for g in grads], 1e-2), places=5)
        self.assertAlmostEqual(b[0], adamw(-1, grads, 1e-1, (0.8, 0.9), 1e-6, 0.1), places=5)
        self.assertEqual(report.n_present, 2)
        self.assertEqual(opt.stats()["steps_applied"], 5)

    def test_export_is_what_flush_gives(self):
        opt = self.make({"zenflow.mode": "windows", "zenflow.full_warm_up_rounds": 1, "zenflow.topk_ratio": 0.25})
        w = floats(*range(1, 17))
        opt.bind([zfplugin.Param("w", memoryview(w).cast("B").cast("f", (4, 4)))])
        for step in range(7):
            opt.grads_ready([(0, memoryview(floats(*[step - i for i in range(16)])).cast("B").cast("f", (4, 4)))])
            opt.step([zfplugin.Hyper(1e-2)])
        out, before = floats(*[0] * 16), w[:]
        opt.export({0: memoryview(out).cast("B").cast("f", (4, 4))})
        self.assertEqual(w, before)
        opt.flush()
        self.assertEqual(w, out)
        self.assertNotEqual(w, before)

    def test_errors_have_the_class_and_the_text_of_the_plugin(self):
        opt = self.make()
        with self.assertRaises(zfplugin.StateError):
            opt.step([zfplugin.Hyper(0.1)])
        opt.bind([zfplugin.Param("weight", floats(1, 2))])
        with self.assertRaisesRegex(zfplugin.ShapeError, "weight") as caught:
            opt.grads_ready([(0, floats(1, 2, 3))])
        self.assertEqual((caught.exception.status, caught.exception.scope), (_abi.ERR_SHAPE, "call"))
        with self.assertRaises(zfplugin.ParamError):
            opt.grads_ready([(7, floats(1, 2))])
        with self.assertRaises(zfplugin.ArgumentError):
            opt.step([zfplugin.Hyper(float("nan"))])

    def test_read_only_memory_is_refused(self):
        with self.assertRaises(zfplugin.ArgumentError):
            self.make().bind([zfplugin.Param("w", memoryview(bytes(8)).cast("f"))])

    def test_closed_and_pickled(self):
        opt = self.make()
        with self.assertRaises(TypeError):
            pickle.dumps(opt)
        opt.close()
        opt.close()
        with self.assertRaisesRegex(zfplugin.StateError, "closed"):
            opt.poll()

    def test_an_interrupt_while_the_plugin_logs_is_raised(self):
        log, came = logging.getLogger("zf-test-interrupt"), []
        log.setLevel(logging.INFO)

        class Interrupts(logging.Handler):
            def emit(self, record):
                came.append(record.getMessage())
                signal.raise_signal(signal.SIGINT)

        log.addHandler(Interrupts())
        first, second = floats(1, 2), floats(1, 2)
        self.addCleanup(log.handlers.clear)
        opt = zfplugin.Instance(log=log)
        self.addCleanup(opt.close)
        with self.assertRaises(KeyboardInterrupt):
            opt.bind([zfplugin.Param("a", first)])
        self.assertIn("ZenFlow", came[-1])
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGINT, lambda *_: came.append("handled"))  # a program's own: behind the call, once
        again = zfplugin.Instance(log=log)
        self.addCleanup(again.close)
        again.bind([zfplugin.Param("b", second)])
        self.assertEqual(came[-1], "handled")
        self.assertIn("ZenFlow", came[-2])

    def test_messages_reach_logging(self):
        log = logging.getLogger("zf-test")
        with self.assertLogs(log, logging.INFO) as caught:
            opt = zfplugin.Instance(log=log)
            opt.bind([zfplugin.Param("w", floats(1, 2))])
            opt.close()
        self.assertTrue(any("2 elements" in line for line in caught.output), caught.output)

    def test_dropping_the_object_ends_its_threads(self):
        before = len(os.listdir("/proc/self/task"))
        opt = zfplugin.Instance(support.config())
        opt.bind([zfplugin.Param("w", floats(1))])
        self.assertGreater(len(os.listdir("/proc/self/task")), before)
        del opt
        gc.collect()
        self.assertEqual(len(os.listdir("/proc/self/task")), before)

    def test_a_forked_child_gets_an_error_and_the_parent_goes_on(self):
        opt = self.make(support.SYNCHRONOUS)
        w = floats(1)
        opt.bind([zfplugin.Param("w", w)])
        opt.grads_ready([(0, floats(1))])

        def step():
            with self.assertRaises(zfplugin.ForkedError):
                opt.step([zfplugin.Hyper(0.1)])

        self.assertEqual(support.in_a_fork(step)[0], 0)
        self.assertTrue(opt.step([zfplugin.Hyper(0.1)]).applied)


class Written(InstanceTest):
    def test_what_the_plugin_did_not_put_there(self):
        opt = self.make(support.SYNCHRONOUS, {"zenflow.on_overwrite": "ask"})
        w, b = floats(*range(50)), floats(1)
        opt.bind([zfplugin.Param("w", w, home="host"), zfplugin.Param("b", b)])
        opt.grads_ready([(0, floats(*[0.5] * 50)), (1, floats(2))])
        opt.step([zfplugin.Hyper(0.1)])
        self.assertEqual(opt.written([0, 1]), [])
        was, w[49] = w[49], 7
        self.assertEqual([opt.written(ids) for ids in ([0, 1], [1], [])], [[0], [], []])
        w[49] = was
        self.assertEqual(opt.written([1, 0]), [])
        b[0] = 3  # of this every update sees what was written, and nothing is told
        self.assertEqual(opt.written([0, 1]), [])
        with self.assertRaisesRegex(zfplugin.ParamError, "unknown parameter id 5"):
            opt.written([5])
        with mock.patch.object(opt.lib, "extension", lambda *_: None), \
                self.assertRaisesRegex(zfplugin.UnsupportedFieldError, "zf.digest/0"):
            opt.written([0])
        opt.close()
        with self.assertRaisesRegex(zfplugin.StateError, "closed"):
            opt.written([0])


class Digests(InstanceTest):
    def setUp(self):
        self.opt = self.make()

    def test_one_changed_element_is_seen(self):
        w, other = floats(*range(50)), array.array("d", [1.0, 2.0])
        before = self.opt.digests([w, other])
        self.assertEqual(self.opt.digests((w[:], other)), before)
        other[1] = -2.0
        self.assertEqual(self.opt.digests([w]), before[:1])
        self.assertNotEqual(self.opt.digests([other]), before[1:])
        self.assertEqual(self.opt.digests([]), [])

    def test_what_is_refused(self):
        with self.assertRaisesRegex(zfplugin.ArgumentError, "tensor 1"):
            self.opt.digests([floats(1), "text"])
        wide = tensors.view(floats(1, 2))
        wide.struct.nbytes = 4
        with self.assertRaisesRegex(zfplugin.ShapeError, r"tensors\[1\]"):
            self.opt.digests([floats(1), wide])
        self.opt.close()
        with self.assertRaises(zfplugin.StateError):
            self.opt.digests([floats(1)])


class Descriptors(unittest.TestCase):
    @support.needs("numpy")
    def test_a_dlpack_producer(self):
        import numpy

        class Producer:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **kwargs):
                return self.array.__dlpack__(**kwargs)

        array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)[:, ::2]
        view = tensors.view(Producer(array))
        dl = view.struct.dl
        self.assertEqual((view.shape, dl.dtype.code, dl.dtype.bits), ((3, 2), _abi.DTYPE_CODE_FLOAT, 32))
        self.assertEqual(dl.data, array.ctypes.data)
        self.assertEqual(list(view._strides), [4, 2])
        self.assertEqual(view.struct.nbytes, 4 * 11)
        self.assertIsNone(tensors.view(numpy.zeros((3, 4), numpy.float32)).struct.dl.strides)  # row-major, as export() needs it

    def test_what_is_no_tensor(self):
        with self.assertRaisesRegex(zfplugin.ArgumentError, "weights"):
            tensors.view([1.0, 2.0], "weights")


class OfVersion1(InstanceTest):
    """python -m zfplugin.convert, of checkpoints as the plugin wrote them before there was one kind."""

    SHAPES = {"w": (3, 4), "stack": (2, 2, 3), "b": (4,)}

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def bound(self, seed=0.0):
        weights = {name: floats(*(seed + i / 8 for i in range(math.prod(shape)))) for name, shape in self.SHAPES.items()}
        instance = self.make(support.SYNCHRONOUS)
        instance.bind([zfplugin.Param(name, memoryview(values).cast("B").cast("f", self.SHAPES[name]), n_batch_axes=int(name == "stack"))
                       for name, values in weights.items()])
        return weights, instance

    def train(self, instance, steps):
        for step in steps:
            instance.grads_ready([(i, memoryview(floats(*((step + i + k) % 5 - 2 for k in range(math.prod(shape))))).cast("B").cast("f", shape))
                                  for i, shape in enumerate(self.SHAPES.values())])
            instance.step([zfplugin.Hyper(1e-2)])

    def as_version_1(self, folder):
        """The index that the plugin of version 1 would have written; its files' headers are no matter."""
        blobs = {path.name: path.read_bytes() for path in folder.iterdir()}
        index = state.read_index(blobs)
        for param in index["params"]:
            param["tensors"] = {array: {"file": param["file"], "offset": at, "nbytes": n, "crc32": crc}
                                for array, (at, n, crc) in param["tensors"].items()}
            param["matrices"] = [{}] * (math.prod(param["shape"][:param["batch_axes"]]) * param["blocks"])
            param["n_batch_axes"] = param.pop("batch_axes")
        clocks = {"step": index["submitted"], "steps_before": 0, "steps_applied": index["applied"], "steps_skipped": index["skipped"]}
        old = {"format": "zf.state", "version": 1, **{key: index[key] for key in ("plugin", "note", "config", "is_mean", "params")},
               "clocks": clocks, "rules": [{"rule": rule["rule"]} for rule in index["rules"]], "files": [{"name": f["name"]} for f in index["files"]]}
        self.write(folder, old)
        return old

    def write(self, folder, index):
        text = json.dumps({key: value for key, value in index.items() if key not in ("format", "version")})[1:]
        (folder / state.INDEX).write_text('{"format":"zf.state","version":1,"crc32":"%08x",\n%s\n' % (zlib.crc32(text.encode()), text))

    def convert(self, old):
        return subprocess.run([sys.executable, "-m", "zfplugin.convert", old, self.folder / "new"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(Path(zfplugin.__file__).parent.parent)})

    def test_goes_on_to_the_bit(self):
        ours, instance = self.bound()
        self.train(instance, range(4))
        state.save(instance, self.folder / "old", note="epoch 3")
        self.as_version_1(self.folder / "old")
        theirs, other = self.bound(seed=5.0)
        with self.assertRaisesRegex(zfplugin.CheckpointError, "of version 1.*python -m zfplugin.convert"):
            state.load(other, self.folder / "old")
        done = self.convert(self.folder / "old")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        state.load(other, self.folder / "new")
        self.assertEqual(ours, theirs)
        for each in (instance, other):
            self.train(each, range(4, 8))
        self.assertEqual(ours, theirs)

    def test_open_windows_are_refused(self):
        _, instance = self.bound()
        self.train(instance, range(2))
        for kind in ("slot.1", "publish.0"):
            state.save(instance, self.folder / "old")
            old = self.as_version_1(self.folder / "old")
            old["params"][1]["tensors"][kind] = {"file": 0, "offset": 0, "nbytes": 4, "crc32": 0}
            self.write(self.folder / "old", old)
            done = self.convert(self.folder / "old")
            self.assertEqual(done.returncode, 1)
            self.assertIn("windows are open in it, or it is not of version 1: load it with the plugin that wrote it", done.stderr)
            self.assertFalse((self.folder / "new").exists())
            shutil.rmtree(self.folder / "old")
        state.save(instance, self.folder / "old")
        self.assertIn("not of version 1", self.convert(self.folder / "old").stderr)
