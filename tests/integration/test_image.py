"""The image of templates/k8s/Dockerfile: its steps, run in the tests' Debian, make what it promises."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import pslaunch
from pslaunch.ship.wheel import make_wheel, make_wheel_name
from support.process import started
from support.pservers import find_free_ports
from support.wheelhouse import list_needs, make_wheelhouse
from testbed.kube.cluster import BUILT, ROOT, why_not

TEMPLATES = ROOT / "templates/k8s"
OWN = Path("tmp/pslaunch")  # where the Dockerfile copies to
WHEELS = Path("tmp/wheels")
LIMIT_BYTES, BASE_BYTES = 200e6, 125e6  # python:3.11-slim-bookworm


def read_step(word: str) -> str:
    """Return what follows this word in the Dockerfile."""
    (found,) = re.findall(rf"^{word}[ =](.*)$", (TEMPLATES / "Dockerfile").read_text(), re.MULTILINE)
    return str(found)


def unpack_image(archive: Path, root: Path) -> None:
    """Unpack an image of one layer into an empty folder."""
    with tarfile.open(archive) as image:

        def open_blob(digest: str) -> Any:
            return image.extractfile(f"./blobs/{digest.replace(':', '/')}")

        index = json.load(cast(Any, image.extractfile("./index.json")))
        (layer,) = json.load(open_blob(index["manifests"][0]["digest"]))["layers"]
        with tarfile.open(fileobj=open_blob(layer["digest"])) as files:
            files.extractall(root, filter="tar")


def make_argv(root: Path, argv: Sequence[str], user: str = "0:0", *settings: str) -> list[str]:
    """Return the words that run a program in the image."""
    path = f"PATH={read_step('ENV PATH')}:/usr/sbin"
    return [
        "env",
        "-i",
        path,
        *settings,
        shutil.which("chroot") or "",
        f"--userspec={user}",
        str(root),
        *argv,
    ]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Return a Debian where the Dockerfile's step has run, with wheels of packages from here."""
    if reason := why_not():
        pytest.skip(reason)
    root = tmp_path / "root"
    try:
        make_root(root)
        yield root
    finally:
        shutil.rmtree(root)


def make_root(root: Path) -> None:
    """Unpack the tests' image and run the Dockerfile's step in it."""
    unpack_image(BUILT / "python", root)
    shutil.rmtree(root / "opt/pslaunch")
    os.mknod(root / "dev/null", stat.S_IFCHR, os.makedev(1, 3))
    (root / "dev/null").chmod(0o666)
    make_wheelhouse(root / WHEELS, list_needs("numpy", "typer"))
    (root / OWN).mkdir()
    shutil.copy(TEMPLATES / "image.sh", root / OWN)
    (root / OWN / make_wheel_name()).write_bytes(make_wheel())
    offline = (f"PIP_FIND_LINKS=/{WHEELS}", "PIP_NO_INDEX=1")
    subprocess.run(
        make_argv(root, ["sh", "-c", read_step("RUN")], "0:0", *offline), check=True, capture_output=True
    )


def test_image_is_small_and_serves_version_and_pservers(root: Path) -> None:
    added = sum(path.lstat().st_size for path in (root / "opt").rglob("*"))
    assert BASE_BYTES + added < LIMIT_BYTES
    assert not (root / OWN).exists()

    user = read_step("USER")
    said = subprocess.run(
        make_argv(root, ["pslaunch", "version"], user), check=True, capture_output=True, text=True
    )
    assert pslaunch.__version__ in said.stdout

    port = find_free_ports()
    words = ["pslaunch", "pserver", "--host=127.0.0.1", f"--port={port}", "--num_gradient_servers=1"]
    with started(make_argv(root, words, user), ready=f"Server listening on 127.0.0.1:{port}") as process:
        process.proc.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
