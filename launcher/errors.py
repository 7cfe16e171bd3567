"""All errors that a user can cause or act on, with exit codes; `cli.main` prints them."""

from __future__ import annotations

import copyreg
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from .node import codes

# Signals that end a launcher, with their text in messages.
STOP_SIGNALS: Final[Mapping[int, str]] = {
    signal.SIGINT: "interrupted (Ctrl+C)",
    signal.SIGTERM: "the launcher was asked to end (SIGTERM)",
    signal.SIGHUP: "the terminal was closed (SIGHUP)",
}


class PslaunchError(Exception):
    """Base: the message has failure, place, the system's words and the remedy; printed unchanged."""

    exit_code: int = codes.FAILED

    def __reduce__(self) -> tuple[object, ...]:  # without `__init__`, which may take more
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


# By extra of the package: the modules that it brings, with their names in messages.
EXTRAS: Final[Mapping[str, Mapping[str, str]]] = {
    "ssh": {"fabric": "Fabric"},
    "k8s": {"kubernetes": "the Kubernetes client", "jinja2": "Jinja2"},
    "mpi": {"jinja2": "Jinja2"},
    "tensorboard": {"tensorboardX": "tensorboardX"},
}


class SpecError(PslaunchError):
    """Invalid input; the message names the option (or file and key) and the value."""

    exit_code = codes.USAGE


class HostError(PslaunchError):
    """A host could not be reached or used."""

    exit_code = codes.HOST

    def __init__(self, host: str, step: str, detail: str) -> None:
        super().__init__(f"{host}: {step} failed: {detail}")
        self.host, self.step, self.detail = host, step, detail


class HostsError(PslaunchError):
    """Several hosts failed; each is named on its own line."""

    exit_code = codes.HOST

    def __init__(self, failed: Mapping[int, HostError], asked: int) -> None:
        """`failed`: by node."""
        lines = "".join(f"\n  {e}" for e in failed.values())
        super().__init__(f"{len(failed)} of {asked} hosts can't be used:{lines}")
        self.failed = dict(failed)
        if all(isinstance(e, RightsError) for e in failed.values()):
            self.exit_code = codes.RIGHTS


class ClusterError(PslaunchError):
    """A cluster's API was not reached, can't answer now, or does not accept the user's credentials."""

    exit_code = codes.HOST

    def __init__(self, server: str, cause: str, remedy: str) -> None:
        """server: its address, "" if it is not known."""
        super().__init__(f"{f'{server}: ' if server else ''}{cause}; {remedy}")
        self.server, self.cause = server, cause


class ServiceError(PslaunchError):
    """A port is busy, or a service does not answer."""

    exit_code = codes.SERVICE


class FileError(PslaunchError):
    """Reading or writing a file failed."""

    exit_code = codes.IO

    @classmethod
    def from_os(cls, error: OSError, doing: str) -> FileError:
        """Return an error from `doing` (such as "write the log"), the file and the system's words."""
        where = f" {error.filename}" if error.filename else ""
        return cls(f"can't {doing}{where}: {error.strerror or error}{codes.find_remedy(error)}")


class NodeLostError(PslaunchError):
    """A node's connection closed or its heartbeat stopped."""

    exit_code = codes.NODE_LOST


class RightsError(PslaunchError):
    """Rights or keys are missing."""

    exit_code = codes.RIGHTS


class HostRightsError(RightsError, HostError):
    """A host refuses our keys."""


class PreflightError(PslaunchError):
    """A node lacks something that the job needs; nothing was started."""

    exit_code = codes.PREFLIGHT

    def __init__(self, text: str, code: int = codes.PREFLIGHT) -> None:
        super().__init__(text)
        self.exit_code = code


def require_extra(extra: str) -> None:
    """Raise PreflightError unless this Python has the modules of an extra; "" has none."""
    from importlib.util import find_spec

    for module, name in EXTRAS.get(extra, {}).items():
        if find_spec(module) is None:
            raise PreflightError(f"this needs {name}: pip install 'pslaunch[{extra}]'")


class JobError(PslaunchError):
    """A job of `launch` that has failed or was stopped; the message is what the command line prints.

    exit_code, cause: of the job. process, host: where it failed first, "" if neither is at fault. tail: the
    last lines of the log of that process.
    """

    def __init__(
        self, text: str, code: int, cause: str, process: str, host: str, tail: Sequence[str]
    ) -> None:
        super().__init__(text)
        self.exit_code, self.cause = code, cause
        self.process, self.host, self.tail = process, host, tuple(tail)


class EndedEarlyError(PslaunchError):
    """A signal asked the launcher to end before there was a job; no failure, but nothing was run."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{why}; no program was started")
        self.exit_code, self.why = codes.SIGNAL_BASE + number, why
