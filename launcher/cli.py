"""The commands: parse, call, print. `main` turns errors into text and exit codes.

For a fast `--help` only typer is imported here; everything else is imported where it is used.
Values of jobs stay text here: spec.py reads them, with the same messages for every source.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, cast

import typer

from .backends.face import CHECK, CommandLine, Face
from .backends.registry import OWN, find_added, find_face, find_owners
from .errors import PslaunchError, SpecError
from .node import codes
from .node.logs import clean_lines
from .options.typer_glue import Commands, RowCommand, UsageError, answer_shell, print_help

if TYPE_CHECKING:
    from .options.options import Option
    from .options.spec import Elsewhere, JobSpec

BROKEN_PIPE: Final = codes.SIGNAL_BASE + 13
CANT_WRITE: Final = "can't write to standard output"
# Errors of writes to standard output; an open names its file, and our sockets don't raise these.
WRITE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


# --- Commands of the backends. ---


def _find_group(name: str) -> Any:
    """Return `pslaunch NAME`. Raises SpecError for a backend that can't be imported."""
    face = find_face(name)
    if "" in face.helps:
        return JobCommand(face, "")
    names = {"Commands": [command for command in face.helps if command != CHECK]}
    others = {CHECK: f"pslaunch {CHECK} {name}", **{word: f"pslaunch {word}" for word in LATER}, **face.meant}
    return Commands(name, face.help, names, lambda command: JobCommand(face, command), meant=others)


class JobCommand(RowCommand):
    """A command that starts or checks a job: unknown words are passed to the trainer and the program."""

    def __init__(self, face: Face, command: str) -> None:
        name = face.name if command in ("", CHECK) else command
        super().__init__(name, face.helps.get(command, ""), {"[PROGRAM [ARGS]...]": ""})
        self._face, self._command = face, command

    def list_options(self) -> Sequence[Option]:
        return self._face.list_options()

    def list_headings(self) -> Mapping[str, Collection[str]]:
        from .options.options import HEADINGS

        named = {name for _, names in HEADINGS.values() for name in names}
        own = {"Nodes": (self._face.example, [name for name in self.options if name not in named])}
        return {
            f"{heading}, as in {example}" if example else heading: names
            for heading, (example, names) in {**own, **HEADINGS}.items()
        }

    def act(self, ctx: Any, words: Sequence[str]) -> int:
        """Check or start the job, or do what its backend does in place of that."""
        from .options.args import split_command_line

        def tell(text: str) -> None:
            _complain(ctx.command_path, f"note: {text}", codes.OK)

        face, command = self._face, self._command
        if command not in face.helps:
            raise SpecError(f"pslaunch {face.name} has no hosts to check; with --dry_run it prints its plan")
        split = split_command_line(words, self.options, find_owners, face.list_refused())
        if "help" in split.ours:
            return print_help(ctx)
        from .backends.gather import read_command

        line, spec = read_command(face, command, split, tell)
        if command == CHECK:
            return face.check(line, spec)
        code = face.act(line, spec)
        return _start(line, spec) if code is None else code


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


class Plain(NamedTuple):
    """A command of a few words."""

    text: str
    function: str  # module:name; it takes the words, then by name the options, out, and elsewhere if it asks
    words: Sequence[str] = ()
    options: Sequence[str] = ("json",)
    asks: bool = True  # for a job, at the place that further options name


WORD_TEXTS: Final = {
    "JOB": "A job's id or name, or the beginning of its id.",
    "[PROCESS]": "One process, such as trainer/1 or setup/0; else all.",
    "JOB|LOG_DIR": "A job, as above, or a folder with its logs.",
    "DIR": "Folder for output/, and log/ with a folder for each node.",
    "[TOPIC]...": "A page, or a command; all are listed unless given.",
}
STOP: Final = Plain("Stop a job and wait for its end.", "run.jobs:stop_job", ["JOB"], ["kill", "json"])
LATER: Final[Mapping[str, Plain]] = {
    "jobs": Plain("List detached jobs, and the results of earlier ones.", "run.jobs:show_jobs"),
    "status": Plain("Print the state of a job and of each of its processes.", "run.jobs:show_status",
        ["JOB"]),
    "top": Plain("Show a running job live, without the output of its programs; Ctrl+C leaves it alone.",
        "run.jobs:show_top", ["JOB"]),
    "logs": Plain("Print the output of a job's processes.", "run.jobs:show_logs", ["JOB", "[PROCESS]"],
        ["follow", "json"]),
    "report": Plain(
        "Write a page about a job that a browser shows without a network: charts, processes, failure.",
        "run.report:write_report", ["JOB|LOG_DIR"], ["output", "json"]),
    "stop": STOP,
    "fetch": Plain("Fetch a job's output and all logs from its nodes.", "run.jobs:fetch_job", ["JOB", "DIR"]),
    "delete": STOP._replace(text="Another name of `pslaunch stop`."),
}  # fmt: skip
ABOUT: Final[Mapping[str, Plain]] = {
    "version": Plain("Print the version and its build features.", "cli:show_version", asks=False),
    "help": Plain("Show a page of the documentation, or the help of a command.", "cli:show_help",
        ["[TOPIC]..."], [], asks=False),
}  # fmt: skip


class PlainCommand(RowCommand):
    """A command that a row describes: those of later shells, and about pslaunch."""

    def __init__(self, name: str, plain: Plain) -> None:
        super().__init__(name, plain.text, {word: WORD_TEXTS[word] for word in plain.words})
        self._plain = plain
        self._faces: list[Face] = []  # whose places are options

    def list_options(self) -> Iterable[Option]:
        from .options.options import LATER_OPTIONS

        return [LATER_OPTIONS[name] for name in self._plain.options] + self._list_places(OWN)

    def _list_places(self, names: Iterable[str]) -> list[Option]:
        from .options.kinds import Text
        from .options.options import Option

        faces = [*map(find_face, names)] if self._plain.asks else []
        self._faces += faces
        said = [(name, *said) for face in faces for name, said in face.place.items()]
        return [Option(name, Text(), text, metavar) for name, metavar, text in said]

    def act(self, ctx: Any, words: Sequence[str]) -> int | None:
        from .options.args import split_plain_line
        from .options.sources import Given

        def find_more() -> None:
            self.options.update({option.name: option for option in self._list_places(find_added())})

        ours, found = split_plain_line(words, self.options, find_more)
        if "help" in ours:
            find_more()
            return print_help(ctx)
        self._check_number(found, f"usage: {ctx.command_path} {self.options_metavar}")
        given = Given(self.options, ours)
        values = {"as_json" if name == "json" else name: given.read(name) for name in self._plain.options}
        if self._plain.asks:
            values["elsewhere"] = self._find_elsewhere(
                {name: value[0].text for name, value in ours.items() if name not in self._plain.options}
            )
        module, _, name = self._plain.function.partition(":")
        function = getattr(importlib.import_module(f".{module}", __package__), name)
        return cast("int | None", function(*found, out=sys.stdout, **values))

    def _check_number(self, found: Sequence[str], usage: str) -> None:
        missing = next((name for name in [*self.words][len(found) :] if not name.startswith("[")), "")
        if missing:
            jobs = "; pslaunch jobs lists the jobs" if missing == "JOB" else ""
            raise SpecError(f"{missing} is missing; {usage}{jobs}")
        if len(found) > len(self.words) and not usage.endswith("..."):
            raise SpecError(f"too many words: {' '.join(found[len(self.words) :])}; {usage}")

    def _find_elsewhere(self, given: Mapping[str, str]) -> Elsewhere | None:
        """Return the place to ask for jobs; None if none is given."""
        asked = [face for face in self._faces if given.keys() & face.place.keys()]
        if len(asked) > 1:
            one, other = (next(name for name in face.place if name in given) for face in asked[:2])
            raise SpecError(f"--{one} and --{other} are both given: only one place is asked")
        return asked[0].find_place(given, Path.cwd()) if asked else None


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


class ProgramCommand(RowCommand):
    """A command that becomes a program of the runtime, which reads its words itself."""

    def act(self, _ctx: Any, words: Sequence[str]) -> None:
        _, module, *first = PROGRAMS[str(self.name)]
        # -P: import from the installed package, never from the current folder.
        os.execv(sys.executable, [sys.executable, "-P", "-m", f"pslaunch.runtime.{module}", *first, *words])


def show_help(*words: str, out: TextIO) -> None:
    from pslaunch.runtime.shared.env import suggest

    from .views.pages import list_pages, read_title, show_page

    pages = list_pages()
    if not words:
        typer.echo("pslaunch help TOPIC shows one of these pages, or the help of a command:")
        for name, page in pages.items():
            typer.echo(f"  {name:16} {read_title(page)}")
    elif len(words) == 1 and words[0] in pages:
        show_page(pages[words[0]], out)
    elif words[0] not in MEANT and words[0] not in (commands := app.list_commands()):
        meant = suggest(words[0], [*pages, *commands])
        raise SpecError(f"no page or command {words[0]!r}{meant}; pages: {', '.join(pages)}")
    else:
        _invoke([*words, "--help"])


def show_version(*, out: TextIO, as_json: bool) -> None:
    from pslaunch.runtime import _core

    from . import __version__

    core = _core.get_features()
    features = {"with_avx": core["avx2"], "with_gpu": core["gpu"], "with_double": core["double"],
                "with_python": True, "with_rdma": core["rdma"], "with_timer": False}  # fmt: skip
    if as_json:
        import json

        typer.echo(json.dumps({"version": __version__, **features}))
        return
    typer.echo(f"pslaunch {__version__}, compiled with")
    for name, on in features.items():
        typer.echo(f"    {name}: {'ON' if on else 'OFF'}")


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


def _find(name: str) -> Any:
    if plain := LATER.get(name) or ABOUT.get(name):
        return PlainCommand(name, plain)
    if name in PROGRAMS:
        return ProgramCommand(name, PROGRAMS[name][0], {})
    if name == CHECK:
        text = "Check the hosts or the cluster of a job without starting it."
        return Commands(
            CHECK, text, {"Commands": OWN}, lambda of: JobCommand(find_face(of), CHECK), find_added
        )
    return _find_group(name)


app = Commands(
    "pslaunch",
    "Parameter-server training jobs: one command, any cluster, the same result.",
    {
        "Jobs, as in pslaunch local --server_num 2 --worker_num 2 train.py": [*OWN, CHECK],
        "Later, as in pslaunch logs --follow JOB": [*LATER],
        "Others, as in pslaunch help fabric": [*PROGRAMS, *ABOUT],
    },
    _find,
    find_added,
    MEANT,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; a usage error is one line and code 2."""
    _fill_standard_descriptors()
    sys.exit(_run(argv))


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if asked := os.environ.get("_PSLAUNCH_COMPLETE"):  # a script of --install-completion
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
