"""Finds what makes a model: its config.yaml, and the modules of its folder."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Config = dict[str, Any]


def read_value(text: str) -> Any:
    """Return a number, a list or a text, as Python has it or without quotes."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def read_config(path: Path, changes: Sequence[str] = ()) -> Config:
    """Return the values of a file by their names with those of their sections: `hyper_parameters.fc_sizes`.

    The file has lines `name: value` in sections by indentation, as PaddleRec's have. changes: `name=value`.
    """
    config: Config = {}
    sections: list[tuple[int, str]] = []  # the open ones: indentation and name
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].rstrip()
        if not text:
            continue
        indent = len(text) - len(text.lstrip())
        name, _, value = text.strip().partition(":")
        sections = [one for one in sections if one[0] < indent]
        if value:
            config[".".join([*(section for _, section in sections), name])] = read_value(value.strip())
        else:
            sections.append((indent, name))
    for change in changes:
        name, _, value = change.partition("=")
        if name not in config:
            raise SystemExit(f"-o {change}: {path} has no {name}; it has {', '.join(config)}")
        config[name] = read_value(value)
    return config


def parse_arguments(text: str | None) -> tuple[Config, argparse.Namespace]:
    """Return the config that the command line names, and the arguments: `model` is the file."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="its config.yaml")
    parser.add_argument("-o", "--opt", nargs="*", default=[], metavar="NAME=VALUE", help="values to change")
    options = parser.parse_args()
    return read_config(options.model, options.opt), options


def load_module(folder: Path, name: str) -> ModuleType:
    """Import a module of a model's folder, or one beside the folders."""
    for other in ("net", "reader", "static_model"):  # those of another model have the same names
        sys.modules.pop(other, None)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
