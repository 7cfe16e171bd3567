"""docs/from_paddle.md: each command that is said to work parses."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pslaunch import cli
from pslaunch.node import codes
from pslaunch.runtime.pserver import pserver_options
from support import others
from support.pages import DOCS, section, words

PAGE = "from_paddle.md"
HEADINGS = [
    line.removeprefix("## ") for line in (DOCS / PAGE).read_text().splitlines() if line.startswith("## ")
]
FLEET = (
    "import paddle.distributed.fleet as fleet\nfleet.init()\nif fleet.is_server():\n    fleet.run_server()\n"
)


def table(heading: str) -> list[list[str]]:
    """Cells of the rows; a bar in a command is written as `\\|`."""
    lines = [line for line in section(PAGE, heading).splitlines() if line.startswith("| ")][1:]
    return [
        [cell.strip().replace("\0", "|") for cell in line.replace("\\|", "\0").strip("|").split("|")]
        for line in lines
    ]


ROWS = [(heading, row) for heading in HEADINGS for row in table(heading)]
OURS = [
    (shlex.split(command)[1:], row[2])
    for _, row in ROWS
    for command in words(row[1])
    if (command.startswith("pslaunch ") and len(command.split()) > 2) or command == "pslaunch version"
]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with a Fleet program, and one in a folder of its own."""
    (tmp_path / "ws/train_data_dir").mkdir(parents=True)
    (tmp_path / "ws/train_data_dir/train.txt-00000").touch()
    for folder in (tmp_path, tmp_path / "ws"):
        (folder / "train.py").write_text(FLEET if folder == tmp_path else "import paddle")
    (tmp_path / "conf.py").write_text('HOSTS = ["root@10.0.0.1", "root@10.0.0.2"]\nROOT_DIR = "/root"\n')
    (tmp_path / "machines").write_text("node1\nnode2\nnode3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_row_says_if_it_works_today() -> None:
    assert len(ROWS) > 30
    for heading, row in ROWS:
        assert len(row) == 3, (heading, row)
        assert row[2].startswith(("works", "no:", "no,")), (heading, row)


@pytest.mark.parametrize("argv", [a for a, today in OURS if today.startswith("works")], ids=" ".join)
def test_commands_documented_to_work_parse(
    argv: list[str], workspace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if argv[0] == "pserver":
        pserver_options.parse_options(argv[1:], {})
        return
    if argv[0] == "mpi":
        others.mpirun(4)
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    command, dry = (2, ["--dry_run", "--image=i"]) if argv[0] == "k8s" else (1, ["--dry_run"])
    dry = dry if argv[0] in ("local", "fabric", "mpi", "k8s") else []
    assert cli._run([*argv[:command], *dry, *argv[command:]]) == codes.OK, capfd.readouterr().err
    assert {path.name for path in (workspace / "ws").iterdir()} == {"train.py", "train_data_dir"}, "no start"
