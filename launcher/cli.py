"""The commands: parse, call, print. `main` alone turns errors into text and exit codes.

What a user waits for on `--help` is this file and typer; everything else is imported where it is used.
Values stay text here: spec.py reads them, so that a wrong one is told in one way, wherever it came from.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from .errors import PslaunchError
from .node import codes
from .node.logs import clean_lines
from .options.options import PLANNED
from .options.typer_glue import (
    HELP_NAMES,
    Commands,
    JobCommand,
    PassCommand,
    PlainCommand,
    UsageError,
    add_options,
    make_flag_option,
    report_usage_errors,
)

if TYPE_CHECKING:
    from .options.sources import Given
    from .options.spec import Elsewhere, JobSpec

BROKEN_PIPE: Final = codes.SIGNAL_BASE + 13
CANT_WRITE: Final = "can't write to standard output"
# What a write can meet; an open names its file, and our sockets don't give these.
WRITE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class JobCommands(Commands):
    """`pslaunch`."""

    absent: ClassVar = {
        name: f"{name} ({what}) is not there yet; what works today is pslaunch local, on one machine, "
        "and pslaunch fabric, on hosts by SSH"
        for name, what in PLANNED.items()
    }


class CheckCommands(Commands):
    """`pslaunch check`."""

    absent: ClassVar = {
        **JobCommands.absent,
        "local": "there are no hosts of pslaunch local to look at; pslaunch local --dry_run says what "
        "it would start, and pslaunch check fabric looks at hosts that are reached by SSH",
    }


app = typer.Typer(
    cls=JobCommands, context_settings={"help_option_names": list(HELP_NAMES)},
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Parameter-server training jobs: one command, any cluster, the same result.",
)  # fmt: skip


Text = str | None
Json = Annotated[bool, make_flag_option("json", "Print JSON: one object a line.")]


def _add_job_command(
    group: typer.Typer, name: str, backend: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command with the options of a backend."""

    def add(run: Callable[..., None]) -> Callable[..., None]:
        cls = type("BackendCommand", (JobCommand,), {"backend": backend})
        command = group.command(name, cls=cls, options_metavar="[OPTIONS] [PROGRAM [ARGS]...]")
        return command(add_options(backend)(run))

    return add


@_add_job_command(app, "local", backend="local")
def local(ctx: typer.Context, **_options: Any) -> None:
    """Run one job on this machine: its pservers and trainers.

    PROGRAM is train.py unless given. What follows it is its own; `--` ends our options too. Before it, an
    option that is not ours goes on to it as --name=value or a bare --flag. Flags of the v2 trainer
    (--num_passes=3, --log_period, --dot_period, --saving_period, --save_dir, --test_period, --local,
    --no_save) win over what the program says. Options may also stand in ./pslaunch.toml.
    """
    from .options.local_spec import make_local_spec

    _run_job(ctx, make_local_spec)


@_add_job_command(app, "fabric", backend="fabric")
def fabric(ctx: typer.Context, **_options: Any) -> None:
    """Run one job on hosts that are reached by SSH: conf.py says which.

    The folder of --job_dispatch_package is sent to every host, and PROGRAM (train.py unless given) runs in
    it there. The hosts need sshd and Python 3.9 or later. Options win over ./pslaunch.toml, and that over
    conf.py; what stands before and after PROGRAM is taken as by `pslaunch local`.
    """
    from .options.fabric_spec import make_fabric_spec

    _run_job(ctx, make_fabric_spec)


checks = typer.Typer(
    cls=CheckCommands, rich_markup_mode=None, help="Look at all hosts of a job, and start nothing of it."
)
app.add_typer(checks, name="check")


@_add_job_command(checks, "fabric", backend="fabric")
def check_fabric(ctx: typer.Context, **_options: Any) -> None:
    """Look at all hosts of a job, and say of each all that would keep it from running.

    Takes the command line of `pslaunch fabric` as it is. Nothing is sent to the hosts or started there.
    With --json: one object a host. The exit code is 0 where the job can run.
    """
    from .options.fabric_spec import make_fabric_spec

    spec, given = _read_job(ctx, make_fabric_spec)
    from .check.check import begin_trace, check

    trace = begin_trace(spec.trace, "check") if spec.trace else None
    raise typer.Exit(check(spec, sys.stdout, as_json=given.is_set("json"), trace=trace))


def _run_job(ctx: typer.Context, make_spec: Callable[..., JobSpec]) -> None:
    spec, given = _read_job(ctx, make_spec)
    as_json = given.is_set("json")
    from .run import session

    if given.is_set("dry_run"):
        connect = "connect" in given.options and given.is_set("connect")
        typer.echo(clean_lines(session.render_dry_run(spec, as_json=as_json, connect=connect)))
        return
    raise typer.Exit(session.run(spec, as_json=as_json))


def _read_job(ctx: typer.Context, make_spec: Callable[..., JobSpec]) -> tuple[JobSpec, Given]:
    """What the user wants, and where it was said."""
    from pathlib import Path

    from .options.sources import gather
    from .options.spec import list_notes

    split = ctx.meta["split"]
    with report_usage_errors(ctx):
        given = gather(ctx.meta["backend"], split, Path.cwd())
        spec = make_spec(given, split, cwd=Path.cwd(), environ=os.environ)
    _tell(ctx, list_notes(spec, given, split, os.environ))
    return spec, given


Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or an unmistakable beginning of it.")]
Conf = Annotated[
    Text,
    typer.Option(
        "--conf",
        metavar="FILE",
        help="Ask the first host of this conf.py. [default: the jobs that this machine knows of]",
        show_default=False,
    ),
]


def _find_elsewhere(ctx: Any, conf: Text) -> Elsewhere | None:
    """Return the node that is asked for jobs; None without a conf.py."""
    if conf is None:
        return None
    from pathlib import Path

    from .options.fabric_spec import find_first_host

    with report_usage_errors(ctx):
        return find_first_host(conf, Path.cwd())


@app.command(cls=PlainCommand)
def jobs(
    ctx: typer.Context,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """List jobs that go on by themselves, and how earlier ones ended."""
    from .run.jobs import show_jobs

    show_jobs(sys.stdout, as_json=json, elsewhere=_find_elsewhere(ctx, conf))


@app.command(cls=PlainCommand)
def status(
    ctx: typer.Context,
    job: Job,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Say how a job and each of its processes stand."""
    from .run.jobs import show_status

    show_status(job, sys.stdout, as_json=json, elsewhere=_find_elsewhere(ctx, conf))


@app.command(cls=PlainCommand)
def logs(
    ctx: typer.Context,
    job: Job,
    process: Annotated[
        Text,
        typer.Argument(
            metavar="[PROCESS]", help="One process, such as trainer/1; else all.", show_default=False
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on until the job ends. [default: off]", show_default=False),
    ] = False,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Print the output of a job's processes."""
    from .run.jobs import show_logs

    elsewhere = _find_elsewhere(ctx, conf)
    raise typer.Exit(show_logs(job, process, sys.stdout, follow=follow, as_json=json, elsewhere=elsewhere))


@app.command(cls=PlainCommand)
def stop(
    ctx: typer.Context,
    job: Job,
    kill: Annotated[bool, make_flag_option("kill", "At once, without TERM and grace.")] = False,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """End a job, and wait for its end."""
    from .run.jobs import stop as stop_job

    elsewhere = _find_elsewhere(ctx, conf)
    raise typer.Exit(stop_job(job, sys.stdout, kill=kill, as_json=json, elsewhere=elsewhere))


@app.command(cls=PlainCommand)
def fetch(
    ctx: typer.Context,
    job: Job,
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Gets output/, and log/ with a folder for each node.")
    ],
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Bring what a job has left on its nodes: its output and all logs."""
    from pathlib import Path

    from .run.jobs import fetch as fetch_job

    elsewhere = _find_elsewhere(ctx, conf)
    raise typer.Exit(fetch_job(job, Path(folder), sys.stdout, as_json=json, elsewhere=elsewhere))


@app.command(cls=PassCommand, add_help_option=False, options_metavar="[OPTIONS]")
def pserver(ctx: typer.Context) -> None:
    """Run one parameter server by hand."""
    # -P: the program is found by its import name, never in the folder in which it is started.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pslaunch.runtime.pserver", *ctx.args])


@app.command(cls=PlainCommand)
def version(json: Json = False) -> None:
    """Say which version this is and what it was compiled with."""
    from pslaunch.runtime import _core

    from . import __version__

    core = _core.get_features()
    features = {
        "with_avx": core["avx2"],
        "with_gpu": core["gpu"],
        "with_double": core["double"],
        "with_python": True,
        "with_rdma": core["rdma"],
        "with_timer": False,
    }
    if json:
        import json as text

        typer.echo(text.dumps({"version": __version__, **features}))
        return
    typer.echo(f"pslaunch {__version__}, compiled with")
    for name, on in features.items():
        typer.echo(f"    {name}: {'ON' if on else 'OFF'}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; a usage error is one line and code 2."""
    _fill_standard_descriptors()
    sys.exit(_run(argv))


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None and words[:1] != ["pserver"]:  # which writes to its own log
        return _complain("pslaunch", f"{CANT_WRITE}: it is closed; > /dev/null discards it", codes.IO)
    try:
        code = _invoke(words)
        sys.stdout.flush()
    except UsageError as e:
        ctx = getattr(e, "ctx", None)
        message = getattr(e, "format_message", e.__str__)()
        return _complain(ctx.command_path if ctx else "pslaunch", message, codes.USAGE)
    except PslaunchError as e:
        return _complain("pslaunch", str(e), e.exit_code)
    except BrokenPipeError:
        _give_up_output()  # its reader has gone
        return BROKEN_PIPE
    except OSError as e:
        if e.filename is not None or e.errno not in WRITE_ERRORS:
            raise
        _give_up_output()
        return _complain("pslaunch", f"{CANT_WRITE}: {e.strerror}", codes.IO)
    return code


def _invoke(words: list[str]) -> int:
    """As typer's `main` does, which would answer a reader that has gone by itself, with 1."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("pslaunch", words) as ctx:
            command.invoke(ctx)
    except typer.Exit as e:
        return e.exit_code
    except KeyboardInterrupt:
        return codes.INT
    return codes.OK


def _give_up_output() -> None:
    """What is still buffered must not fail a second time at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _fill_standard_descriptors() -> None:
    """Those of 0 to 2 that are closed become /dev/null: no socket or file of ours must get their numbers."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.dup(fd)
    os.close(fd)


def _complain(command: str, message: str, code: int) -> int:
    if sys.stderr is not None:  # else it is closed
        with contextlib.suppress(OSError):
            print(f"{command}: {clean_lines(message, sys.stderr.encoding or 'utf-8')}", file=sys.stderr)
    return code


def _tell(ctx: Any, said: Sequence[str]) -> None:
    """Print notes to standard error."""
    for text in said:
        _complain(ctx.command_path, f"note: {text}", codes.OK)
