"""The numbers by which the compiled core knows optimizers and distributions: csrc/ps_optim.h, ps_init.h."""

from __future__ import annotations

from typing import Literal

Method = Literal["sgd", "momentum", "adagrad"]
METHODS: dict[Method, int] = {"sgd": 0, "momentum": 1, "adagrad": 2}
InitialKind = Literal["normal", "uniform"]
KINDS: dict[InitialKind, int] = {"normal": 0, "uniform": 1}
