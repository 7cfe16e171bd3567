"""Values of `pslaunch k8s` in forms of Kubernetes: quantities, names, labels, claims.

Rejected values raise SpecError with option and value, before a cluster is asked.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from ...errors import SpecError
from ...options.kinds import Value
from ...options.sources import Given

FOLDER: Final = "/pslaunch"  # in a pod: what node/beginning.py names
ROOT: Final = "/workspace"  # of all workspaces in a pod
HOME: Final = "/home/pslaunch"
OWN_FOLDERS: Final = (FOLDER, ROOT, HOME, "/tmp", "/dev", "/proc", "/sys", "/etc")
LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
JOB_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NUMBER: Final = r"(?=.*[1-9])[0-9]{1,15}(\.[0-9]{1,3})?"
QUANTITIES: Final = {
    "cpu": re.compile(rf"{NUMBER}|(?=.*[1-9])[0-9]{{1,15}}m"),
    "memory": re.compile(rf"{NUMBER}(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|(?=.*[1-9])[0-9]{{1,15}}"),
}
EXPECTED: Final = {
    "cpu": "a number above 0, such as 2, 0.5 or 500m",
    "memory": "a number above 0, such as 4Gi or 500M",
}
_DOMAIN: Final = rf"(?=.{{1,253}}(?:[/=:]|$)){LABEL}(\.{LABEL})*"
_WORD: Final = r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_NAME: Final = rf"({_DOMAIN}/)?{_WORD}"  # of a label
_SELECTOR: Final = rf"{_NAME}=({_WORD})?"
# Forms of texts, and their words in messages.
OBJECT: Final = _DOMAIN, "the name of an object: small letters, digits, dashes, dots"
NAMESPACE: Final = LABEL, "at most 63 small letters, digits and dashes"
IMAGE: Final = "[!-~]{1,500}", "the name of an image, such as registry.example/team/image:1"


def read_quantity(given: Given, name: str, kind: str) -> str:
    """Return an amount of `cpu` or `memory`; "" if it is not given."""
    value = given.get(name)
    if value is None:
        return ""
    if not QUANTITIES[kind].fullmatch(value.text):
        near = re.sub(r"(?i)[\s,]|b$|bytes$|cores?$|cpus?$", "", value.text)
        near = re.sub("(?<=[0-9])m$", "Mi", near) if kind == "memory" else near
        hint = f"; did you mean {near}?" if QUANTITIES[kind].fullmatch(near) else ""
        raise SpecError(f"{value.shown}: expected {EXPECTED[kind]}{hint}")
    return value.text


def read_form(value: Value | None, form: tuple[str, str]) -> str:
    """Return a text of a form; "" if it is not given."""
    pattern, words = form
    if value is not None and not re.fullmatch(pattern, value.text):
        raise SpecError(f"{value.shown}: expected {words}")
    return value.text if value else ""


def read_claims(given: Given) -> tuple[tuple[str, str], ...]:
    """Return names of volume claims, and their paths in the pods."""
    found: list[tuple[str, str]] = []
    for value in given.get_all("pvc"):
        name, _, path = value.text.partition(":")
        if not re.fullmatch(_DOMAIN, name) or not re.fullmatch(r"/[^:]+", path) or not path.isprintable():
            raise SpecError(f"{value.shown}: expected NAME:PATH with an absolute path")
        path = posixpath.normpath(path)
        used = (*OWN_FOLDERS, *(p for _, p in found))
        if taken := next((t for t in used if is_inside(t, path) or is_inside(path, t)), None):
            raise SpecError(f"{value.shown}: {taken} in the pods is in use already; choose another path")
        found.append((name, path))
    return tuple(found)


def is_inside(path: str, folder: str) -> bool:
    """Return True for a path that is the folder or in it; both are absolute and normal."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def read_selector(given: Given) -> dict[str, str]:
    """Return the labels that the cluster's nodes must have."""
    found: dict[str, str] = {}
    for value in given.get_all("node_selector"):
        name, _, text = value.text.partition("=")
        read_form(value, (_SELECTOR, "a label of nodes: NAME=VALUE"))
        if name in found:
            raise SpecError(f"{value.shown}: {name} is given twice")
        found[name] = text
    return found
