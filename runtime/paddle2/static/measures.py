"""Metrics of static mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..program.program import Variable, add_value, default_main_program


def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: object = None, total: object = None
) -> Variable:
    """Return the share of the samples of a run whose label is among the `k` likeliest.

    input: a row of probabilities for each sample; the first of equal ones wins. label: from 0.
    """
    if correct is not None or total is not None:
        raise ValueError("static.accuracy: correct and total are not in this runtime; leave them out")
    return add_value("accuracy", [input, label], {"k": k})


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 4095,
    topk: int = 1,
    slide_steps: int = 1,
    ins_tag_weight: None = None,
) -> tuple[Variable, Variable, list[Variable]]:
    """Return the area under the ROC curve over all runs, that of the last ones, and their counts.

    input: probabilities, that of label 1 last. slide_steps: number of runs of the second, 0 for all. Counts:
    for these, then for all runs, samples by probability in num_thresholds + 1 buckets, first of label 1, then
    of label 0. Reports of the job have the first over all workers.
    """
    if curve != "ROC":
        raise ValueError(f"static.auc: curve={curve!r}, expected ROC")
    for name, value, least in (("slide_steps", slide_steps, 0), ("num_thresholds", num_thresholds, 1)):
        if value < least:
            raise ValueError(f"static.auc: {name}={value}, expected {least} or more")
    if ins_tag_weight is not None:
        raise ValueError("static.auc: ins_tag_weight is not in this runtime; leave it out")
    found = []
    for of_last in dict.fromkeys((slide_steps, 0)):
        add = add_value if of_last == 1 else _count  # which is needed only where it is fetched
        counts = add("auc_counts", [input, label], {"of_last": of_last, "thresholds": num_thresholds})
        found.append((add_value("auc", [counts]), [counts[1], counts[0]]))
    (recent, recent_counts), (total, counts_of_all) = found[0], found[-1]
    return total, recent, [*recent_counts, *counts_of_all]


def ctr_metric_bundle(input: Variable, label: Variable, ins_tag_weight: None = None) -> tuple[Variable, ...]:
    """Return sums over all runs: squared errors, absolute errors, probabilities and their sigmoids, clicks,
    samples.

    input: probabilities of a click, label: 1 or 0. fleet.metrics makes means over all workers of them;
    reports of the job have the calibration, the sum of probabilities by that of clicks.
    """
    if ins_tag_weight is not None:
        raise ValueError("static.ctr_metric_bundle: ins_tag_weight is not in this runtime; leave it out")
    sums = _count("click_sums", [input, label])
    return tuple(sums[i : i + 1] for i in range(6))


def user_auc(input: Variable, label: Variable, user: Variable, num_samples: int = 100_000) -> Variable:
    """Return the AUC of each user's samples, mean over users weighted by their samples (GAUC).

    Of the last `num_samples` samples; users whose labels are all alike do not count. user: an id for each
    sample. Reports of the job have it over all workers; a user with samples in two counts as two.
    """
    if num_samples < 1:
        raise ValueError(f"static.user_auc: num_samples={num_samples}, expected 1 or more")
    return add_value("user_auc", [_count("user_samples", [input, label, user], {"most": num_samples})])


def _count(op: str, inputs: Sequence[Variable], attrs: Mapping[str, Any] | None = None) -> Variable:
    """Return the value of a metric that each run of the program computes."""
    counts = add_value(op, inputs, attrs)
    default_main_program().always.append(counts)
    return counts
