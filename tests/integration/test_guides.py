"""Guides show what is printed: their programs are written, their commands run here, those for clusters dry.

A block `python train.py` is a file. In a block `console` a line after `$` is a command; the lines below it
are in its output, but for numbers, times and paths; `…` stands for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslaunch import cli
from pslaunch.node import codes
from support.pages import DOCS, list_blocks

NAMES = (
    "tutorial", "distributed", "pytorch", "performance", "troubleshooting", "from_others", "restarts",
    "serving", "client",
)  # fmt: skip
GUIDES = ["README.md", *(f"docs/{name}.md" for name in NAMES)]
DRY = {"fabric": [], "mpi": [], "slurm": [], "k8s": ["--image=i"], "local": []}


def read_guide(page: str) -> list[tuple[str, str]]:
    return list_blocks((DOCS.parent / page).read_text())


def list_commands(lines: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a block with the lines that it prints."""
    found = re.split(r"^\$ ", lines.replace("\\\n", ""), flags=re.MULTILINE)[1:]
    for text in found:
        command, *printed = text.splitlines()
        yield command, [line for line in printed if line.strip()]


def soften(line: str) -> str:
    """Return a line without what differs from run to run."""
    line = re.sub(r"\S*/\S*/\S*", "PATH", line)
    line = re.sub(r"\S+-\d{8}-\d{6}-\w+", "JOB", line)
    return re.sub(r"\d+", "0", line).strip()


def write_files(page: str, folder: Path) -> None:
    for info, text in read_guide(page):
        if info.startswith(("python ", "toml ", "text ")):
            path = folder / info.split()[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "myjob"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.mark.parametrize("page", GUIDES)
def test_commands_of_a_page_print_what_it_shows(page: str, folder: Path) -> None:
    write_files(page, folder)
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PSLAUNCH_REPO": str(DOCS.parent),
    }
    for info, lines in read_guide(page):
        for command, printed in list_commands(lines) if info == "console" else ():
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environ, stdin=subprocess.DEVNULL, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
            )  # fmt: skip
            said = [soften(line) for line in done.stdout.splitlines()]
            for line in printed:
                assert line == "…" or soften(line) in said, (
                    f"{page}: {command}\n{line!r} is not in\n{done.stdout}"
                )
            assert done.returncode == 0 or any("FAILED" in line or "error" in line for line in printed), (
                done.stdout
            )


def list_cluster_commands() -> Iterator[tuple[str, str]]:
    """Yield the commands in tables, texts and blocks but those of `console`."""
    for page in GUIDES:
        text = (DOCS.parent / page).read_text()
        for line in re.findall(
            rf"`(?:exec )?(pslaunch (?:{'|'.join(DRY)}) [^`]+)`", re.sub(r"(?s)```.*?```", "", text)
        ):
            yield page, " ".join(line.split())
        for info, lines in list_blocks(text):
            for line in lines.replace("\\\n", "").splitlines() if info in ("", "sh") else ():
                if line.startswith("pslaunch "):
                    yield page, line


@pytest.mark.parametrize(("page", "line"), [*list_cluster_commands()], ids=str)
def test_commands_for_clusters_are_taken(
    page: str,
    line: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    write_files(page, folder)
    (folder / "train.py").touch()
    (folder / "conf.py").write_text('HOSTS = ["root@10.0.0.1", "root@10.0.0.2"]\nROOT_DIR = "/root"\n')
    (folder / "machines").write_text("node1\nnode2\nnode3\n")
    (folder / "ddp.py").touch()
    _, command, *words = shlex.split(line, comments=True)
    if command in DRY:
        verb = [words.pop(0)] if command == "k8s" else []
        dry = [] if verb == ["render"] else ["--dry_run"]  # which starts nothing itself
        words = [*verb, *dry, *([] if any("--image" in w for w in words) else DRY[command]), *words]
    else:
        words = ["--help"]
    assert cli._run([command, *words]) == codes.OK, capfd.readouterr().err
