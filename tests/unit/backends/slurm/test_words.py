"""Slurm's words in ours: causes of failures, and ends that it brings."""

from __future__ import annotations

import pytest

from pslaunch.backends.slurm import words
from pslaunch.node import codes
from support.pages import rows


@pytest.mark.parametrize(
    ("output", "code", "text"),
    [
        ("salloc: error: invalid partition specified: nope\nsalloc: error: Job submit/allocate failed: x",
         codes.USAGE, "no partition nope;"),
        ("salloc: error: Job submit/allocate failed: Invalid account or account/partition combination",
         codes.RIGHTS, "Invalid account or account/partition combination; give another"),
        ("salloc: error: Munge encode failed: no socket", codes.PREFLIGHT, "munge -n"),
        ("srun: error: Unable to confirm allocation for job 7: Invalid job id specified", codes.NODE_LOST,
         "the allocation is over"),
        ("srun: something new\n", codes.PREFLIGHT, "Slurm failed: srun: something new"),
    ],
)  # fmt: skip
def test_words_of_slurm_have_a_cause_and_a_code(output: str, code: int, text: str) -> None:
    cause = words.FAILURES.find_cause(output)
    assert cause.code == code and text in cause.text


@pytest.mark.parametrize(
    ("why", "code", "text"),
    [
        ("", codes.TERM, "by scancel"),
        (" DUE TO TIME LIMIT", codes.TERM, "due to time limit, give more time: --time"),
        (" DUE TO PREEMPTION", codes.TERM, "due to preemption, another job has a higher priority"),
        (" DUE TO NODE FAILURE", codes.NODE_LOST, "has lost a node (sinfo -R)"),
    ],
)
def test_end_by_slurm_is_told_by_its_words(why: str, code: int, text: str) -> None:
    said = f"slurmstepd-a: error: *** STEP 7.0 ON a CANCELLED AT 2026-01-01T00:00:00{why} ***\n"
    cause = words.find_end(f"noise\n{said}")
    assert cause and cause.code == code and text in cause.text and "step 7.0" in cause.text
    assert words.find_end("noise") is None


def test_page_has_the_message_of_every_failure() -> None:
    listed = [(code, message) for _, code, message in rows("slurm.md", "Failures")]
    assert listed[:-1] == [(str(int(code)), text.format("…", "…")) for _, code, text in words.PATTERNS]
