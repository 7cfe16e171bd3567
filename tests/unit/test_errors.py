"""The error tree and its exit codes."""

from pslaunch import errors
from pslaunch.errors import HostError, HostRightsError, HostsError
from pslaunch.node import codes


def test_from_os_names_action_path_and_the_systems_words() -> None:
    error = errors.FileError.from_os(OSError(28, "No space left on device", "/ws/log"), "write the log")
    assert str(error) == "can't write the log /ws/log: No space left on device; free some space there"
    assert error.exit_code == 74


def test_hosts_that_all_refuse_our_keys_are_a_matter_of_rights() -> None:
    refused, down = HostRightsError("a", "authenticate", "no key"), HostError("b", "connect", "no route")
    assert HostsError({0: refused}, 3).exit_code == codes.RIGHTS
    assert HostsError({0: refused, 2: down}, 3).exit_code == codes.HOST
