# SPDX-License-Identifier: Apache-2.0
"""metrics_sklearn.py METRICS - accuracy, F1 and Matthews against scikit-learn, Pearson and Spearman against SciPy.

Random cases of many sizes, balanced and not, with ties, far from zero, and the undefined ones (one class only, no
variance), which are 0 here. Exit status 77 where the two packages are not there.
"""

import subprocess
import sys
import warnings

TOLERANCE = 1e-10


def class_cases(random):
    for n in (2, 3, 10, 408, 1043, 3000):
        for share in (0.05, 0.5, 0.68, 0.97):
            expected = (random.random(n) < share).astype(int)
            wrong = random.random(n) < random.random()
            yield np.where(wrong, 1 - expected, expected), expected
    yield np.ones(8, int), random.integers(0, 2, 8)
    yield np.zeros(8, int), np.zeros(8, int)
    yield np.ones(8, int), np.ones(8, int)


def score_cases(random):
    for n in (2, 3, 10, 1500):
        for spread in (0.0, 0.3, 3.0):
            expected = random.integers(0, 26, n) / 5.0
            yield expected + spread * random.normal(size=n), expected
        yield np.round(random.random(n), 1), np.round(random.random(n), 1)
        yield 1e6 + random.random(n), 5.0 * random.random(n)
    yield np.zeros(9), random.random(9)
    yield random.random(9), np.full(9, 2.5)


def ask(program, lines):
    out = subprocess.run([program], input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True, check=True)
    return [[float(word) for word in line.split()] for line in out.stdout.splitlines()]


def as_line(kind, found, expected):
    return kind + " " + " ".join(repr(v) for v in np.concatenate([found, expected]).tolist())


def compare(program, kind, cases, names, reference):
    got = ask(program, [as_line(kind, *case) for case in cases])
    if len(got) != len(cases):
        sys.exit(f"FAIL: {len(got)} answers to {len(cases)} cases of {kind}")
    worst = 0.0
    for case, ours in zip(cases, got):
        for name, value, want in zip(names, ours, reference(*case)):
            want = 0.0 if np.isnan(want) else want
            worst = max(worst, abs(value - want))
            if not abs(value - want) <= TOLERANCE:
                sys.exit(f"FAIL: {name} of {len(case[0])} values is {value!r}; {want!r} is right")
    print(f"{len(cases)} cases of {kind}: largest difference {worst:.1e} (allowed {TOLERANCE:.0e})")


def main():
    random = np.random.default_rng(20260101)
    compare(sys.argv[1], "classes", list(class_cases(random)), ("accuracy", "F1", "Matthews"), lambda found, expected: (
        metrics.accuracy_score(expected, found), metrics.f1_score(expected, found, zero_division=0.0),
        metrics.matthews_corrcoef(expected, found)))
    compare(sys.argv[1], "scores", list(score_cases(random)), ("Pearson", "Spearman"), lambda found, expected: (
        stats.pearsonr(found, expected)[0], stats.spearmanr(found, expected)[0]))


try:
    import numpy as np
    from scipy import stats
    from sklearn import metrics
except ImportError as missing:
    print(f"skipped: no {missing.name} for Python")
    sys.exit(77)
warnings.simplefilter("ignore")
main()
