"""Answers of a Kubernetes API in words: cause, remedy, exit code."""

from __future__ import annotations

import pytest

from pslaunch.backends.k8s.api_errors import (
    Place,
    Right,
    explain_answer,
    explain_connection,
    explain_plugin,
    explain_rights,
    find_refusal_remedy,
    make_rule,
)

PLACE = Place("https://k:6443", "context test of /home/me/.kube/config", "team")
FORBIDDEN = (
    'pods "j-0" is forbidden: User "developer" cannot create resource "pods/exec" in API group "" '
    'in the namespace "team"'
)


def test_forbidden_names_the_verb_and_the_rule_to_add() -> None:
    error = explain_answer("run a program in pod j-0", 403, FORBIDDEN, PLACE)
    assert error.exit_code == 77
    assert "developer has no right to create pods/exec in namespace team" in str(error)
    assert '{apiGroups: [""], resources: [pods/exec], verbs: [create]}' in str(error)


def test_rights_on_one_kind_are_one_rule() -> None:
    rights = [Right("create", "jobs", "batch"), Right("get", "pods"), Right("delete", "jobs", "batch")]
    assert make_rule(rights) == (
        '{apiGroups: ["batch"], resources: [jobs], verbs: [create, delete]}, '
        '{apiGroups: [""], resources: [pods], verbs: [get]}'
    )
    assert "has no right to create jobs, get pods, delete jobs" in str(explain_rights(rights, PLACE))


@pytest.mark.parametrize(
    ("status", "message", "code", "words"),
    [
        (401, "Unauthorized", 68, "log in to the cluster again"),
        (403, FORBIDDEN.replace("developer", "system:anonymous"), 68, "log in to the cluster again"),
        (404, 'namespaces "tame" not found', 2, "namespace tame does not exist"),
        (404, 'services "j-head" not found', 78, "can't create Job j"),
        (403, 'jobs "j" is forbidden: exceeded quota: small, requested: count/jobs.batch=1', 78, "ask for"),
        (403, 'pods "j-0" is forbidden: failed quota: small: must specify limits.cpu', 78, "--memory"),
        (403, 'pods "j-0" is forbidden: violates PodSecurity "restricted:latest"', 78, "security level"),
        (403, 'admission webhook "w.test" denied the request: no', 78, "its administrator"),
        (500, 'Internal error occurred: failed calling webhook "w.test": refused', 78, "does not answer"),
        (422, 'Job.batch "j" is invalid: spec.template.spec.x: Required value', 78, "--patch"),
        (400, 'Job in version "v1" cannot be handled as a Job: json: bad', 78, "--patch"),
        (429, "too many requests", 68, "try again later"),
        (410, "too old resource version: 1 (2)", 68, "try again later"),
        (503, "apiserver is shutting down", 68, "try again later"),
    ],
)  # fmt: skip
def test_answers_have_codes_and_remedies(status: int, message: str, code: int, words: str) -> None:
    error = explain_answer("create Job j", status, message, PLACE)
    assert (error.exit_code, words in str(error)) == (code, True), error
    assert status in (403, 404) or message in str(error)


def test_refusals_in_events_have_the_same_remedies() -> None:
    said = 'pods "j-0-x" is forbidden: [maximum cpu usage per Container is 1, but limit is 2]'
    assert "LimitRange" in find_refusal_remedy(f"Error creating: {said}")
    assert find_refusal_remedy("Created pod: j-0-x") == ""


def test_missing_program_for_credentials_is_named_with_its_file_and_hint() -> None:
    said, path = "[Errno 2] No such file or directory: 'get-token'", "/home/me/.kube/config"
    error = explain_plugin(said, {"command": "get-token", "installHint": "See\nhttps://k.test\n"}, path)
    assert (
        error
        and error.exit_code == 68
        and str(error)
        == (
            "the credentials of /home/me/.kube/config come from get-token, which is not installed here; "
            "install it (See https://k.test), or give another --kubeconfig or --context"
        )
    )
    assert "install it, or" in str(explain_plugin(said, {"command": "get-token", "installHint": None}, path))
    assert explain_plugin("exec: process returned 1", {"command": "get-token"}, path) is None
    assert explain_plugin(said, {}, path) is None


def test_connections_fail_in_the_systems_words() -> None:
    said = "Failed: [Errno 111] Connection refused"
    refused = explain_connection(f"HTTPSConnection(host='k', port=6443): {said}", PLACE)
    assert str(refused).startswith(f"https://k:6443: it is not reached: {said}; check")
    foreign = explain_connection("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", PLACE)
    assert "no safe connection" in str(foreign) and refused.exit_code == foreign.exit_code == 68
