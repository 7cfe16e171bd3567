"""Cases of the contract that are left out at a place, since another place of its backend shows the same.

By place: expressions for the names of cases, each with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_CODES = "a code takes one way, and test_the_first_failed_process_gives_the_code[…-137-SIGKILL] goes it"
_OBJECTS = "the objects are those of an attached job"
_OUTPUT = "nodes write and pack their logs as for an attached job"
_GUARDS = "guards end a node's programs as for an attached job; the loss of a pod is one case"

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "k8s_separate": {
        "values_and_arguments|lines_of_two|log_files": "a node of one role starts its programs as one of two",
        "first_failed.*-(0|1|3|139)-": _CODES,
        "signal_to_the_launcher.*-(1|2)]": "the launcher knows of one Job: each signal ends it as TERM does",
        "stopped_launcher|other_processes": "the lease is the head's, which is in a pod as with one Job",
        "losing_a_guard.*-(19-|9-agent)": _GUARDS,
        "bits_are_those_of_this_machine": "tests/integration/test_kube_separate.py trains so",
    },
    "k8s_detached": {
        "values_and_arguments": _OBJECTS,
        "bits_are_those_of_this_machine": _OBJECTS,
        "log_files": _OUTPUT,
        "first_failed.*-(0|1|3|139)-": _CODES,
        "losing_a_guard.*-19-": _GUARDS,
    },
    "k8s_rendered": {
        "values_and_arguments": _OBJECTS,
        "log_files|lines_of_two": _OUTPUT,
        "first_failed.*-(0|1|3|139)-": _CODES,
        "losing_a_guard.*-(19-|9-agent)": _GUARDS,
    },
}  # fmt: skip


def is_left_out(place: str, case: str) -> bool:
    """Return True if this case is left out at this place. case: as `test_name[place-parameters]`."""
    return any(re.search(expression, case) for expression in LEFT_OUT.get(place, ()))
