"""Forms of fields: those of Kubernetes' own models, wherever a name is found in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kubernetes import client

from pslaunch.backends.k8s_patch import (
    AMOUNT,
    EXCLUSIVE,
    FLAG,
    FORMS,
    LIST,
    MAPPING,
    NEEDED,
    NUMBER,
    PORT,
    TEXT,
    VALUES,
)

KINDS = ("V1Job", "V1Service", "V1ConfigMap", "V1NetworkPolicy")
BY_TYPE = {"str": TEXT, "int": NUMBER, "bool": FLAG, "dict": MAPPING, "list": LIST, "object": PORT}


def list_fields(model: str, seen: set[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield model, name and type of all fields of a model and of those in it, and the type of items."""
    seen.add(model)
    described = getattr(client, model)
    for attribute, text in described.openapi_types.items():
        found = re.fullmatch(r"(?:(list|dict)[\[(](?:str, ?)?)?(.*?)[\])]?", text, re.IGNORECASE)
        assert found
        of, items = found.groups()
        yield model, described.attribute_map[attribute], (of or items).lower(), items
        if items[0] == "V" and items not in seen:
            yield from list_fields(items, seen)


@pytest.mark.parametrize("kind", KINDS)
def test_forms_are_those_of_the_models(kind: str) -> None:
    for model, name, of, items in list_fields(kind, set()):
        if "OnExitCodes" in model:  # its numbers are called values, too
            continue
        expected = BY_TYPE.get(of, MAPPING)
        if name in FORMS:
            others = {TEXT: (AMOUNT,), NUMBER: (PORT,)}.get(expected, ())
            assert FORMS[name] in (expected, *others), (model, name)
        if name in VALUES:
            assert BY_TYPE[items] in (VALUES[name], TEXT if VALUES[name] is AMOUNT else None), (model, name)
        elif name in FORMS and FORMS[name] is LIST:
            assert items[0] == "V" or items.endswith("ResourceClaim"), (model, name)


def test_fields_of_the_tables_are_those_of_the_models() -> None:
    fields = [field for kind in KINDS for field in list_fields(kind, set())]
    unused = {*FORMS, *VALUES, *NEEDED, *EXCLUSIVE} - {name for _, name, _, _ in fields}
    assert not unused
    for name, wanted in [*NEEDED.items(), *EXCLUSIVE.items()]:
        for items in {items for _, found, _, items in fields if found == name}:
            assert {*wanted} - {*getattr(client, items).attribute_map.values()} <= {"fileKeyRef"}, (
                name,
                items,
            )
