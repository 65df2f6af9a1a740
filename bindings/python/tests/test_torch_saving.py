# SPDX-License-Identifier: Apache-2.0
"""Weights that leave a run: with model= its state_dict() holds what flush() would give, and the run goes on as if it had not
been asked. A flush that was forgotten is said at the end."""
import copy
import gc
import io
import logging
import sys
import weakref

from support import ALL_SELECTED, FEW, HYPER, SYNCHRONOUS, TorchTest, config, in_a_fork, loss_of, mlp, plain_step, step_in, torch, train, zenflow
import zfplugin


class StateOfTheModel(TorchTest):
    def trained(self, n_steps=11, make=mlp, mode=FEW, **kwargs):
        model = make()
        opt = self.zenflow(model, **{**HYPER, "config": config(mode), "model": model, **kwargs})
        train(model, opt, range(n_steps))
        return model, opt

    def assert_final(self, saved, opt, prefix=""):
        for name, final in opt.export().items():
            self.assertTrue(torch.equal(saved[prefix + name], final.to(saved[prefix + name].dtype)), name)

    def test_holds_the_final_weights(self):
        for dtype in (torch.float32, torch.bfloat16):
            for kwargs in ({}, {"fetch": True}):
                model = mlp(dtype=dtype)
                opt = self.zenflow(model, **HYPER, config=config(FEW), model=model, **kwargs)
                train(model, opt, range(11), step_in(dtype))
                saved = model.state_dict()
                self.assert_final(saved, opt)
                opt.synchronize()
                self.assertFalse(torch.equal(saved["2.weight"], model[2].weight), "nothing was on its way: the test shows nothing")
                opt.flush()
                for name, values in model.state_dict().items():
                    self.assertTrue(torch.equal(values, saved[name]))
                    self.assertEqual(values.data_ptr(), dict(model.named_parameters())[name].data_ptr())

    def test_of_a_part_and_within_another_module(self):
        model, opt = self.trained()
        final = opt.export()
        self.assertTrue(torch.equal(model[2].state_dict()["weight"], final["2.weight"]))
        self.assert_final(torch.nn.ModuleDict({"inner": model}).state_dict(), opt, "inner.")
        for name, value in model.state_dict(keep_vars=True).items():
            self.assertIs(value, dict(model.named_parameters())[name])

    def test_ties_stay_ties(self):
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.a, self.b, self.c = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
                self.b.weight = self.a.weight
                self.b.bias = torch.nn.Parameter(self.a.bias.data)

            def forward(self, x):
                return self.c(self.b(torch.tanh(self.a(x))))

        model, opt = self.trained(make=Tied, mode={**FEW, "zenflow.topk_ratio": 0})
        saved = model.state_dict()
        for name in ("weight", "bias"):
            self.assertEqual(saved[f"a.{name}"].data_ptr(), saved[f"b.{name}"].data_ptr())
        self.assertNotEqual(saved["a.weight"].data_ptr(), model.a.weight.data_ptr())
        self.assert_final(saved, opt)

    def test_of_weights_that_somebody_else_wrote_it_holds_those(self):
        model, opt = self.trained()
        kept = model[2].weight.detach().clone()
        model[2].weight.data.fill_(0.5)
        moved, model[5].weight.data = model[5].weight.data, torch.full_like(model[5].weight, 0.25)
        saved = model.state_dict()
        self.assertTrue(torch.equal(saved["2.weight"], torch.full_like(kept, 0.5)))
        self.assertTrue(torch.equal(saved["5.weight"], torch.full_like(kept, 0.25)))
        self.assertTrue(torch.equal(saved["0.weight"], opt.export()["0.weight"]))
        model[2].weight.data.copy_(kept)
        model[5].weight.data = moved
        self.assert_final(model.state_dict(), opt)

    def test_where_nothing_is_deferred_it_is_the_weights_themselves(self):
        for mode in (SYNCHRONOUS, {"zenflow.mode": "windows", "zenflow.full_warm_up_rounds": 50}, {"zenflow.full_warm_up_rounds": 1, "device.state_mib": "all"}):
            model, _ = self.trained(mode=mode)
            for name, value in model.state_dict().items():
                self.assertEqual(value.data_ptr(), dict(model.named_parameters())[name].data_ptr())

    def test_what_is_written_into_it_counts(self):
        """Until the next forward, or step; later it is said that it does not. The copies are not kept alive."""
        for kwargs in ({}, {"fetch": True}):
            model, opt = self.trained(**kwargs)
            kept = weakref.ref(model.state_dict()["5.weight"])
            model.state_dict()["2.weight"][3].fill_(0.5)
            loss_of(model, 0)
            self.assertTrue(bool((model[2].weight[3] == 0.5).all()))
            self.assertIsNone(kept())
            opt.flush()
            final = opt.export()["2.weight"]
            self.assertTrue(torch.equal(model[2].weight, final) and bool((final[3] == 0.5).all()))
            model, opt = self.trained(**kwargs)
            state = model.state_dict()
            plain_step(model, opt, 11)
            state["2.weight"].fill_(0.25)
            with self.messages() as said:
                plain_step(model, opt, 12)
            self.assertIn("values of an earlier state_dict() were written", said.output[0])

    def test_copies_of_the_model_are_models_of_their_own(self):
        model, opt = self.trained()
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            for (name, p), q in zip(other.named_parameters(), model.parameters()):
                self.assertTrue(torch.equal(p, q))
                self.assertEqual(other.state_dict()[name].data_ptr(), p.data_ptr())
            other.load_state_dict(other.state_dict())

        def load():
            sys.modules.update({name: None for name in sys.modules if name.partition(".")[0] == "zfplugin"})  # cannot be imported
            file.seek(0)
            torch.load(file, weights_only=False).state_dict()

        self.assertEqual(in_a_fork(load), (0, ""))

    def test_attached_later_and_taken_off(self):
        model, opt = self.alone(**HYPER, config=config(FEW))
        train(model, opt, range(11))
        self.assertEqual(model.state_dict()["2.weight"].data_ptr(), model[2].weight.data_ptr())
        opt.attach(model)
        opt.attach(model)
        self.assert_final(model.state_dict(), opt)
        self.assertEqual(len(model[2]._state_dict_hooks), 1)
        opt.close()
        self.assertFalse(model._state_dict_hooks or model[2]._state_dict_hooks or model._load_state_dict_post_hooks)
        self.assertEqual(model.state_dict()["2.weight"].data_ptr(), model[2].weight.data_ptr())


class ForgottenFlush(TorchTest):
    SAYS = "flush()"

    def left(self, forget, mode=FEW, n_steps=11, with_model=False):
        """Messages of a run that ends."""
        model = mlp()
        opt = zfplugin.torch.ZenFlow(model.named_parameters(), config=config(mode), model=model if with_model else None)
        train(model, opt, range(n_steps))
        with self.assertLogs("zfplugin", logging.WARNING) as caught:
            logging.getLogger("zfplugin").warning("so that there is one")
            forget(model, opt)
            del opt
            gc.collect()
        return [text for text in caught.output[1:] if "flush()" in text]

    def test_said_when_the_optimizer_is_closed_or_dropped(self):
        for forget in (lambda m, o: o.close(), lambda m, o: None, lambda m, o: m.state_dict(),
                       lambda m, o: (o.flush(), plain_step(m, o, 20))):
            said = self.left(forget)
            self.assertEqual(len(said), 1)
        self.assertIn("11 steps", self.left(lambda m, o: None)[0])

    def test_not_said_where_nothing_is_lost(self):
        for forget in (lambda m, o: o.flush(), lambda m, o: (o.flush(), o.close()), lambda m, o: o.state_dict(), lambda m, o: o.export()):
            self.assertEqual(self.left(forget), [])
        self.assertEqual(self.left(lambda m, o: m.state_dict(), with_model=True), [])
        for mode in (SYNCHRONOUS, ALL_SELECTED, {"zenflow.update_interval": 1, "zenflow.publish_lag": 0}):
            self.assertEqual(self.left(lambda m, o: None, mode=mode), [])
        self.assertEqual(self.left(lambda m, o: None, mode={"zenflow.mode": "windows", "zenflow.full_warm_up_rounds": 11}), [])
        self.assertEqual(self.left(lambda m, o: None, n_steps=0), [])

    def test_at_the_end_of_the_process(self):
        def leave():
            import __main__  # whose names live until Python ends

            __main__.model = mlp()
            __main__.opt = zenflow(__main__.model, config=config(FEW))
            train(__main__.model, __main__.opt, range(9))

        self.assertIn("flush()", in_a_fork(leave)[1])

    def test_a_forked_child_says_nothing(self):
        model, opt = self.alone(config=config(FEW))
        train(model, opt, range(9))
        self.assertEqual(in_a_fork(lambda: None), (0, ""))
