"""README.md says what is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pslaunch import cli, runtime

TEXT = (Path(__file__).parents[3] / "README.md").read_text()
API = re.findall(r"^\| `paddle(?:\.(\w+))?` \| (.*) \|$", TEXT, re.MULTILINE)


def test_the_v2_names_are_there() -> None:
    assert [module for module, _ in API if module] and {module for module, _ in API if module} == set(
        runtime._V2
    )
    for module, names in API:
        place = getattr(runtime, module) if module else runtime
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(place, name), f"{module}.{name}"


def test_the_commands_are_there() -> None:
    commands = set(cli.app.list_commands(None))
    inline = set(re.findall(r"`pslaunch (\w+)", TEXT))
    blocks = set(re.findall(r"^pslaunch (\w+) ", "\n".join(TEXT.split("```")[1::2]), re.MULTILINE))
    assert inline <= commands
    assert inline | blocks >= commands - {"help", "version"}


def test_the_cluster_and_its_command_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    conf = re.search(r"```python\n(HOSTS = .*?)```", TEXT, re.DOTALL)
    line = re.search(r"^pslaunch (fabric --conf .*)$", TEXT, re.MULTILINE)
    assert conf and line
    (tmp_path / "conf.py").write_text(conf[1])
    (tmp_path / "myjob").mkdir()
    (tmp_path / "myjob/train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert cli._run([*shlex.split(line[1])[:1], "--dry_run", *shlex.split(line[1])[1:]]) == 0
    assert "/home/paddle/myjob" in capfd.readouterr().out


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", TEXT))
def test_links_lead_to_existing_files(target: str) -> None:
    assert (Path(__file__).parents[3] / target).exists()


def test_every_page_is_linked() -> None:
    pages = {f"docs/{page.name}" for page in (Path(__file__).parents[3] / "docs").glob("*.md")}
    assert pages - {*re.findall(r"\]\(([^)#]+)\)", TEXT)} == set()
