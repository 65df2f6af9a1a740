# SPDX-License-Identifier: Apache-2.0
"""GLUE's metrics, in points of 100, from scipy and scikit-learn."""

from __future__ import annotations

import warnings


def score(name: str, predicted, truth) -> float:
    """One metric of predictions against labels (1-D sequences); nan where it is undefined."""
    from scipy import stats
    from sklearn import metrics

    functions = {
        "accuracy": metrics.accuracy_score,
        "f1": metrics.f1_score,
        "matthews": metrics.matthews_corrcoef,
        "pearson": lambda t, p: stats.pearsonr(t, p).statistic,
        "spearman": lambda t, p: stats.spearmanr(t, p).statistic,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a constant prediction: the value says it
        return 100.0 * float(functions[name](truth, predicted))
