"""Makes `.venv/` in the checkout ready: `python3 .ci/setup.py train` or `python3 .ci/setup.py dev`.

Standard library only, and readable for an old Python, so that it can say what is missing. It does
nothing when a stamp in the venv fits; network is needed only for what is not installed yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "pslaunch-setup.json"
OLDEST = (3, 11)
# These would send an install elsewhere than into the venv, or another Python's modules into ours.
MISLEADING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH")


class SetupError(Exception):
    """Something that the user must do; where there is a command to paste, it is the first line."""


def say(text: str) -> None:
    print("setup: " + text, file=sys.stderr, flush=True)


def environ() -> dict[str, str]:
    """Environment of pip and of the compiler; with a cache of our own where HOME is of no use."""
    env = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    if not os.access(env.get("HOME") or "/nowhere", os.W_OK):
        env["HOME"] = str(ROOT / ".cache")
    env.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return env


def run(argv: list[str], step: str, env: dict[str, str], cwd: str = "/") -> None:
    """Run a command; raises SetupError with its last lines when it fails."""
    done = subprocess.run(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
        tail = "\n".join(lines[-25:])
        raise SetupError(f"{step} failed with exit code {done.returncode}: {' '.join(argv)}\n{tail}")


def succeeds(argv: list[str], text: str = "") -> bool:
    """Whether a command ends with 0, `text` on its standard input; its words are of no interest."""
    null = subprocess.DEVNULL
    try:
        done = subprocess.run(
            argv, input=text.encode(), env=environ(), cwd="/", stdout=null, stderr=null, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


# --- System packages ---


def system_python() -> bool:
    """Whether this Python is the distribution's, so that apt has its headers and its venv module."""
    return Path(sys.base_prefix).resolve() == Path("/usr")


def missing_packages() -> list[str]:
    """Debian packages without which a venv can't be made, or the C core can't be built."""
    python = "python{}.{}".format(*sys.version_info[:2])
    compiler = os.environ.get("CC", "cc").split()
    missing = []
    if not shutil.which(compiler[0]):
        missing.append("gcc")
    if not succeeds([*compiler, "-E", "-xc", "-"], "#include <stdio.h>\n"):
        missing.append("libc6-dev")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing.append(python + "-dev")
    if not succeeds([sys.executable, "-c", "import ensurepip, venv"]):
        missing.append(python + "-venv")
    return missing


def apt_prefix() -> list[str] | None:
    """How apt can be called here without a question: [] as root, sudo, or None when it can't."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    return ["sudo", "-n"] if succeeds(["sudo", "-n", "true"]) else None


def install_packages(packages: list[str]) -> None:
    """Install through apt, or say how to."""
    command = "apt-get install -y --no-install-recommends " + " ".join(packages)
    python_parts = [p for p in packages if p.startswith("python")]
    if python_parts and not system_python():
        raise SetupError(
            "make PYTHON=/usr/bin/python3 train\n{} lacks what {} would give the system's Python.".format(
                sys.executable, " and ".join(python_parts)
            )
        )
    prefix = apt_prefix()
    if prefix is None:
        raise SetupError(
            f"sudo apt-get update && sudo {command}\nMissing on this machine: {', '.join(packages)}. "
            "Paste the line above, or install the same by other means, then try again."
        )
    say("installing system packages: {}{}".format("sudo " if prefix else "", command))
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    argv = [*prefix, *command.split()]
    try:
        run(argv, "apt-get", env)
    except SetupError:  # stale or empty package lists are the usual reason
        run([*prefix, "apt-get", "update"], "apt-get update", env)
        run(argv, "apt-get", env)


# --- The venv ---


def works(code: str) -> bool:
    """Whether the venv's Python runs `code`."""
    return succeeds([str(PYTHON), "-c", code])


def sound(level: str) -> bool:
    """Whether the core loads, and what the job or the tests import is there."""
    modules = ["fabric", "numpy", "rich", "threadpoolctl", "typer"] + (
        ["hypothesis", "mypy", "pytest", "pytest_rerunfailures", "ruff"] if level == "dev" else []
    )
    found = f"from importlib.util import find_spec; assert all(map(find_spec, {modules!r}))"
    return works("import pslaunch.runtime._core; " + found)


def requirements(project: dict[str, Any], level: str) -> list[str]:
    """What pip has to install: build tools, dependencies, and for `dev` the tools of the tests."""
    names: list[str] = project["build-system"]["requires"] + project["project"]["dependencies"]
    return names + (project["dependency-groups"]["dev"] if level == "dev" else [])


def wanted(project: dict[str, Any], level: str) -> dict[str, str]:
    """The stamp of a venv that fits the checkout as it is now; the place counts, as scripts hold it."""
    sha = hashlib.sha256("\n".join([str(ROOT), *requirements(project, level)]).encode())
    for path in [ROOT / "pyproject.toml", *sorted((ROOT / "runtime" / "csrc").glob("*.[ch]"))]:
        content = path.read_bytes()
        sha.update(f"{path.name} {len(content)}\n".encode() + content)
    return {"level": level, "sha256": sha.hexdigest()}


def stamp() -> dict[str, str]:
    """The stamp in the venv; empty when there is none."""
    try:
        found = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def make_venv() -> None:
    """A venv with pip whose Python runs; one that was moved or broken is made anew."""
    script = VENV / "bin" / "pip"  # as all scripts there it names its Python by the full path
    if works("import pip") and script.exists() and str(PYTHON).encode() in script.read_bytes():
        return
    say(f"making .venv with {sys.executable} {sys.version.split()[0]}")
    run([sys.executable, "-m", "venv", "--clear", str(VENV)], "making .venv", environ())


def pip(step: str, *arguments: str) -> None:
    run([str(PYTHON), "-m", "pip", "install", "-q", *arguments], step, environ(), str(ROOT))


def install(project: dict[str, Any], level: str) -> None:
    """Everything, in order; a part that is there already costs little, and no network."""
    packages = missing_packages()
    if packages:
        install_packages(packages)
    make_venv()
    say("installing Python packages")
    pip("pip", *requirements(project, level))
    say("building the C core and installing pslaunch")
    pip("the build", "--no-build-isolation", "--no-deps", "-e", ".")


def prepare(level: str) -> None:
    """Bring the venv to what the checkout wants; does nothing when it is there already."""
    import tomllib  # not in Pythons older than OLDEST

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    have = stamp()
    level = "dev" if have.get("level") == "dev" else level  # who can test can train
    want = wanted(project, level)
    if have == want and sound(level):
        return
    install(project, level)
    if not sound(level):
        say(".venv is broken; making it anew")
        shutil.rmtree(str(VENV))
        install(project, level)
    if not sound(level):
        raise SetupError(
            ".venv/bin/python -c 'import pslaunch.runtime._core'\nfails in a .venv made anew; it says why."
        )
    STAMP.write_text(json.dumps(want))


# --- The right Python, one at a time ---


def newer_python() -> str | None:
    """A Python on PATH that is new enough; None when there is none."""
    for minor in range(20, OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and succeeds([found, "-c", ""]):
            return found
    return None


def main() -> None:
    if sys.version_info < OLDEST:
        found = newer_python()
        if found is None:
            raise SetupError(
                "sudo apt-get update && sudo apt-get install -y python3.11\n"
                "pslaunch needs Python 3.11 or later; "
                f"{sys.executable} is {sys.version.split()[0]}. Debian 12 and Ubuntu 24.04 have one."
            )
        os.execv(found, [found, *sys.argv])
    if not os.access(str(ROOT), os.W_OK):
        raise SetupError(
            f"{ROOT} can't be written: the venv and the build go there. Take a clone of your own."
        )
    lock = os.open(str(ROOT), os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once; released by the end of this process
    prepare(sys.argv[1])


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
