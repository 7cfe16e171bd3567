"""Metrics of static mode."""

from __future__ import annotations

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

    input: probabilities, that of label 1 last. slide_steps: the second is that of so many last runs, 0: of
    all. Counts: for these, then for all runs, samples by probability in num_thresholds + 1 buckets, first of
    label 1, then of label 0.
    """
    if curve != "ROC":
        raise ValueError(f"static.auc: curve={curve!r}, expected ROC")
    for name, value, least in (("num_thresholds", num_thresholds, 1), ("slide_steps", slide_steps, 0)):
        if value < least:
            raise ValueError(f"static.auc: {name}={value}, expected {least} or more")
    if ins_tag_weight is not None:
        raise ValueError("static.auc: ins_tag_weight is not in this runtime; leave it out")
    found = []
    for of_last in (slide_steps, 0):
        attrs = {"of_last": of_last, "thresholds": num_thresholds}
        counts = add_value("auc_counts", [input, label], attrs)
        found.append((add_value("auc", [counts]), [counts[1], counts[0]]))
        if of_last != 1:
            default_main_program().always.append(counts)
    (batch, batch_counts), (total, counts_of_all) = found
    return total, batch, [*batch_counts, *counts_of_all]
