"""Files of static mode: the parameters of a program, and inference models.

A model is the part of a program between inputs and results; its parameters are in a second file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.graph import Value, sort_values
from ...engine.ops.base import Form, find_form
from ...engine.param_config import ParamConfig
from ...engine.parameters import Parameters, read_parameters
from ...files.foreign import fit_shape, read_pdparams
from ...files.serving import Table
from ..program.program import Program, Variable, default_main_program, find_program, get_variable

SUFFIX, PADDLE_SUFFIX = ".set", ".pdparams"
FORMAT = "pslaunch inference model 2"
MODEL, PROGRAM = ".inference", "program.json"


def get_parameters(program: Program | None, where: str) -> Parameters:
    """Return the parameters of a program whose startup program was run."""
    own = default_main_program() if program is None else program
    found = own.startup.parameters if own.startup else None
    if found is None:
        raise RuntimeError(f"{where}: the program has no parameters yet; run its startup program first")
    return found


def save(program: Program, model_path: str, protocol: int = 4) -> None:
    """Write the parameters of a program and the optimizer's state to the folder `model_path`.set.

    `protocol` has no effect. A set that is there stays whole until the new one is (docs/checkpoint.md).
    """
    get_parameters(program, "static.save").save(f"{model_path}{SUFFIX}")


def load(program: Program, model_path: str, executor: object = None, var_list: None = None) -> None:
    """Take what static.save() wrote, or PaddlePaddle's `model_path`.pdparams.

    Before the first step with servers. `executor` has no effect. Raises ValueError that names the file and
    what is wrong.
    """
    if var_list is not None:
        raise ValueError("static.load: var_list is not in this runtime; leave it out")
    parameters, folder = get_parameters(program, "static.load"), Path(f"{model_path}{SUFFIX}")
    theirs = Path(f"{model_path}{PADDLE_SUFFIX}")
    if folder.exists() or not theirs.exists():
        parameters.load(folder)
        return
    found = read_pdparams(theirs)
    if missing := [name for name in parameters if name not in found]:
        raise ValueError(f"{theirs} lacks {', '.join(missing)}; it has {', '.join(found)}")
    shapes = {name: parameters.get_shape(name) for name in parameters}
    parameters.replace({n: fit_shape(found[n], shape, f"{theirs}: {n}") for n, shape in shapes.items()})


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Take arrays as values of parameters, by their names; before the first step with servers."""
    parameters, where = get_parameters(program, "static.set_program_state"), "static.set_program_state: "
    shapes = {name: parameters.get_shape(name) for name in state_dict}
    parameters.replace({n: fit_shape(np.asarray(state_dict[n]), shapes[n], where + n) for n in shapes})


def save_inference_model(
    path_prefix: str,
    feed_vars: Variable | Sequence[Variable],
    fetch_vars: Variable | Sequence[Variable],
    executor: object = None,
    *,
    program: Program | None = None,
) -> None:
    """Write all between `feed_vars` and `fetch_vars` to the folder `path_prefix`.inference, a set.

    Without `program` it is the one that has them. `executor` has no effect. Raises ValueError if another
    input is needed.
    """
    feeds = [feed_vars] if isinstance(feed_vars, Variable) else list(feed_vars)
    fetches = [fetch_vars] if isinstance(fetch_vars, Variable) else list(fetch_vars)
    main = find_program([*feeds, *fetches], "save_inference_model") if program is None else program
    needed = set(sort_values(fetches))
    values = [value for value in main.graph if value in needed]
    for value in values:
        if value.op == "data" and value not in feeds:
            raise ValueError(f"save_inference_model: {value.name} is needed too; add it to feed_vars")
    names = [config.name for value in values for config in value.params]
    data = {
        "format": FORMAT,
        "feeds": [one.name for one in feeds],
        "fetches": [one.name for one in fetches],
        "values": [_encode(value) for value in values],
    }
    files = {PROGRAM: json.dumps(data, indent=1).encode()}
    parameters = get_parameters(main, "save_inference_model")
    parameters.save(f"{path_prefix}{MODEL}", files=files, names=dict.fromkeys(names))


def _encode(value: Value) -> dict[str, Any]:
    own = {name: getattr(value, name) for name in ("name", "op", "shape", "attrs", "kind", "is_sequence")}
    names = {"inputs": [one.name for one in value.inputs], "params": [one.name for one in value.params]}
    return own | names


def load_inference_model(path_prefix: str, executor: object = None, table: Table | None = None) -> list[Any]:
    """Return a program, the names of its inputs and its results, as save_inference_model() wrote them.

    Values are read from its files when they are used, or from a Table of pslaunch.runtime.serving. `executor`
    has no effect. Raises ValueError if the files are of another kind or damaged.
    """
    own = Table(f"{path_prefix}{MODEL}")
    found = own.set
    try:
        data = json.loads(found.read_file(PROGRAM))
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{found.folder} is no inference model: {e}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{found.folder} is not an inference model of this version of the runtime")
    parameters = read_parameters(found)
    program, startup = Program(), Program()
    try:
        for one in data["values"]:
            configs = [parameters.get_config(name) for name in one["params"]]
            program.graph.add(_decode(program, one, configs))
        names = [program.graph.get(name).name for name in data["feeds"]]
        fetches = [program.graph.get(name) for name in data["fetches"]]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        raise ValueError(f"{found.folder} is damaged: {e}") from None
    parameters.follow(table or own)
    startup.configs, startup.parameters, program.startup = program.graph.params, parameters, startup
    return [program, names, fetches]


def _decode(program: Program, data: dict[str, Any], configs: Sequence[ParamConfig]) -> Variable:
    name, op, attrs = str(data["name"]), data["op"], data["attrs"]
    inputs = tuple(get_variable(program, one, "load_inference_model") for one in data["inputs"])
    form = Form(tuple(data["shape"]), data["kind"], data["is_sequence"])
    value = Variable(name=name, op=op, inputs=inputs, attrs=attrs, params=tuple(configs), **form._asdict())
    if op in ("data", "parameter"):  # their shapes are their own
        sizes = [math.prod(form.shape)] if op == "parameter" else []
        fits = [c.rows * c.cols for c in configs] == sizes and {*map(type, form.shape)} <= {int}
        fits = fits and data["kind"] in ("float", "id") and type(data["is_sequence"]) is bool
    else:
        fits = form == find_form(value)
    if not fits:
        raise ValueError(f"{name} can't have the shape {list(form.shape)}")
    return value
