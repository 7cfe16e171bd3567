"""Programs of static mode: variables with operators, main and startup programs, and their guards."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ...engine import graph
from ...engine.graph import BATCH, Kind, Value
from ...engine.ops import give_form
from ...engine.optimizer import Optimizer, make_loss_error
from ...engine.param_config import ParamConfig
from ...engine.parameters import Parameters

DTYPES: Mapping[Kind, str] = {"float": "float32", "id": "int64"}
_KINDS: Mapping[str, Kind] = {"float32": "float", "int64": "id"}


def _make_operator(op: str, *, swaps: bool = False) -> Callable[[Variable, object], Variable]:
    def operate(self: Variable, other: object) -> Variable:
        return combine(op, other, self) if swaps else combine(op, self, other)

    return operate


class Variable(Value):
    """Value of a static program. It has no numbers: Executor.run() computes and returns them."""

    __slots__ = ()

    @property
    def dtype(self) -> str:
        """float32 or int64."""
        return DTYPES[self.kind]

    @property
    def lod_level(self) -> int:
        """1 for sequences, else 0."""
        return int(self.is_sequence)

    def be_minimized(self, optimizer: Optimizer) -> None:
        """Let the default main program learn to reduce this variable in this process alone."""
        set_training(self, optimizer, is_distributed=False)

    def astype(self, dtype: object) -> Variable:
        """Return the values in another dtype, float32 or int64."""
        return add_value("cast", [self], {"to": parse_dtype(dtype, f"{self.name}.astype")})

    __add__ = __radd__ = _make_operator("add")
    __sub__, __rsub__ = _make_operator("subtract"), _make_operator("subtract", swaps=True)
    __mul__ = __rmul__ = _make_operator("multiply")
    __truediv__, __rtruediv__ = _make_operator("divide"), _make_operator("divide", swaps=True)
    __pow__, __rpow__ = _make_operator("pow"), _make_operator("pow", swaps=True)
    __lt__, __le__ = _make_operator("less_than"), _make_operator("less_equal")
    __gt__, __ge__ = _make_operator("greater_than"), _make_operator("greater_equal")

    def __neg__(self) -> Variable:
        return self * -1.0

    def __matmul__(self, other: Variable) -> Variable:
        return add_value("matmul", [self, other], {"transpose": (False, False)})

    def __getitem__(self, key: object) -> Variable:
        return take_items(self, key)

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            f"variable {self.name} of a static program has no numbers yet: fetch them by "
            f"Executor.run(fetch_list=[{self.name!r}]); there is no imperative mode here"
        )

    numpy = item = backward = __float__ = __int__ = __bool__ = __array__ = __len__ = __iter__ = _refuse


def parse_dtype(dtype: object, where: str) -> Kind:
    """Return the kind of values of a dtype; raises ValueError naming those that there are."""
    name = getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]
    if name not in _KINDS:
        raise ValueError(f"{where}: dtype={name!r}, expected float32 or int64")
    return _KINDS[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Goal and rule by which a program learns, from minimize() of an optimizer."""

    loss: Variable  # of the user
    goal: Variable  # its gradients are used: the loss, or this worker's share of it
    optimizer: Any  # an optimizer.Optimizer
    is_distributed: bool


_programs: weakref.WeakSet[Program] = weakref.WeakSet()


class Program:
    """A main program, with its variables; or a startup program, with the parameters that it initializes."""

    def __init__(self) -> None:
        self.graph = graph.Graph()
        self.configs: dict[str, ParamConfig] = {}  # of a startup program
        self.parameters: Parameters | None = None  # of a startup program that was run
        self.startup: Program | None = None  # of a main program with parameters
        self.training: Training | None = None
        self.loaders: list[Any] = []  # io.DataLoader that are not iterable
        self.always: list[Variable] = []  # computed in each run: they count over all of them
        self.session: Any = None  # of the executor
        self.test_program: Program | None = None  # its clone for infer_from_dataset()
        _programs.add(self)

    def clone(self, for_test: bool = False) -> Program:
        """Return a program with the same variables and parameters that learns nothing.

        `for_test` must be True: a second program that trains is not in this runtime.
        """
        if not for_test:
            raise ValueError("Program.clone: for_test=False is not in this runtime; for_test=True is")
        other = Program()
        other.graph, other.startup = graph.Graph(self.graph), self.startup
        return other

    def global_block(self) -> Program:
        """Return the program itself: it has one block."""
        return self

    def var(self, name: str) -> Value:
        """Return a variable by its name; raises ValueError that names the nearest."""
        return get_variable(self, name, "Program.var")

    def all_parameters(self) -> list[ParamConfig]:
        """Return the parameters of its variables, each with its `name` and `shape`."""
        return list(self.graph.params.values())

    def list_vars(self) -> list[Value]:
        """Return its variables in the order of their definition."""
        return list(self.graph)


def find_program(variables: Sequence[Value], where: str) -> Program:
    """Return a program that has these variables, the default one first; raises ValueError without one."""
    for program in (_Defaults.main, *_programs):
        if all(one in program.graph for one in variables):
            return program
    raise ValueError(f"{where}: no program has all of {', '.join(one.name for one in variables)}")


def get_variable(program: Program, name: str, where: str) -> Value:
    """Return a variable by its name; raises ValueError that names the nearest."""
    try:
        return program.graph.get(name)
    except KeyError as e:
        raise ValueError(f"{where}: {e.args[0]}") from None


class _Defaults:
    """The programs to which functions add."""

    main, startup = Program(), Program()


def default_main_program() -> Program:
    """Return the program to which functions add variables."""
    return _Defaults.main


def default_startup_program() -> Program:
    """Return the program to which functions add parameters."""
    return _Defaults.startup


@contextlib.contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Let functions add to these programs in a `with` block."""
    before = _Defaults.main, _Defaults.startup
    given: tuple[Any, ...] = main_program, startup_program or before[1]
    for one in given:
        if not isinstance(one, Program):
            raise TypeError(f"program_guard: {one!r}, expected a static.Program")
    _Defaults.main, _Defaults.startup = given
    try:
        yield
    finally:
        _Defaults.main, _Defaults.startup = before


_counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def set_training(loss: object, optimizer: Optimizer, *, is_distributed: bool, share: float = 1.0) -> Program:
    """Let the default main program learn to reduce `loss` * `share`, and return it.

    Raises ValueError for a loss that is not one value of the program.
    """
    main = _Defaults.main
    if not isinstance(loss, Variable) or loss not in main.graph:
        name = loss.name if isinstance(loss, Variable) else repr(loss)
        raise make_loss_error(name)
    if loss.shape not in ((), (1,)):
        raise ValueError(
            f"minimize: {loss.name} has the shape {list(loss.shape)}, expected one value; "
            "minimize its mean over the batch, paddle.mean(...)"
        )
    if main.training is not None:
        raise ValueError(f"minimize: the program learns to reduce {main.training.loss.name} already")
    goal = loss if share == 1.0 else loss * share
    optimizer.share = share
    main.training = Training(loss=loss, goal=goal, optimizer=optimizer, is_distributed=is_distributed)
    return main


def make_unique_name(kind: str) -> str:
    """Return a name that nothing has yet: `fc_0`, `fc_1`."""
    return f"{kind}_{next(_counters[kind])}"


def add_value(
    op: str,
    inputs: Sequence[Value],
    attrs: Mapping[str, Any] | None = None,
    params: Sequence[ParamConfig] = (),
    *,
    name: str | None = None,
) -> Variable:
    """Add the result of an operation to the default main program; raises ValueError, naming the variable."""
    own = name or f"{make_unique_name(op)}.tmp_0"
    for one in inputs:
        if not isinstance(one, Variable):
            raise TypeError(
                f"{own}: input {one!r} is not a variable of a static program, as static.data makes"
            )
    if any(one.has_batch and not one.is_sequence for one in inputs):
        inputs = [add_value("single", [one]) if one.is_sequence else one for one in inputs]
    value = Variable(name=own, op=op, shape=(), inputs=tuple(inputs), attrs=attrs or {}, params=tuple(params))
    return add_to_main(give_form(value))


def add_to_main(value: Variable) -> Variable:
    """Add a value to the default main program, and its parameters to its startup program."""
    main = _Defaults.main
    main.graph.add(value)
    for config in value.params:
        main.startup = main.startup or _Defaults.startup
        main.startup.configs[config.name] = config
    return value


def data(
    name: str,
    shape: Sequence[int | None],
    dtype: object = "float32",
    lod_level: int = 0,
    *,
    salt: str | None = None,
) -> Variable:
    """Return an input of the default main program: each run takes an array for it.

    Of the dtype "string" it takes text, and its values are int64 ids: hashing.hash_text() with `salt`, by
    default the name. So equal texts of two slots have different rows of a table that they share.
    Sizes may be free, None or -1: the first is the number of samples, others are each run's own.
    lod_level 1: each sample is a sequence of items of `shape[1:]`.
    """
    if lod_level not in (0, 1):
        raise ValueError(f"static.data({name!r}): lod_level={lod_level}, expected 0 or 1")
    sizes = tuple(BATCH if size is None else int(size) for size in shape)
    is_text = dtype in ("string", str)
    kind = "id" if is_text else parse_dtype(dtype, f"static.data({name!r})")
    if salt is not None and not is_text:
        raise ValueError(
            f"static.data({name!r}): salt={salt!r} is for dtype='string'; static.nn.cross salts ids"
        )
    attrs = {"below": None} | ({"salt": name if salt is None else salt} if is_text else {})
    return add_to_main(
        Variable(name=name, op="data", shape=sizes, attrs=attrs, kind=kind, is_sequence=lod_level == 1)
    )


def combine(op: str, x: object, y: object) -> Variable:
    """Return a sum, product, power, comparison or the like of two variables, or of one and a number."""
    if isinstance(x, Variable) and isinstance(y, Variable):
        return add_value("exp", [add_value("log", [x]) * y]) if op == "pow" else add_value(op, [x, y])
    variable, number = (x, y) if isinstance(x, Variable) else (y, x)
    if not isinstance(variable, Variable) or not isinstance(number, int | float):
        raise TypeError(f"{op}: {x!r} and {y!r}: expected variables of a static program, or one and a number")
    if op == "pow" and variable is x:
        return add_value("pow", [x], {"y": float(number)})
    if op == "pow":
        return add_value("exp", [variable * math.log(number)])
    if op == "divide" and variable is x:
        op, number = "multiply", 1 / number
    subtract = (1.0, -number) if variable is x else (-1.0, number)
    linear = {"add": (1.0, number), "subtract": subtract, "multiply": (number, 0.0)}
    if op in linear:
        scale, bias = linear[op]
        return add_value("scale", [variable], {"scale": float(scale), "bias": float(bias)})
    constant = make_constant(number, variable if isinstance(number, int) else None)
    return add_value(op, [x, constant] if variable is x else [constant, variable])


def make_constant(number: object, like: object = None) -> Variable:
    """Return a number as a variable of float32, or of the dtype of another one; variables as they are."""
    if isinstance(number, Variable):
        return number
    if not isinstance(number, int | float):
        raise TypeError(f"{number!r} is neither a variable of a static program nor a number")
    kind = like.kind if isinstance(like, Variable) else "float"
    return add_value("full", [], {"shape": (), "to": kind, "value": number})


def take_items(x: Variable, key: object) -> Variable:
    """Return x[key]: of each axis a slice, or one item without it; None: a new axis; `...`: those between."""
    keys = list(key) if isinstance(key, tuple) else [key]
    for at in [i for i, one in enumerate(keys) if one is Ellipsis][:1]:
        keys[at : at + 1] = [slice(None)] * (len(x.shape) - len(keys) + keys.count(None) + 1)
    try:
        parts = [_read_part(one) for one in keys]
    except TypeError:
        raise TypeError(f"{x.name}[{key!r}]: expected whole numbers, slices of them, or `...` once") from None
    return add_value("slice", [x], {"parts": tuple(parts)})


def _read_part(key: Any) -> int | str | list[int | None]:
    if key is None:
        return "new"
    if not isinstance(key, slice):
        return operator.index(key)
    return [None if one is None else operator.index(one) for one in (key.start, key.stop, key.step)]
