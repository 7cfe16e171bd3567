"""The error tree: exit codes, and the drawing at the top of errors.py."""

import inspect
import re

from pslaunch import errors
from pslaunch.errors import HostError, HostRightsError, HostsError
from pslaunch.node import codes

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, errors.PslaunchError)
}


def test_the_drawing_shows_every_class_with_its_code() -> None:
    drawn = dict(re.findall(r"(\w+Error)\s+(\d+) ", errors.__doc__ or ""))
    assert {name: str(cls.exit_code) for name, cls in CLASSES.items()} == drawn


def test_every_code_has_a_name() -> None:
    named = {value for value in vars(codes).values() if isinstance(value, int)}
    assert {cls.exit_code for cls in CLASSES.values()} <= named - {codes.SIGNAL_BASE}


def test_from_os_names_action_path_and_the_systems_words() -> None:
    error = errors.FileError.from_os(OSError(28, "No space left on device", "/ws/log"), "write the log")
    assert str(error) == "can't write the log /ws/log: No space left on device"
    assert error.exit_code == 74


def test_host_error_keeps_its_parts() -> None:
    error = errors.HostError("node7", "connecting", "timed out after 10 s")
    assert str(error) == "node7: connecting failed: timed out after 10 s"
    assert (error.host, error.step) == ("node7", "connecting")


def test_hosts_that_all_refuse_our_keys_are_a_matter_of_rights() -> None:
    refused, down = HostRightsError("a", "authenticate", "no key"), HostError("b", "connect", "no route")
    assert HostsError({0: refused}, 3).exit_code == codes.RIGHTS
    assert HostsError({0: refused, 2: down}, 3).exit_code == codes.HOST
