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

_FIRST = "as in the first placement of this backend, by the same code of the package"
_CONTRACT = "a place has its own way to start and to end; what lies between is one code for all"
_PLACED = {
    "values_and_arguments|log_files|lines_of_two|workspaces_have": _FIRST,
    "proxies|git_ignores|not_executable|ports_of_a_script|killing_a_program|ignores_term": _FIRST,
    "two_jobs_with|other_processes": _FIRST,
    "first_failed.*-(0|1|3|139)-": _CODES,
    "signal_to_the_launcher.*-(1|2)]": "each signal goes as TERM does",
}
_STOPPED = {"losing_a_guard.*-19-|stopped_launcher": "silence is noticed by the head, wherever it is"}

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    **{place: {"first_failed.*-(1|3|139)-": _CODES} for place in ("local_led_cluster", "fabric", "mpi")},
    "local_cluster": {**_PLACED, **_STOPPED},
    "fabric_led": _PLACED,
    "mpi4": {**_PLACED, **_STOPPED},
    "mpi_led": {**_PLACED, **_STOPPED},
    "fabric_furnished": {
        "two_jobs_at_once|interrupting_a|killing_the_launcher_of": _CONTRACT,
        "alone_equals|that_leaves_with_0|killed_process.*-11-": _CONTRACT,
        "other_modes.*geo": "mpi_furnished has it",
    },
    "mpi_furnished": {"other_modes.*async": "fabric_furnished has it"},
    "k8s_separate": {
        "values_and_arguments|lines_of_two|log_files": "a node of one role starts its programs as one of two",
        "first_failed.*-(0|1|3|139)-": _CODES,
        "signal_to_the_launcher.*-(1|2)]": "the launcher knows of one Job: each signal ends it as TERM does",
        "stopped_launcher|other_processes": "the lease is the head's, which is in a pod as with one Job",
        "losing_a_guard.*-(19-|9-agent)": _GUARDS,
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
