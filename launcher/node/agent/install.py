"""Setup of a node for a job: a virtual environment with the job's packages, then the user's commands.

Runs as a program below the agent, which keeps its output; writes the path of the Python to the state folder.
Its last line is the error, or advice (ADVICE) after it. An environment is named by a hash of its
inputs, and reused while they are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import codes, listing
from ..logs import ADVICE_MARK

if TYPE_CHECKING:
    from ..messages import FurnishMsg

REQUIREMENTS = "requirements.txt"
OWN_WHEEL, WHEELHOUSE = ".pslaunch-wheel", ".pslaunch-wheelhouse"  # sent folders of the workspace
_DONE = "pslaunch-furnished"


def main(order: str) -> int:
    """Carry out an order given as JSON; return the exit code."""
    given: FurnishMsg = json.loads(order)
    os.umask(os.umask(0o022) | 0o022)
    environ = dict(os.environ)
    python = ""
    if given["install"]:
        python = _install(given["workspace"], given["state_dir"], given["install"])
        environ |= {"PATH": f"{os.path.dirname(python)}:{environ.get('PATH', os.defpath)}"}
    for command in given["setup"]:
        print(f"+ {command}", flush=True)
        code = subprocess.run(
            ["/bin/sh", "-c", command], cwd=given["workspace"], env=environ, check=False
        ).returncode
        if code:
            print(f"--setup {command!r} ended with {code}", flush=True)
            return code if code > 0 else codes.SIGNAL_BASE - code
    listing.write_text(os.path.join(given["state_dir"], listing.CHOSEN_PYTHON), python)
    return codes.OK


def _install(workspace: str, state_dir: str, install: dict[str, Any]) -> str:
    """Return the Python of an environment with our wheel, its dependencies, the workspace's requirements."""
    own, house = os.path.join(workspace, OWN_WHEEL), os.path.join(workspace, WHEELHOUSE)
    wanted = "".join(listing.read_lines(workspace, REQUIREMENTS))
    venv = os.path.join(state_dir, f"venv-{_hash(own, house, wanted, install)}")
    python = os.path.join(venv, "bin", "python")
    if os.path.exists(os.path.join(venv, _DONE)):
        return python
    for name in os.listdir(state_dir):  # earlier and interrupted ones
        if name.startswith("venv-"):
            shutil.rmtree(os.path.join(state_dir, name))
    print(f"making {venv} with Python {sys.version.split()[0]}", flush=True)
    _run([sys.executable, "-m", "venv", venv], "on Debian and Ubuntu install the package python3-venv")
    pip = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off",
           "--retries=1"]  # fmt: skip
    advice = "give --wheelhouse, or let the node reach its index"
    if install["offline"]:
        pip += ["--no-index", f"--find-links={house}"]
        advice = "put what is missing into the --wheelhouse"
    named = {name.lower().replace("_", "-") for name in re.findall(r"(?m)^\s*([\w.-]+)", wanted)}
    needs = [pin for pin in install["pins"] if pin.partition("==")[0] not in named]
    needs += ["-r", os.path.join(workspace, REQUIREMENTS)] if wanted else []
    if needs:
        _run([*pip, *needs], advice)
    _run([*pip, "--no-deps", os.path.join(own, install["wheel"])], "give a --wheel for this machine")
    listing.write_text(os.path.join(venv, _DONE), "")
    return python


def _hash(own: str, house: str, requirements: str, install: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps([sys.version, sys.executable, requirements, install]).encode())
    with open(os.path.join(own, install["wheel"]), "rb") as f:
        digest.update(f.read())
    for name in sorted(os.listdir(house)) if install["offline"] else ():
        digest.update(f"{name} {os.path.getsize(os.path.join(house, name))}\n".encode())
    return digest.hexdigest()[:12]


def _run(argv: Sequence[str], advice: str) -> None:
    code = subprocess.run(argv, check=False).returncode
    if code:
        print(f"{' '.join(argv[:4])} … failed ({code})\n{ADVICE_MARK}{advice}", flush=True)
        sys.exit(codes.PREFLIGHT)
