# SPDX-License-Identifier: Apache-2.0
"""From finished runs to figures and verdicts. Pure: no output, no files.

Three questions are asked of each arm of the plugin:
  metric        a paired non-inferiority test over the seeds (verdict());
  start         while the plugin claims AdamW's own semantics (the exact mode always, any mode in its warm-up) its training loss
                must follow AdamW's: a wrong update rule shows here at once, although a long training may forgive it;
  last quarter  mean training loss of the last quarter of the steps, relative to AdamW's: told, not judged.
"""

from __future__ import annotations

import collections
import math
import statistics

import numpy as np
from scipy import special

from .runs import last_quarter

MOST_SEEDS_NEEDED = 100000
START_STEPS = 20
LEARNED_SHARE = 0.85  # of its first steps' loss: below it AdamW itself has learned


class NoVerdict(ValueError):
    """Scores or a margin that cannot be judged: what was found, what is needed."""


def verdict(plugin, baseline, margin: float) -> dict:
    """Does the plugin train as well as AdamW? plugin, baseline: scores in points of 100, the same seed at the same place.

    The differences d = plugin - baseline of n seeds are a sample; the one-sided 95 % bounds of their mean are
    mean -+ t(0.95, n - 1) * sd / sqrt(n), t being Student's quantile.
      PASS          the lower bound lies above -margin
      FAIL          the upper bound lies below -margin
      INCONCLUSIVE  else, or fewer than two seeds; seeds_needed would settle it at this mean and spread (0: no number is known to)
    Equal differences (sd = 0, as of a plugin that is AdamW to the bit) make both bounds the mean; two alone may be so by
    chance, as scores are counts of rows, and say nothing unless they are 0."""
    plugin, baseline = np.asarray(plugin, float), np.asarray(baseline, float)
    if len(plugin) == 0 or len(plugin) != len(baseline):
        raise NoVerdict(f"found {len(plugin)} scores of the plugin and {len(baseline)} of AdamW; as many, and two at least, are needed")
    if not (math.isfinite(margin) and margin > 0):
        raise NoVerdict(f"margin {margin:g}; a number above 0 is needed")
    for whose, scores in (("plugin", plugin), ("AdamW", baseline)):
        for i in np.flatnonzero(~np.isfinite(scores)):
            raise NoVerdict(f"{whose}'s score {i + 1} is {scores[i]}; a finite number is needed")
    d, n = plugin - baseline, len(plugin)
    mean, sd = float(d.mean()), float(d.std(ddof=1)) if n > 1 else 0.0
    is_known = n > 2 or (n == 2 and (sd > 0 or mean == 0))
    half = half_width(sd, n) if is_known else math.inf
    lower, upper = mean - half, mean + half
    kind = "PASS" if lower > -margin else "FAIL" if upper < -margin else "INCONCLUSIVE"
    needed = seeds_needed(abs(mean + margin), sd) if is_known else n + 1
    return {"verdict": kind, "n_seeds": n, "mean_difference": mean, "standard_deviation": sd, "lower": lower, "upper": upper,
            "margin": margin, "seeds_needed": needed if kind == "INCONCLUSIVE" else 0}


def half_width(sd: float, n):
    """Of the one-sided 95 % interval of a mean of n; n may be an array."""
    return special.stdtrit(n - 1, 0.95) * sd / np.sqrt(n)


def seeds_needed(distance: float, sd: float) -> int:
    """The smallest n whose interval lies on one side of the margin at this distance of the mean from it; 0 where none is known to."""
    n = np.arange(2, MOST_SEEDS_NEEDED + 1)
    enough = half_width(sd, n) < distance
    return int(n[enough.argmax()]) if enough.any() else 0


def sentence(v: dict) -> str:
    more = ""
    if v["verdict"] == "INCONCLUSIVE":
        more = (f"; about {v['seeds_needed']} seeds would settle it" if v["seeds_needed"] else
                "; the mean lies on the margin: more seeds are not known to settle it")
    return (f"{v['verdict']}: plugin - AdamW = {v['mean_difference']:+.2f} points over {v['n_seeds']} seeds (one-sided 95 % bounds "
            f"{v['lower']:+.2f} and {v['upper']:+.2f}, margin {v['margin']:.2f}){more}")


# ---- figures of runs: each argument is a list of reports, seeds 1, 2, ... ------------------------------------------------------------------


def mean_of(values) -> float:
    """nan where one is missing."""
    return statistics.fmean(math.nan if x is None else x for x in values)


def counter(reports, name: str) -> float:
    """Mean of a counter of the optimizer; nan where the trainer does not tell it."""
    return mean_of(r.get("counters", {}).get(name) for r in reports)


def start(plugin, adamw, n_start: int, tolerance: float | None) -> dict:
    """Losses of the first steps against AdamW's. n_start: steps that follow AdamW by contract; tolerance None: shown, not judged."""
    x, y = (np.array([r["losses"] for r in reports], float) for reports in (plugin, adamw[:len(plugin)]))
    difference = np.abs(x - y) / np.maximum(np.abs(y), 1e-12)
    difference[~np.isfinite(difference)] = math.inf
    n = min(n_start if n_start > 1 else 0, START_STEPS, x.shape[1])  # the first loss comes before any update
    unequal = np.flatnonzero((x != y).any(axis=0))
    out = {"steps": n, "equal_steps": int(unequal[0]) if len(unequal) else x.shape[1], "largest_difference": 0.0, "seed": 0, "step": 0,
           "allowed": tolerance, "conforms": True}
    if n > 0 and difference[:, :n].max() > 0:
        seed, step = np.unravel_index(difference[:, :n].argmax(), (len(x), n))
        largest = float(difference[seed, step])
        out.update(largest_difference=largest, seed=int(seed) + 1, step=int(step) + 1,
                   conforms=tolerance is None or largest <= tolerance)
    return out


def same_weights(exact, documented, is_judged: bool) -> dict:
    """What the exact mode ended with beside AdamW as documented, by digests of each parameter. Trained on a device there are none, and with
    settings of the user's own it is shown only."""
    pairs = [(x, y) for a, b in zip(exact, documented) for x, y in zip(a.get("digests", []), b.get("digests", []))]
    n_differ = sum(x != y for x, y in pairs)
    return {"tensors": len(pairs), "differ": n_differ, "is_judged": is_judged and bool(pairs), "conforms": n_differ == 0 or not is_judged,
            "weights": exact[0]["model"]["parameters"], "seeds": min(len(exact), len(documented)), "steps": len(exact[0]["losses"])}


def link(plugin, probe, value_nbytes: float) -> dict:
    """Bytes per step over the link beside the formula 4M(1 + 1/S) (fp32; bf16: 2M). publish_warm_up: what closes beyond one per window
    and cohort moved, mostly the warm-up's. is_in_place: no window was closed, so all state lies where the weights do and no formula applies."""
    nbytes, interval = value_nbytes * plugin[0]["model"]["parameters"], probe.number("zenflow.update_interval", math.nan)
    n_cohorts = interval
    closes = counter(plugin, "window_closes") / len(plugin[0]["losses"])
    return {"is_in_place": closes == 0, "down": counter(plugin, "down_bytes_per_step"), "down_formula": nbytes,
            "publish": counter(plugin, "up_publish_bytes_per_step"), "publish_formula": nbytes / interval,
            "publish_warm_up": nbytes * (closes / n_cohorts - 1.0 / interval), "enter": counter(plugin, "up_enter_bytes_per_step")}


def memory(plugin, adamw) -> dict:
    """Host bytes per parameter: planned and mapped by the plugin, and seen from outside: the peak resident size beyond AdamW's run, and
    that run's own 12 bytes of w, m and v, less what stands for the device's memory."""
    beyond = mean_of(r.get("peak_rss_bytes") for r in plugin) - mean_of(r.get("peak_rss_bytes") for r in adamw[:len(plugin)])
    device = counter(plugin, "device_bytes_per_param")
    return {"planned": counter(plugin, "host_planned_bytes_per_param"), "mapped": counter(plugin, "host_bytes_per_param"),
            "device": device, "from_outside": beyond / plugin[0]["model"]["parameters"] + 12.0 - device}


def step_us(reports) -> float:
    return 1e6 * statistics.fmean(r["seconds"] / len(r["losses"]) for r in reports)


def arm_figures(plugin, adamw, probe, margin: float, n_start: int, tolerance: float | None, value_nbytes: float) -> dict:
    """All of one arm of the plugin against AdamW's runs of the same seeds."""
    base = adamw[:len(plugin)]
    quarter, quarter_adamw = (statistics.fmean(last_quarter(r["losses"]) for r in reports) for reports in (plugin, base))
    return {"metric": verdict(*([r["metric"]["value"] for r in reports] for reports in (plugin, base)), margin),
            "start": start(plugin, base, n_start, tolerance), "last_quarter": quarter, "last_quarter_adamw": quarter_adamw,
            "link": link(plugin, probe, value_nbytes), "memory": memory(plugin, base),
            "stall_us": counter(plugin, "stall_us_per_step"), "step_us": step_us(plugin), "step_us_adamw": step_us(base),
            "interval": probe.number("zenflow.update_interval", math.nan)}


def chance(labels, metric: str) -> float:
    """What an answer that never changes scores, in points: the share of the largest class, or 0 for a correlation."""
    return 100.0 * max(collections.Counter(labels).values()) / len(labels) if metric == "accuracy" else 0.0


def why_nothing_was_learned(adamw, chance_points: float, margin: float) -> str:
    """A sentence where AdamW itself has not learned, else "": equal scores say nothing then."""
    losses = [r["losses"] for r in adamw]
    first = statistics.fmean(statistics.fmean(x[:10]) for x in losses)
    end = statistics.fmean(map(last_quarter, losses))
    score = statistics.fmean(r["metric"]["value"] for r in adamw)
    if not end < LEARNED_SHARE * first:
        return f"training loss {first:.4f} at the start, {end:.4f} in the last quarter"
    if not score > chance_points + margin:
        return f"it scores {score:.2f}, an answer that never changes {chance_points:.2f}"
    return ""


def exit_status(arms: list[dict], has_learned: bool) -> int:
    """0 PASS, 1 FAIL, 3 INCONCLUSIVE. The last arm is the configured plugin, which alone can pass; each can fail."""
    if any(a["metric"]["verdict"] == "FAIL" or not a["start"]["conforms"] or not a.get("weights", {}).get("conforms", True) for a in arms):
        return 1
    return 0 if has_learned and arms[-1]["metric"]["verdict"] == "PASS" else 3
