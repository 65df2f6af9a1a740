# SPDX-License-Identifier: Apache-2.0
"""conformance/accuracy/judge.py against published quantiles and values worked by hand; the table and the JSON file of a campaign."""
import json
import math
import random
import statistics
import tempfile
import unittest
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

from zfplugin.accuracy import judge, picture, result, runs, scores, tasks, text
from zfplugin.accuracy.probe import Probe
from zfplugin.accuracy.trainers import Arm

# Student's t, one-sided 95 %, by degrees of freedom: as printed in textbooks
QUANTILES = {1: 6.313752, 2: 2.919986, 3: 2.353363, 4: 2.131847, 7: 1.894579, 9: 1.833113, 30: 1.697261, 120: 1.657651}


def by_hand(differences):
    """The bounds from the definitions, with the printed quantile."""
    n, mean = len(differences), sum(differences) / len(differences)
    sd = math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1))
    half = QUANTILES[n - 1] * sd / math.sqrt(n)
    return mean, sd, mean - half, mean + half


class Verdict(unittest.TestCase):
    def test_bounds_are_those_of_the_printed_quantiles(self):
        draw = random.Random(5)
        for freedom in QUANTILES:
            baseline = [draw.uniform(70, 90) for _ in range(freedom + 1)]
            plugin = [b + draw.gauss(-0.3, 0.8) for b in baseline]
            found = judge.verdict(plugin, baseline, 1.0)
            wanted = by_hand([p - b for p, b in zip(plugin, baseline)])
            for name, value in zip(("mean_difference", "standard_deviation", "lower", "upper"), wanted):
                self.assertAlmostEqual(found[name], value, delta=5e-6, msg=(freedom, name))

    def test_the_three_verdicts(self):
        for plugin, baseline, margin, said in (
                ([80.0, 81.0, 82.0, 83.0], [80.5, 81.6, 82.4, 83.5], 1.0, "PASS"),  # worse, within the margin
                ([70.0, 71.0, 69.5], [80.5, 81.0, 80.0], 1.0, "FAIL"), ([75.0, 86.0], [80.0, 81.0], 1.0, "INCONCLUSIVE"),
                ([79.9, 81.0, 81.9], [80.0, 81.0, 82.0], 0.1, "INCONCLUSIVE"), ([80.0, 81.0], [80.0, 81.0], 1.0, "PASS"),
                ([78.0, 79.0, 80.0], [80.0, 81.0, 82.0], 1.0, "FAIL"), ([80.0, 80.0], [80.9, 80.9], 1.0, "INCONCLUSIVE"),  # equal by chance
                ([79.0, 80.0, 81.0], [80.0, 81.0, 82.0], 1.0, "INCONCLUSIVE")):  # on the margin
            self.assertEqual(judge.verdict(plugin, baseline, margin)["verdict"], said, (plugin, baseline))

    def test_seeds_that_would_settle_it(self):
        found = judge.verdict([80.0, 83.0, 79.0], [80.5, 80.0, 82.0], 1.0)  # mean -1/6, sd 3.01
        n, distance, sd = found["seeds_needed"], 1.0 + found["mean_difference"], found["standard_deviation"]
        self.assertGreater(n, 3)
        self.assertLess(judge.half_width(sd, n), distance)
        self.assertGreaterEqual(judge.half_width(sd, n - 1), distance)
        self.assertIn(f"about {n} seeds would settle it", judge.sentence(found))
        self.assertEqual(judge.verdict([79.0, 80.0, 81.0], [80.0, 81.0, 82.0], 1.0)["seeds_needed"], 0)
        self.assertEqual(judge.verdict([90.0], [10.0], 1.0)["seeds_needed"], 2)
        self.assertEqual(judge.verdict([90.0] * 2, [10.0] * 2, 1.0)["seeds_needed"], 3)

    def test_what_cannot_be_judged(self):
        for plugin, baseline, margin, said in (([], [], 1.0, "found 0 scores"), ([1.0, 2.0], [1.0], 1.0, "and 1 of AdamW"),
                                               ([1.0], [1.0], 0.0, "above 0"), ([1.0], [1.0], math.nan, "above 0"),
                                               ([1.0, math.nan], [1.0, 1.0], 1.0, "plugin's score 2 is nan"),
                                               ([1.0], [math.inf], 1.0, "AdamW's score 1 is inf")):
            with self.assertRaisesRegex(judge.NoVerdict, said):
                judge.verdict(plugin, baseline, margin)


def report(losses, score=80.0, **counters):
    return {"losses": list(losses), "metric": {"name": "accuracy", "value": score}, "second": {"name": "f1", "value": score / 2}, "model": {"parameters": 1000}, "seconds": 0.5,
            "peak_rss_bytes": 1e6, "counters": counters, "rows": {"train": 10, "dev": 4}}


class Scores(unittest.TestCase):
    def references(self):
        try:
            from scipy import stats
            from sklearn import metrics
        except ImportError as missing:
            self.skipTest(f"{missing.name} is not installed")
        return {"accuracy": metrics.accuracy_score, "f1": metrics.f1_score, "matthews": metrics.matthews_corrcoef,
                "pearson": lambda t, p: stats.pearsonr(t, p).statistic, "spearman": lambda t, p: stats.spearmanr(t, p).statistic}

    def test_they_are_those_of_scikit_learn_and_scipy(self):
        draw = random.Random(11)
        for name, reference in self.references().items():
            for n in (3, 10, 1043):
                values = (0.0, 1.0) if name in ("accuracy", "f1", "matthews") else [i / 5 for i in range(26)]
                truth = [*values[:3], *draw.choices(values, k=n)]
                predicted = [x if draw.random() < 0.7 else draw.choice(values) for x in truth]
                self.assertAlmostEqual(scores.score(name, predicted, truth), 100 * reference(truth, predicted), places=8, msg=(name, n))

    def test_what_is_not_defined_is_0(self):
        for name in ("f1", "matthews", "pearson", "spearman"):
            self.assertEqual(scores.score(name, [0.0] * 4, [0.0] * 4 if name == "f1" else [0.0, 1.0, 0.0, 1.0]), 0.0, name)

    def test_each_task_is_scored_as_glue_says(self):
        for task, named in (("sst2", {"metric": "accuracy"}), ("mrpc", {"metric": "accuracy", "second": "f1"}),
                            ("mnli", {"metric": "accuracy", "second": "dev_mismatched.tsv"})):
            found = scores.scored({"predictions": [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0]]}, tasks.find_task(task), [[1.0, 1.0, 0.0, 1.0], [1.0, 1.0]])
            self.assertEqual({member: found[member]["name"] for member in ("metric", "second") if member in found}, named)
            self.assertEqual([found[member]["value"] for member in named], [75.0, 80.0 if task == "mrpc" else 50.0][:len(named)])
        with self.assertRaisesRegex(runs.CannotRun, "found 1 predictions; 2"):
            scores.score("accuracy", [1.0], [1.0, 1.0])


class Start(unittest.TestCase):
    adamw = [report([1.0, 0.9, 0.8, 0.7]), report([1.1, 1.0, 0.9, 0.8])]

    def test_equal_and_nearly_equal(self):
        equal = judge.start(self.adamw, self.adamw, 2, 1e-5)
        self.assertEqual((equal["conforms"], equal["steps"], equal["equal_steps"], equal["largest_difference"]), (True, 2, 4, 0.0))
        near = judge.start([self.adamw[0], report([1.1, 1.0 + 9e-6, 0.9, 0.8])], self.adamw, 4, 1e-5)
        self.assertEqual((near["conforms"], near["equal_steps"], near["seed"], near["step"]), (True, 1, 2, 2))
        self.assertAlmostEqual(near["largest_difference"], 9e-6)

    def test_a_loss_before_any_update_tells_nothing(self):
        self.assertEqual(judge.start([report([1.0, 0.5])], [report([1.0, 0.9])], 1, 1e-5)["steps"], 0)


class Figures(unittest.TestCase):
    def test_link_is_the_formula_and_memory_is_counted(self):
        probe = Probe("0", {"zenflow.update_interval": "4"})
        plugin = [report([1.0] * 8, window_closes=8 + 4, down_bytes_per_step=4100.0, up_publish_bytes_per_step=1300.0,
                       up_enter_bytes_per_step=7.0, host_planned_bytes_per_param=30.0, host_bytes_per_param=31.0,
                       device_bytes_per_param=6.0)]
        link = judge.link(plugin, probe, 4.0)
        self.assertEqual([link[k] for k in ("down_formula", "publish_formula", "publish_warm_up")],
                         [4000.0, 1000.0, 4000.0 * (12 / 8 / 4 - 1 / 4)])
        plugin[0]["peak_rss_bytes"] = 1e6 + 25000
        memory = judge.memory(plugin, [report([1.0])])
        self.assertEqual((memory["planned"], memory["mapped"], memory["from_outside"]), (30.0, 31.0, 25.0 + 12.0 - 6.0))

    def test_without_windows_no_formula_of_windows_is_told(self):
        probe = Probe("0", {"zenflow.update_interval": "1"})
        told = {"down_bytes_per_step": 40.0, "up_publish_bytes_per_step": 0.0, "up_enter_bytes_per_step": 0.0}
        for closes, is_in_place in ((0, True), (8, False)):
            link = judge.link([report([1.0] * 8, window_closes=closes, **told)], probe, 4.0)
            said = "\n".join(text.link_lines({"link": link, "interval": 1.0}, "fp32"))
            self.assertEqual("formula" not in said, is_in_place, said)
            self.assertIn("40 bytes per step", said)

    def test_the_last_quarter(self):
        self.assertEqual(runs.last_quarter([9, 9, 9, 9, 9, 9, 1, 2]), 1.5)
        self.assertEqual(runs.last_quarter([3.0]), 3.0)


class Weights(unittest.TestCase):
    def test_one_tensor_of_other_bits_is_no_longer_exact(self):
        report = {"digests": ["a", "b"], "losses": [0.5] * 20, "model": {"parameters": 1000}}
        other = {**report, "digests": ["a", "c"]}
        same = judge.same_weights([report, report], [report], True)
        self.assertEqual((same["conforms"], same["differ"], same["seeds"]), (True, 0, 1))
        self.assertIn("PASS: 0 of 1000 differ from AdamW as documented after step 20", text.weights_lines({"weights": same})[0])
        wrong = judge.same_weights([report], [other], True)
        self.assertEqual((wrong["conforms"], wrong["differ"]), (False, 1))
        self.assertIn("FAIL: 1 of 2 tensors differ", text.weights_lines({"weights": wrong})[0])
        good = {"metric": {"verdict": "PASS"}, "start": {"conforms": True}}
        self.assertEqual(judge.exit_status([{**good, "weights": wrong}, good], True), 1)
        self.assertTrue(judge.same_weights([report], [other], False)["conforms"], "settings of the user's own are shown, not judged")
        self.assertEqual(text.weights_lines({"weights": judge.same_weights([{**report, "digests": []}], [report], True)}), [])


class Learned(unittest.TestCase):
    """What AdamW's runs must have done before equal scores say something."""

    def why(self, scores, labels=(0.0, 1.0), metric="accuracy", losses=(0.7,) * 10 + (0.4,) * 10):
        return judge.why_nothing_was_learned([report(losses, score) for score in scores], judge.chance(labels, metric), 1.0)

    def test_accuracy_against_the_largest_class(self):
        labels = [0.0] * 70 + [1.0] * 30
        self.assertEqual(self.why([90.0, 88.0], labels), "")
        self.assertIn("never changes 70.00", self.why([70.0, 70.9], labels))

    def test_correlations_against_none(self):
        self.assertEqual(self.why([20.0], metric="matthews"), "")
        self.assertIn("it scores 0.50", self.why([0.5], metric="matthews"))

    def test_the_loss_must_fall(self):
        self.assertIn("training loss 0.7000", self.why([90.0], losses=[0.7] * 20))
        self.assertIn("0.6000", self.why([90.0], losses=[0.7] * 10 + [0.6] * 10))  # by a seventh

    def test_the_exit_status(self):
        def arm(verdict, conforms=True):
            return {"metric": {"verdict": verdict}, "start": {"conforms": conforms}}

        for arms, has_learned, status in (([arm("INCONCLUSIVE"), arm("PASS")], True, 0), ([arm("PASS"), arm("PASS")], False, 3),
                                          ([arm("PASS"), arm("INCONCLUSIVE")], True, 3), ([arm("FAIL"), arm("PASS")], True, 1),
                                          ([arm("PASS"), arm("FAIL")], False, 1), ([arm("PASS", False), arm("PASS")], True, 1),
                                          ([arm("PASS"), arm("PASS", False)], True, 1)):
            self.assertEqual(judge.exit_status(arms, has_learned), status, arms)


def campaign(plugin_scores, plugin_losses, **more):
    """One as glue.campaign_of() makes it, of runs that are made up."""
    task, probe = tasks.find_task("sst2"), Probe("0.9", {"zenflow.update_interval": "2", "zenflow.full_warm_up_rounds": "50"})
    counters = dict.fromkeys(("window_closes", "down_bytes_per_step", "up_publish_bytes_per_step", "up_enter_bytes_per_step",
                              "stall_us_per_step", "host_planned_bytes_per_param", "host_bytes_per_param", "device_bytes_per_param"), 2.0)
    losses = [0.7] * 10 + [0.3] * 10
    made = {"adamw": [report(losses, s) for s in (80.0, 81.0)], "exact": [report(losses, 80.0, **counters)],
            "zenflow": [report(plugin_losses or losses, s, **counters) for s in plugin_scores]}
    arms = [Arm("adamw", "AdamW", 2), Arm("exact", "exact", 1, True, ("a.b=1",)), Arm("zenflow", "ZenFlow", 2, True)]
    figures = {name: judge.arm_figures(made[name], made["adamw"], probe, 1.0, 20, 1e-5, 4.0) for name in ("exact", "zenflow")}
    trainer = SimpleNamespace(name="c", digests={"train": "a" * 64, "dev": "b" * 64}, encoder=[], describe=lambda n: f"host, {n} parameters")
    options = Namespace(data=None, steps=20, batch=8, lr="1e-3", dtype="fp32", products="fp32", config=None, margin=1.0,
                        device=None, jobs=2)
    return {"task": task, "options": options, "arms": arms, "probes": {"exact": probe, "zenflow": probe}, "trainer": trainer,
            "runs": made, "figures": figures, "not_learned": "", "exit_status": judge.exit_status(list(figures.values()), True), **more}


class Told(unittest.TestCase):
    def test_the_table_says_what_was_found(self):
        table = text.table(campaign([80.1, 81.0], None))
        for said in ("SYNTHETIC corpus", "mean of f1 x 100: AdamW 40.25, exact 40.00, ZenFlow 40.27", "  seed         AdamW         exact       ZenFlow  ZenFlow-AdamW\n     1         80.00",
                     "ran 1 seeds only", "equal in every digit (so up to step 20)", "4M(1 + 1/S), S = 2", "planned 2.00, mapped 2.00",
                     "stall         2 us per step", "on a SYNTHETIC corpus, PASS: the plugin trains as well as AdamW"):
            self.assertIn(said, table)

    def test_what_learns_nothing_is_not_judged(self):
        table = text.table(campaign([80.0, 81.0], None, not_learned="why not", exit_status=3))
        self.assertIn("AdamW itself has not learned yet (why not)", table)
        self.assertIn("INCONCLUSIVE: the plugin cannot be judged by runs that learn nothing", table)

    def test_the_picture_shows_every_curve(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in ("a.svg", "b.svg")]
            for path in paths:
                self.assertTrue(picture.draw(path, {"SST-2": result.curves(campaign([80.1, 81.0], None))}))
            first, second = (path.read_bytes() for path in paths)
        self.assertEqual(first, second)
        for said in ("SST-2", "AdamW", "exact", "ZenFlow", "training loss"):
            self.assertIn(f">{said}</text>".encode(), first)

    def test_the_json_file_holds_every_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "glue.json")
            result.write(campaign([80.1, 81.0], None), str(path))
            document = json.loads(path.read_text())
        self.assertEqual(document["arms"][2]["metric"], [80.1, 81.0])
        self.assertIsNone(document["arms"][1]["lower"])  # of one seed: no number in JSON
        self.assertEqual(document["arms"][2]["mean_losses"][-1], statistics.fmean([0.3, 0.3]))
