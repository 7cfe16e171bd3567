"""The error tree and its exit codes."""

import pickle

import pytest

from pslaunch import errors
from pslaunch.errors import HostError, HostRightsError, HostsError
from pslaunch.node import codes


def test_hosts_that_all_refuse_our_keys_are_a_matter_of_rights() -> None:
    refused, down = HostRightsError("a", "authenticate", "no key"), HostError("b", "connect", "no route")
    assert HostsError({0: refused}, 3).exit_code == codes.RIGHTS
    assert HostsError({0: refused, 2: down}, 3).exit_code == codes.HOST


def test_what_an_extra_lacks_is_named_with_its_line_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "EXTRAS", {"ssh": {"json": "JSON", "absent_module": "Fabric"}})
    errors.require_extra("")
    with pytest.raises(errors.PreflightError, match=r"needs Fabric: pip install 'pslaunch\[ssh\]'"):
        errors.require_extra("ssh")


def test_errors_cross_processes_whole() -> None:
    failed = errors.JobError("FAILED", 3, "trainer/1 ended with 3", "trainer/1", "b", ["no data"])
    for error in (failed, HostError("a", "connect", "no route"), errors.EndedEarlyError(2, "Ctrl+C")):
        got = pickle.loads(pickle.dumps(error))
        assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))
