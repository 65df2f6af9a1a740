# SPDX-License-Identifier: Apache-2.0
"""release(), resume() and refit(): the same bits as without, what works meanwhile, and what is refused."""
import tempfile

from support import HYPER, TorchTest, loss_of, plain_step, torch, train, twins
import zfplugin

WINDOWS = {"zenflow.topk_ratio": 0.1, "zenflow.update_interval": 4, "zenflow.full_warm_up_rounds": 2, "zenflow.select_interval": 3}


class Released(TorchTest):
    def both(self, **options):
        ours, theirs = twins()
        for model, name in ((ours, "opt"), (theirs, "other")):
            setattr(self, name, self.zenflow(model, **HYPER, config=WINDOWS, **({"model": model} if options.get("fetch") else {}),
                                             **({"releasable": True, **options} if model is ours else options)))
        return ours, theirs

    def test_same_bits(self):
        for options in ({}, {"fetch": True}, {"overlap": True}):
            with self.subTest(options=options):
                self.check_same_bits(**options)

    def check_same_bits(self, **options):
        ours, theirs = self.both(**options)
        with self.opt.released():  # nothing is bound yet
            pass
        for i in range(12):
            self.train_both(ours, theirs, self.opt, self.other, [i], plain_step)
            if i % 2:
                with self.opt.released(pinned=i % 4 == 1):
                    self.assertEqual(self.opt.stats()["device_measured_nbytes"], 0)
                    exported, expected = self.opt.export(), self.other.export()
                    for name in expected:
                        self.assertTrue(torch.equal(exported[name], expected[name]), name)
        self.assert_same(ours, theirs, flushed=(self.opt, self.other))

    def test_saved_meanwhile(self):
        ours, theirs = self.both()
        train(ours, self.opt, range(7))
        with tempfile.TemporaryDirectory() as folder:
            with self.opt.released():
                self.opt.save(folder + "/saved")
                state = self.opt.state_dict()
            self.other.load_state_dict(state)
            self.opt.load(folder + "/saved")
        self.train_both(ours, theirs, self.opt, self.other, range(7, 12), plain_step)
        self.assert_same(ours, theirs, flushed=(self.opt, self.other))

    def test_refused_meanwhile(self):
        ours, theirs = self.both()
        self.train_both(ours, theirs, self.opt, self.other, [0], plain_step)
        with self.opt.released():
            loss_of(ours, 1).backward()
            with self.assertRaisesRegex(zfplugin.StateError, "released"):
                self.opt.step()
            with self.assertRaisesRegex(zfplugin.StateError, "released"):
                self.opt.release()
        self.opt.step()
        with self.assertRaisesRegex(zfplugin.StateError, "nothing is released"):
            self.opt.resume()
        with self.assertRaisesRegex(zfplugin.StateError, "ZF_CREATE_CAP_RELEASE"):
            self.other.release()
        with self.opt.released():
            self.opt.close()


class Refit(TorchTest):
    def test_each_is_the_newest(self):
        ours, theirs = twins()
        opt = self.zenflow(ours, **HYPER, config=WINDOWS, model=ours, fetch=True)
        other = self.zenflow(theirs, **HYPER, config=WINDOWS)
        self.train_both(ours, theirs, opt, other, range(6), plain_step)
        for given, newest in zip(opt.refit(), theirs.named_parameters(), strict=True):
            self.assertEqual(given[0], newest[0])
            self.assertTrue(torch.equal(given[1], newest[1]), given[0])
