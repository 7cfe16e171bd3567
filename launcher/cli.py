"""The commands: parse, call, print. `main` turns errors into text and exit codes.

For a fast `--help` only typer is imported here; everything else is imported where it is used.
Values stay text here: spec.py reads them, with the same messages for every source.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand

from .backends.face import CHECK, CommandLine, Face
from .backends.registry import OWN, find_added, find_face, find_owners, list_names, read_command
from .errors import PslaunchError, SpecError
from .node import codes
from .node.logs import clean_lines
from .options.typer_glue import (
    Commands,
    Listed,
    UsageError,
    make_flag_option,
    make_parameter,
    make_text_option,
    make_typer_command,
    print_help,
    report_usage_errors,
)

if TYPE_CHECKING:
    from .options.spec import Elsewhere, JobSpec

BROKEN_PIPE: Final = codes.SIGNAL_BASE + 13
CANT_WRITE: Final = "can't write to standard output"
# Errors of writes to standard output; an open names its file, and our sockets don't raise these.
WRITE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


JSON: Final = make_flag_option("json", "Print JSON: one object a line.")


# --- Commands of the backends. ---


def _list_face(name: str) -> Listed:
    """Return `pslaunch NAME`. Raises SpecError for a backend that can't be imported."""
    face = find_face(name)
    if "" in face.helps:
        return _list_job(face, "")
    names = [command for command in face.helps if command != CHECK]
    others = {CHECK: f"pslaunch {CHECK} {name}", **{word: f"pslaunch {word}" for word in LATER}, **face.meant}
    group = Commands(name, face.help, names, lambda command: _list_job(face, command), meant=others)
    return Listed(face.help, lambda _words: group)


def _list_check(name: str) -> Listed:
    face = find_face(name)
    if CHECK in face.helps:
        return _list_job(face, CHECK)

    def refuse(_words: Sequence[str]) -> None:
        raise SpecError(f"pslaunch {name} has no hosts to check; with --dry_run it prints its plan")

    return Listed("", refuse)


def _list_job(face: Face, command: str) -> Listed:
    return Listed(face.helps[command], lambda _words: JobCommand(face, command))


class JobCommand(TyperCommand):
    """A command that starts or checks a job: unknown words are passed to the trainer and the program."""

    def __init__(self, face: Face, command: str) -> None:
        name = face.name if command in ("", CHECK) else command
        text, metavar = inspect.cleandoc(face.helps[command]), "[OPTIONS] [PROGRAM [ARGS]...]"
        super().__init__(name, help=text, options_metavar=metavar, rich_markup_mode=None)
        self.options = {option.name: option for option in face.list_options()}
        self._face, self._command = face, command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from .options.args import split_command_line
        from .options.options import make_flag

        options = {**self.options, "help": make_flag("help", "Print this text.")}
        with report_usage_errors(ctx):
            split = split_command_line(args, options, find_owners, self._face.list_refused())
        if "help" in split.ours:
            print_help(ctx)
        ctx.meta["split"] = split
        return []

    def format_options(self, _ctx: Any, formatter: Any) -> None:
        from .options.options import HEADINGS

        rows = {}
        for name, option in self.options.items():
            shown = ", ".join(sorted(option.names, key=lambda each: each.startswith("--")))
            rows[name] = (f"{shown} {option.metavar}" if option.valued else shown, option.text)
        rows["help"] = ("-h, --help", "Show this message and exit.")
        named = {name for _, names in HEADINGS.values() for name in names}
        own = [name for name in rows if name not in named]
        for heading, (example, names) in {"Nodes": (self._face.example, own), **HEADINGS}.items():
            found = [row for name, row in rows.items() if name in names]
            if found:
                with formatter.section(f"{heading}, as in {example}" if example else heading):
                    formatter.write_dl(found)

    def invoke(self, ctx: Any) -> None:
        """Check or start the job, or do what its backend does in place of that."""

        def tell(text: str) -> None:
            _complain(ctx.command_path, f"note: {text}", codes.OK)

        face, command = self._face, self._command
        with report_usage_errors(ctx):
            line, spec = read_command(face, command, ctx.meta["split"], tell)
        if command == CHECK:
            raise typer.Exit(face.check(line, spec))
        code = face.act(line, spec)
        raise typer.Exit(_start(line, spec) if code is None else code)


def _start(line: CommandLine, spec: JobSpec) -> int:
    from .run import session

    given = line.given
    if not given.is_set("dry_run"):
        return session.run(spec, as_json=line.as_json)
    connect = "connect" in given.options and given.is_set("connect")
    shown = session.render_dry_run(spec, as_json=line.as_json, connect=connect)
    typer.echo(clean_lines(shown, sys.stdout.encoding))
    return codes.OK


# --- Commands of later shells, and others. ---


class Later(NamedTuple):
    """A command of later shells."""

    text: str
    function: str  # of run/, as module:name; it takes `own` by name, out, as_json and elsewhere
    own: Sequence[inspect.Parameter] = ()


JOB_WORD: Final = make_parameter(
    "word", str, typer.Argument(metavar="JOB", help="A job's id or name, or the beginning of its id.")
)
KILL: Final = make_flag_option("kill", "Stop at once, without SIGTERM and grace.")
FOLLOW: Final = make_flag_option("follow", "Continue until the job ends.", "-f")
STOP: Final = Later(
    "Stop a job and wait for its end.", "jobs:stop_job", [JOB_WORD, make_parameter("kill", bool, KILL, False)]
)
LATER: Final[Mapping[str, Later]] = {
    "jobs": Later("List detached jobs, and the results of earlier ones.", "jobs:show_jobs"),
    "status": Later("Print the state of a job and of each of its processes.", "jobs:show_status", [JOB_WORD]),
    "top": Later("Show a running job live, without the output of its programs; Ctrl+C leaves it alone.",
        "jobs:show_top", [JOB_WORD]),
    "logs": Later("Print the output of a job's processes.", "jobs:show_logs", [
        JOB_WORD,
        make_parameter("process", str | None, typer.Argument(metavar="[PROCESS]", show_default=False,
            help="One process, such as trainer/1 or setup/0; else all."), None),
        make_parameter("follow", bool, FOLLOW, False),
    ]),
    "report": Later(
        "Write a page about a job that a browser shows without a network: charts, processes, failure.",
        "report:write_report", [
        make_parameter("word", str, typer.Argument(metavar="JOB|LOG_DIR",
            help="A job, as above, or a folder with its logs.")),
        make_parameter("path", Path, typer.Option("--output", "-o", metavar="FILE", help="File to write."),
            "report.html"),
    ]),
    "stop": STOP,
    "fetch": Later("Fetch a job's output and all logs from its nodes.", "jobs:fetch_job", [
        JOB_WORD,
        make_parameter("folder", str, typer.Argument(metavar="DIR",
            help="Folder for output/, and log/ with a folder for each node.")),
    ]),
    "delete": STOP._replace(text="Another name of `pslaunch stop`."),
}  # fmt: skip


# Programs of the runtime: their help, module, and first arguments.
PROGRAMS: Final = {
    "pserver": ("Run one parameter server by hand.", "pserver"),
    "stats": ("Print what a running pserver has counted: updates, bytes, rows, waits.", "client.observe"),
    "show": ("Verify a set of saved parameters, and list what is in it.", "engine.convert", "show"),
    "convert": (
        "Write a set as .npz, .tar or .pdparams, or such a file as a set.",
        "engine.convert",
        "convert",
    ),
}


def _make_program(name: str) -> Any:
    """Return a command that becomes a program of the runtime."""
    text, module, *first = PROGRAMS[name]

    def become(ctx: typer.Context) -> None:
        # -P: import from the installed package, never from the current folder.
        words = [sys.executable, "-P", "-m", f"pslaunch.runtime.{module}", *first, *ctx.args]
        os.execv(sys.executable, words)

    passing = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    return make_typer_command(become, help=text, context_settings=passing)


def help(
    topic: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]", help="A page, or a command; all are listed unless given."),
    ] = None,
) -> None:
    """Show a page of the documentation, or the help of a command."""
    from pslaunch.runtime.shared.env import suggest

    from .views.pages import list_pages, read_title, show_page

    words, pages = topic or [], list_pages()
    if not words:
        typer.echo("pslaunch help TOPIC shows one of these pages, or the help of a command:")
        for name, page in pages.items():
            typer.echo(f"  {name:16} {read_title(page)}")
    elif len(words) == 1 and words[0] in pages:
        show_page(pages[words[0]], sys.stdout)
    elif words[0] not in MEANT and words[0] not in (commands := app.list_commands(None)):
        meant = suggest(words[0], [*pages, *commands])
        raise SpecError(f"no page or command {words[0]!r}{meant}; pages: {', '.join(pages)}")
    else:
        _invoke([*words, "--help"])


def version(json: Annotated[bool, JSON] = False) -> None:
    """Print the version and its build features."""
    from pslaunch.runtime import _core

    from . import __version__

    core = _core.get_features()
    features = {"with_avx": core["avx2"], "with_gpu": core["gpu"], "with_double": core["double"],
                "with_python": True, "with_rdma": core["rdma"], "with_timer": False}  # fmt: skip
    if json:
        import json as text

        typer.echo(text.dumps({"version": __version__, **features}))
        return
    typer.echo(f"pslaunch {__version__}, compiled with")
    for name, on in features.items():
        typer.echo(f"    {name}: {'ON' if on else 'OFF'}")


ABOUT: Final[Mapping[str, Callable[..., None]]] = {"version": version, "help": help}
# Command lines by other tools' words for them.
MEANT: Final = {
    **dict.fromkeys(("", "run", "start", "launch", "train", "torchrun"), "pslaunch local"),
    **dict.fromkeys(("ps", "list", "ls", "queue"), "pslaunch jobs"),
    **dict.fromkeys(("kill", "cancel", "down"), "pslaunch stop"),
    **dict.fromkeys(("log", "tail", "attach"), "pslaunch logs --follow"),
    **dict.fromkeys(("kubernetes", "kube", "apply"), "pslaunch k8s apply"),
    "submit": "pslaunch fabric, mpi, slurm or k8s apply",
    "describe": "pslaunch status",
}


def _find_elsewhere(given: dict[str, str], faces: Sequence[Face]) -> Elsewhere | None:
    """Return the place to ask for jobs; None if none is given."""
    asked = [face for face in faces if given.keys() & face.place.keys()]
    if len(asked) > 1:
        one, other = (next(name for name in face.place if name in given) for face in asked[:2])
        raise SpecError(f"--{one} and --{other} are both given: only one place is asked")
    return asked[0].find_place(given, Path.cwd()) if asked else None


def _make_later(later: Later, words: Sequence[str]) -> Any:
    """Return a command with the options of all places; of other packages too if a word is none of ours."""

    def make(names: Sequence[str]) -> Any:
        faces = [*map(find_face, names)]
        options = {name: said for face in faces for name, said in face.place.items()}

        def run(**values: Any) -> None:
            given = {name: text for name in options if (text := values.pop(name)) is not None}
            with report_usage_errors(values.pop("ctx")):
                elsewhere = _find_elsewhere(given, faces)
            module, _, name = later.function.partition(":")
            act = getattr(importlib.import_module(f".run.{module}", __package__), name)
            raise typer.Exit(act(**values, out=sys.stdout, elsewhere=elsewhere) or codes.OK)

        places = [make_text_option(name, *said) for name, said in options.items()]
        added = [make_parameter("as_json", bool, JSON, False), *places]
        return make_typer_command(run, [*later.own, *added], help=later.text)

    command = make(OWN)
    known = {name for option in command.params for name in option.opts}
    strange = any(word.startswith("-") and word.partition("=")[0] not in known for word in words)
    return make(list_names()) if strange else command


def _find(name: str) -> Listed:
    if later := LATER.get(name):
        return Listed(later.text, lambda words: _make_later(later, words))
    if plain := ABOUT.get(name):
        return Listed(plain.__doc__ or "", lambda _words: make_typer_command(plain))
    if name in PROGRAMS:
        return Listed(PROGRAMS[name][0], lambda _words: _make_program(name))
    if name == CHECK:
        text = "Check the hosts or the cluster of a job without starting it."
        group = Commands(CHECK, text, OWN, _list_check, find_added)
        return Listed(text, lambda _words: group)
    return _list_face(name)


app = Commands(
    "pslaunch",
    "Parameter-server training jobs: one command, any cluster, the same result.",
    [*OWN, CHECK, *LATER, *PROGRAMS, *ABOUT],
    _find,
    find_added,
    MEANT,
    {
        "Jobs, as in pslaunch local --server_num 2 --worker_num 2 train.py": (),
        "Later, as in pslaunch logs --follow JOB": [*LATER],
        "Others, as in pslaunch help fabric": [*PROGRAMS, *ABOUT],
    },
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; a usage error is one line and code 2."""
    _fill_standard_descriptors()
    sys.exit(_run(argv))


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if asked := os.environ.get("_PSLAUNCH_COMPLETE"):  # a script of --install-completion
        from .options.completion import answer_shell

        return answer_shell(app, asked)
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
        if e.errno in (errno.EMFILE, errno.ENFILE):
            return _complain("pslaunch", codes.describe_error(e), codes.IO)
        if e.filename is not None or e.errno not in WRITE_ERRORS:
            raise
        _give_up_output()
        return _complain("pslaunch", f"{CANT_WRITE}: {e.strerror}", codes.IO)
    return code


def _invoke(words: list[str]) -> int:
    """Invoke a command as typer's `main` does, but leave a closed pipe to the caller."""
    try:
        with app.make_context("pslaunch", words) as ctx:
            app.invoke(ctx)
    except typer.Exit as e:
        return e.exit_code
    return codes.OK


def _give_up_output() -> None:
    """Redirect standard output, so that buffered text does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill_standard_descriptors() -> None:
    """Open /dev/null for closed descriptors 0 to 2: no socket or file of ours must get their numbers."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.dup(fd)
    os.close(fd)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115 # until the end


def _complain(command: str, message: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"{command}: {clean_lines(message, sys.stderr.encoding)}", file=sys.stderr)
    return code
