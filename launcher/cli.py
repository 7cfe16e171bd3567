"""The commands: parse, call, print. `main` turns errors into text and exit codes.

For a fast `--help` only typer is imported here; everything else is imported where it is used.
Values stay text here: spec.py reads them, with the same messages for every source.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from .errors import FileError, PslaunchError
from .node import codes
from .node.logs import clean_lines
from .options.typer_glue import (
    HELP_NAMES,
    Commands,
    JobCommand,
    PassCommand,
    PlainCommand,
    UsageError,
    make_flag_option,
    report_usage_errors,
)
from .place import ask_place

if TYPE_CHECKING:
    from .options.sources import Given
    from .options.spec import JobSpec

BROKEN_PIPE: Final = codes.SIGNAL_BASE + 13
CANT_WRITE: Final = "can't write to standard output"
# Errors of writes to standard output; an open names its file, and our sockets don't raise these.
WRITE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class CheckCommands(Commands):
    """`pslaunch check`."""

    absent: ClassVar = {
        "local": "pslaunch local has no hosts to check; pslaunch local --dry_run prints its plan, "
        "and pslaunch check fabric checks hosts by SSH",
    }


app = typer.Typer(
    cls=Commands, context_settings={"help_option_names": list(HELP_NAMES)},
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Parameter-server training jobs: one command, any cluster, the same result.",
)  # fmt: skip


OptionalText = str | None
Json = Annotated[bool, make_flag_option("json", "Print JSON: one object a line.")]


def _add_job_command(
    group: typer.Typer, name: str, backend: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command with the options of a backend."""
    cls = type("BackendCommand", (JobCommand,), {"backend": backend})
    return group.command(name, cls=cls, options_metavar="[OPTIONS] [PROGRAM [ARGS]...]")


@_add_job_command(app, "local", backend="local")
def local(ctx: typer.Context) -> None:
    """Run one job on this machine: its pservers and trainers.

    PROGRAM is train.py unless given. All words after it are its own; `--` ends our options too. Unknown
    options before it are passed to it, as --name=value or a bare --flag. Flags of the v2 trainer
    (--num_passes=3, --log_period, --dot_period, --saving_period, --save_dir, --test_period, --local,
    --no_save) overrule the program. Options may also be in ./pslaunch.toml.
    """
    from .options.local_spec import make_local_spec

    _run_job(ctx, make_local_spec)


@_add_job_command(app, "fabric", backend="fabric")
def fabric(ctx: typer.Context) -> None:
    """Run one job on the hosts of conf.py, by SSH.

    The folder of --job_dispatch_package is sent to every host, and PROGRAM (train.py unless given) runs in
    it there. The hosts need sshd and Python 3.9 or later. Options overrule ./pslaunch.toml, which overrules
    conf.py; words before and after PROGRAM are handled as by `pslaunch local`.
    """
    from .options.fabric_spec import make_fabric_spec

    _run_job(ctx, make_fabric_spec)


@_add_job_command(app, "mpi", backend="mpi")
def mpi(ctx: typer.Context) -> None:
    """Run one job under mpirun of Open MPI 4 or 5.

    Each rank is a trainer, and each host has a pserver. The program's folder is sent to every host. The hosts
    need Open MPI and Python 3.9 or later. Options have mpirun's names: -hostfile machines -n 3. Words before
    and after PROGRAM are handled as by `pslaunch local`.
    """
    from .options.mpi_spec import make_mpi_spec

    spec, given = _read_job(ctx, make_mpi_spec)
    if given.get("script") is None:
        _start_job(spec, given)
        return
    from pathlib import Path

    from .backends.mpi_script import render_batch_script, render_plain_script

    kind, hostfile = given.read("script"), given.get("hostfile")
    with report_usage_errors(ctx):
        if kind == "plain":
            text = render_plain_script(spec, hostfile.text if hostfile else "")
        else:
            text = render_batch_script(spec, kind, given.get_all("directive"), ctx.meta["split"], Path.cwd())
    _write_script(text, given.read("output"))


def _write_script(text: str, path: str | None) -> None:
    """Write a script to an executable file, or to standard output."""
    if path is None:
        typer.echo(text, nl=False)
        return
    from pathlib import Path

    try:
        Path(path).write_text(text)
        Path(path).chmod(0o755)
    except OSError as e:
        raise FileError.from_os(e, "write the script") from e


k8s = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    help="Run jobs on Kubernetes, or print their manifests.",
)
app.add_typer(k8s, name="k8s")


@_add_job_command(k8s, "apply", backend="k8s")
def apply_k8s(ctx: typer.Context) -> None:
    """Run one job on Kubernetes, and wait for its end.

    Creates what `pslaunch k8s render` prints, under a new name, shows the job's output, fetches its output/
    and logs and removes all of it. Needs a kubeconfig and the rights of templates/k8s/role.yaml. Words before
    and after PROGRAM are handled as by `pslaunch local`.
    """
    from .options.k8s_spec import RUN_DIGITS, make_k8s_spec

    run = os.urandom(RUN_DIGITS // 2).hex()
    spec, given = _read_job(ctx, functools.partial(make_k8s_spec, run=run))
    if not given.is_set("validate"):
        _start_job(spec, given)
        return
    from .backends.k8s_validate import validate
    from .plan import make_plan

    plan = make_plan(spec, spec.site.job_id)
    raise typer.Exit(validate(plan, spec.site.reach, sys.stdout, as_json=given.is_set("json")))


@_add_job_command(k8s, "render", backend="k8s")
def render_k8s(ctx: typer.Context) -> None:
    """Print the manifests of one job, for `kubectl apply --server-side -f -`.

    Each pod is a node with a pserver and a trainer, and the program's folder travels along. The cluster needs
    no operator. The same job gives the same text; its secret is in none of it: a command that makes it is
    printed on standard error. Words before and after PROGRAM are handled as by `pslaunch local`.
    """
    from .options.k8s_spec import OF_LAUNCHER, make_k8s_spec

    spec, given = _read_job(ctx, make_k8s_spec)
    from pathlib import Path

    from .options.locate import check_folder_to_make
    from .options.spec import refuse_without_effect

    with report_usage_errors(ctx):
        folder = check_folder_to_make(given.get("output_dir"), Path.cwd())
        for name in ("kubeconfig", "context", *OF_LAUNCHER):
            refuse_without_effect(given, name, "on manifests; no cluster is asked for them")
    from .backends import k8s_manifests as manifests
    from .plan import make_plan

    plan = make_plan(spec, spec.job_name)
    package = manifests.pack_package(plan, os.environ, lambda text: _tell(ctx, [text]))
    manifests.refuse_brought(plan, package)
    rendered = manifests.render(plan, spec.site.reach, package)
    if folder is None:
        typer.echo("---\n".join(rendered.values()), nl=False)
    else:
        manifests.write(rendered, folder)
    _tell(ctx, [f"before it is applied: {manifests.make_secret_command(spec.site.reach)}"])


checks = typer.Typer(
    cls=CheckCommands,
    rich_markup_mode=None,
    help="Check the hosts or the cluster of a job without starting it.",
)
app.add_typer(checks, name="check")


@_add_job_command(checks, "fabric", backend="fabric")
def check_fabric(ctx: typer.Context) -> None:
    """Check all hosts of a job and report everything that would prevent it from running.

    Takes the command line of `pslaunch fabric` unchanged. Nothing is sent to the hosts or started there.
    With --json: one object a host. The exit code is 0 if the job can run.
    """
    from .options.fabric_spec import make_fabric_spec

    _check_job(ctx, make_fabric_spec)


@_add_job_command(checks, "mpi", backend="mpi")
def check_mpi(ctx: typer.Context) -> None:
    """Check all hosts of a job through mpirun, and report everything that would prevent it from running.

    Takes the command line of `pslaunch mpi` unchanged. No program is started. With --json: one object a host.
    The exit code is 0 if the job can run.
    """
    from .options.mpi_spec import make_mpi_spec

    _check_job(ctx, make_mpi_spec)


@_add_job_command(checks, "k8s", backend="k8s")
def check_k8s(ctx: typer.Context) -> None:
    """Check the cluster for a job and report everything that would prevent it from running.

    Takes the command line of `pslaunch k8s apply` unchanged. Nothing is created. With --json: one object.
    The exit code is 0 if the job can run.
    """
    from .options.k8s_spec import RUN_DIGITS, make_k8s_spec

    spec, given = _read_job_to_check(ctx, functools.partial(make_k8s_spec, run=RUN_DIGITS * "0"))
    from .check.cluster import check_cluster

    raise typer.Exit(check_cluster(spec, sys.stdout, as_json=given.is_set("json")))


def _check_job(ctx: typer.Context, make_spec: Callable[..., JobSpec]) -> None:
    spec, given = _read_job_to_check(ctx, make_spec)
    from .check.check import begin_trace, check

    trace = begin_trace(spec.trace, "check") if spec.trace else None
    raise typer.Exit(check(spec, sys.stdout, as_json=given.is_set("json"), trace=trace))


def _run_job(ctx: typer.Context, make_spec: Callable[..., JobSpec]) -> None:
    _start_job(*_read_job(ctx, make_spec))


def _start_job(spec: JobSpec, given: Given) -> None:
    as_json = given.is_set("json")
    from .run import session

    if given.is_set("dry_run"):
        connect = "connect" in given.options and given.is_set("connect")
        typer.echo(clean_lines(session.render_dry_run(spec, as_json=as_json, connect=connect)))
        return
    raise typer.Exit(session.run(spec, as_json=as_json))


def _read_job(ctx: typer.Context, make_spec: Callable[..., JobSpec]) -> tuple[JobSpec, Given]:
    """Return the job and the sources of its options."""
    from pathlib import Path

    from .options.sources import gather
    from .options.spec import list_notes

    split = ctx.meta["split"]
    with report_usage_errors(ctx):
        given = gather(ctx.meta["backend"], split, Path.cwd())
        spec = make_spec(given, split, cwd=Path.cwd(), environ=os.environ)
    _tell(ctx, list_notes(spec, given, split))
    return spec, given


def _read_job_to_check(ctx: typer.Context, make_spec: Callable[..., JobSpec]) -> tuple[JobSpec, Given]:
    from .options.detect import check_syntax
    from .options.locate import DEFAULT_PROGRAM

    spec, given = _read_job(ctx, make_spec)
    with report_usage_errors(ctx):
        check_syntax(spec.workspace / (spec.program or DEFAULT_PROGRAM))
    return spec, given


JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job's id or name, or the beginning of its id.")
]


@app.command(cls=PlainCommand)
@ask_place
def jobs(
    ctx: typer.Context,
    json: Json = False,
    elsewhere: Any = None,
) -> None:
    """List detached jobs, and the results of earlier ones."""
    from .run.jobs import show_jobs

    show_jobs(sys.stdout, as_json=json, elsewhere=elsewhere)


@app.command(cls=PlainCommand)
@ask_place
def status(
    ctx: typer.Context,
    job: JobArgument,
    json: Json = False,
    elsewhere: Any = None,
) -> None:
    """Print the state of a job and of each of its processes."""
    from .run.jobs import show_status

    show_status(job, sys.stdout, as_json=json, elsewhere=elsewhere)


@app.command(cls=PlainCommand)
@ask_place
def logs(
    ctx: typer.Context,
    job: JobArgument,
    process: Annotated[
        OptionalText,
        typer.Argument(
            metavar="[PROCESS]",
            help="One process, such as trainer/1 or setup/0; else all.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Continue until the job ends. [default: off]", show_default=False
        ),
    ] = False,
    json: Json = False,
    elsewhere: Any = None,
) -> None:
    """Print the output of a job's processes."""
    from .run.jobs import show_logs

    raise typer.Exit(show_logs(job, process, sys.stdout, follow=follow, as_json=json, elsewhere=elsewhere))


@app.command(cls=PlainCommand)
@ask_place
def stop(
    ctx: typer.Context,
    job: JobArgument,
    kill: Annotated[bool, make_flag_option("kill", "Stop at once, without SIGTERM and grace.")] = False,
    json: Json = False,
    elsewhere: Any = None,
) -> None:
    """Stop a job and wait for its end."""
    from .run.jobs import stop as stop_job

    raise typer.Exit(stop_job(job, sys.stdout, kill=kill, as_json=json, elsewhere=elsewhere))


app.command("delete", cls=PlainCommand, help="Another name of `pslaunch stop`.")(stop)


@app.command(cls=PlainCommand)
@ask_place
def fetch(
    ctx: typer.Context,
    job: JobArgument,
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder for output/, and log/ with a folder for each node.")
    ],
    json: Json = False,
    elsewhere: Any = None,
) -> None:
    """Fetch a job's output and all logs from its nodes."""
    from pathlib import Path

    from .run.jobs import fetch as fetch_job

    raise typer.Exit(fetch_job(job, Path(folder), sys.stdout, as_json=json, elsewhere=elsewhere))


@app.command(cls=PassCommand, add_help_option=False, options_metavar="[OPTIONS]")
def pserver(ctx: typer.Context) -> None:
    """Run one parameter server by hand."""
    # -P: import from the installed package, never from the current folder.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pslaunch.runtime.pserver", *ctx.args])


@app.command(cls=PlainCommand)
def version(json: Json = False) -> None:
    """Print the version and its build features."""
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
    if sys.stdout is None and words[:1] != ["pserver"]:  # it writes to its own log
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
    """Invoke a command as typer's `main` does, but leave a closed pipe to the caller."""
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
    """Redirect standard output, so that buffered text does not fail again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _fill_standard_descriptors() -> None:
    """Open /dev/null for closed descriptors 0 to 2: no socket or file of ours must get their numbers."""
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
