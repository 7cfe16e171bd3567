"""The commands: parse, call, print. `main` alone turns errors into text and exit codes.

What a user waits for on `--help` is this file and typer; everything else is imported where it is used.
Values stay text here: spec.py reads them, so that a wrong one is told in one way, wherever it came from.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from pslaunch.errors import PslaunchError, SpecError
from pslaunch.node import codes

BROKEN_PIPE: Final = codes.SIGNAL_BASE + 13
CANT_WRITE: Final = "can't write to standard output"
# What a write can meet; an open names its file, and our sockets don't give these.
WRITE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

PLANNED: Final = {"fabric": "hosts by SSH", "mpi": "an Open MPI cluster", "k8s": "Kubernetes"}

# Typer carries its own copy of click in some versions and depends on it in others.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@contextlib.contextmanager
def _usage_errors(ctx: Any) -> Iterator[None]:
    try:
        yield
    except SpecError as e:
        ctx.fail(str(e))


def _help(ctx: Any) -> None:
    typer.echo(ctx.get_help())
    ctx.exit()


# Typer would parse the options of the next two with pydantic, whose import takes longer than starting a
# job. They have text and flags only, so nothing of that is needed.


class Commands(TyperGroup):
    """The group: help when it stands alone, and the nearest command for one that is not there."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] == "--help":
            _help(ctx)
        if args[0] == "--version":
            from pslaunch import __version__

            typer.echo(f"pslaunch {__version__}")
            ctx.exit()
        if args[0] in PLANNED:
            ctx.fail(
                f"{args[0]} ({PLANNED[args[0]]}) is not there yet; what works today is pslaunch local, "
                "on one machine, where --nodes N simulates a cluster"
            )
        if args[0] not in self.commands:
            from pslaunch.args import nearest

            near = nearest(args[0].strip("-").lower(), self.commands, cutoff=0.5)
            meant = f"; is {near!r} meant?" if near else f"; there are {', '.join(self.commands)}"
            ctx.fail(f"no command {args[0]!r}{meant}")
        ctx.args = args
        return args

    def invoke(self, ctx: Any) -> Any:
        name, *words = ctx.args
        with self.commands[name].make_context(name, words, parent=ctx) as inner:
            return inner.command.invoke(inner)


class JobCommand(TyperCommand):
    """A command that starts a job: the words that are not ours go to the trainer and the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from pslaunch.args import split_command_line

        options = {
            opt.removeprefix("--"): not getattr(param, "is_flag", False)
            for param in self.get_params(ctx)
            for opt in param.opts
        }
        with _usage_errors(ctx):
            split = split_command_line(args, options)
        if "--help" in split.ours:
            _help(ctx)
        ctx.meta["split"] = split
        ctx.params.update(_values(split.ours, options))
        return []


def _values(ours: Sequence[str], options: Mapping[str, bool]) -> dict[str, Any]:
    """The parameters of a command: text or None, True or False, a list where it may be repeated."""
    from pslaunch.args import REPEATABLE

    values: dict[str, Any] = {name: None if valued else False for name, valued in options.items()}
    values.pop("help", None)
    for word in ours:
        name, _, value = word.removeprefix("--").partition("=")
        if name in REPEATABLE:
            values[name] = [*(values[name] or ()), value]
        else:
            values[name] = value if options[name] else True
    return values


class PassCommand(TyperCommand):
    """A command whose words all go to another program, as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args
        return args


app = typer.Typer(
    cls=Commands, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Parameter-server training jobs: one command, any cluster, the same result.",
)  # fmt: skip


def _option(name: str, metavar: str, text: str, default: str = "") -> Any:
    """An option with a value: what it is, its unit, its default."""
    words = f"{text} [default: {default}]" if default else text
    return typer.Option(f"--{name}", metavar=metavar, help=words, show_default=False)


def _flag(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=f"{text} [default: off]", show_default=False)


Text = str | None
Json = Annotated[bool, _flag("json", "Print JSON: one object a line.")]


@app.command(cls=JobCommand, options_metavar="[OPTIONS] [PROGRAM [ARGS]...]")
def local(
    ctx: typer.Context,
    server_num: Annotated[Text, _option("server_num", "N", "Parameter servers; 0 trains alone.", "1")] = None,
    worker_num: Annotated[Text, _option("worker_num", "N", "Trainers.", "1")] = None,
    server: Annotated[
        Text,
        _option(
            "server",
            "HOW",
            "How pservers are started: bundled runs `pslaunch pserver`, script runs the "
            "program in both roles, auto reads the program to see which it wants.",
            "auto",
        ),
    ] = None,
    job_workspace: Annotated[
        Text, _option("job_workspace", "DIR", "Folder that the programs run in.", "the program's folder")
    ] = None,
    job_dispatch_package: Annotated[
        Text, _option("job_dispatch_package", "DIR", "Folder to send to the nodes; here it is used in place.")
    ] = None,
    job_name: Annotated[Text, _option("job_name", "NAME", "Name of the job.", "the workspace's name")] = None,
    trainer_count: Annotated[
        Text, _option("trainer_count", "N", "Compute threads of each trainer.", "1")
    ] = None,
    use_gpu: Annotated[
        Text, _option("use_gpu", "BOOL", "Train on a GPU; for programs with their own runtime.", "False")
    ] = None,
    port: Annotated[
        Text, _option("port", "PORT", "First port of the first pserver.", "a free block is chosen")
    ] = None,
    ports_num: Annotated[
        Text, _option("ports_num", "N", "Ports of each pserver for dense parameters.", "1")
    ] = None,
    ports_num_for_sparse: Annotated[
        Text,
        _option(
            "ports_num_for_sparse", "N", "Ports of each pserver for sparse tables; 0: the dense ones.", "0"
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        _option(
            "env",
            "NAME[=VALUE]",
            "A variable for the programs, with its value here or the one given; may be repeated.",
        ),
    ] = None,
    python: Annotated[
        Text, _option("python", "FILE", "Interpreter of .py programs.", "the one that runs pslaunch")
    ] = None,
    log_dir: Annotated[
        Text, _option("log_dir", "DIR", "Folder of the logs; output/ moves with it.", "log/ of the workspace")
    ] = None,
    grace: Annotated[
        Text, _option("grace", "SECONDS", "From the first TERM of an ending to KILL, in seconds.", "5")
    ] = None,
    lost_after: Annotated[
        Text, _option("lost_after", "SECONDS", "Silence after which a node counts as lost, in seconds.", "30")
    ] = None,
    stall_after: Annotated[
        Text,
        _option("stall_after", "SECONDS", "A step that waits this long is reported, in seconds.", "60"),
    ] = None,
    stall_timeout: Annotated[
        Text,
        _option("stall_timeout", "SECONDS", "A step that waits this long ends the job, in seconds.", "never"),
    ] = None,
    nodes: Annotated[
        Text,
        _option("nodes", "N", "Simulate a cluster: N nodes, each with a copy of the workspace.", "1"),
    ] = None,
    head: Annotated[
        Text, _option("head", "WHERE", "Where the job is decided: launcher, or node for node 0.", "launcher")
    ] = None,
    detach: Annotated[
        bool, _flag("detach", "Return once the programs run; the job goes on by itself.")
    ] = False,
    dry_run: Annotated[bool, _flag("dry_run", "Print the plan and start nothing.")] = False,
    json: Json = False,
) -> None:
    """Run one job on this machine: pservers and trainers of PROGRAM (train.py unless given).

    What follows PROGRAM is its own; `--` ends our options too. Before it, an option that is not ours
    goes on to it as --name=value or a bare --flag. Flags of the v2 trainer (--num_passes=3, --log_period,
    --dot_period, --saving_period, --save_dir, --test_period, --local, --no_save) win over what the
    program says.
    """
    from pathlib import Path

    from pslaunch.spec import local_spec, notes

    given = {name: value for name, value in ctx.params.items() if isinstance(value, str)}
    if detach:
        given["detach"] = ""
    with _usage_errors(ctx):
        spec = local_spec(given, env or [], ctx.meta["split"], cwd=Path.cwd(), environ=os.environ)
    _tell(ctx, notes(spec, ctx.meta["split"]))
    from pslaunch import session

    if dry_run:
        typer.echo(session.dry_run(spec, as_json=json))
        return
    raise typer.Exit(session.run(spec, as_json=json))


Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or an unmistakable beginning of it.")]


@app.command()
def jobs(json: Json = False) -> None:
    """List the jobs that go on by themselves, and how earlier ones ended."""
    from pslaunch.jobs import show_jobs

    show_jobs(sys.stdout, as_json=json)


@app.command()
def status(job: Job, json: Json = False) -> None:
    """Say how a job and each of its processes stand."""
    from pslaunch.jobs import show_status

    show_status(job, sys.stdout, as_json=json)


@app.command()
def logs(
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
    json: Json = False,
) -> None:
    """Print the output of a job's processes."""
    from pslaunch.jobs import show_logs

    raise typer.Exit(show_logs(job, process, sys.stdout, follow=follow, as_json=json))


@app.command()
def stop(job: Job, kill: Annotated[bool, _flag("kill", "At once, without TERM and grace.")] = False) -> None:
    """End a job, and wait for its end."""
    from pslaunch.jobs import stop as stop_job

    raise typer.Exit(stop_job(job, sys.stdout, kill=kill))


@app.command(cls=PassCommand, add_help_option=False, options_metavar="[OPTIONS]")
def pserver(ctx: typer.Context) -> None:
    """Run one parameter server by hand; `pslaunch pserver --help` says more."""
    # -P: the program is found by its import name, never in the folder in which it is started.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pslaunch.runtime.pserver", *ctx.args])


@app.command()
def version(json: Json = False) -> None:
    """Say which version this is and what it was compiled with."""
    from pslaunch import __version__
    from pslaunch.runtime import _core

    core = _core.features()
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
        code = typer.main.get_command(app).main(words, prog_name="pslaunch", standalone_mode=False)
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
    return code if isinstance(code, int) else codes.OK


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
            print(f"{command}: {_printable(message)}", file=sys.stderr)
    return code


def _tell(ctx: Any, said: Sequence[str]) -> None:
    """What is done with the words of the command line, where that may not be what was meant."""
    for text in said:
        _complain(ctx.command_path, f"note: {text}", codes.OK)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
