"""`Executor`: runs startup and main programs. A main program is compiled once for each list of fetches."""

from __future__ import annotations

import difflib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..core import EOFException
from ..fleet.life import FLEET
from ..graph import Value
from ..io import GeneratorLoader
from ..learner import Learner
from ..parameters import Parameters
from ..plan import BatchInput, Plan
from ..run import Run
from ..settings import get_settings
from ..updater import Updater
from .commands import Commands
from .dataset import QueueDataset
from .fetched import make_fetched
from .program import Program, Variable, default_main_program, get_variable

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
Fetch = Value | str
Fetches = Fetch | Sequence["Fetches"]
READ_AHEAD = 64  # batches of a dataset


class CPUPlace:
    """The processor."""


class Scope:
    """Place of values in PaddlePaddle; here they are fetched."""

    def find_var(self, name: str) -> NoReturn:
        """Raise TypeError that names the substitute."""
        raise TypeError(
            f"global_scope().find_var({name!r}) is not in this runtime: fetch values by "
            f"Executor.run(fetch_list=[{name!r}])"
        )


_scope = Scope()


def global_scope() -> Scope:
    """Return the only scope, which arguments of that name take."""
    return _scope


class Executor:
    """Runs programs in this process. `place`: CPUPlace()."""

    def __init__(self, place: CPUPlace | None = None) -> None:
        if not isinstance(place, CPUPlace | None):
            raise TypeError(f"Executor: place={place!r}, expected CPUPlace(); there is no other here")

    def run(
        self,
        program: Program | None = None,
        feed: Feed | Sequence[Feed] | None = None,
        fetch_list: Fetches | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        use_prune: bool = False,
    ) -> list[Array]:
        """Run a program once, and return the values of `fetch_list`: variables or their names.

        One number is an array of the shape (); its [0] is the number too.

        A startup program makes the parameters' initial values. A main program computes a batch: `feed` has
        an array for each variable of static.data, or a DataLoader of the program gives it. If minimize() was
        called, it also learns. Other arguments have no effect. Raises ValueError, naming the variable, for a
        feed or a fetch that does not fit, and core.EOFException at the end of a DataLoader.
        """
        program = _check_program(program, "Executor.run")
        if program.configs or not len(program.graph):
            _initialize(program)
            return []
        return make_fetched(_get_session(program).run(feed, _list_fetches(fetch_list)))

    def train_from_dataset(
        self,
        program: Program | None = None,
        dataset: QueueDataset | None = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Fetches | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: None = None,
    ) -> None:
        """Run a main program for each batch of a dataset.

        Every `print_period` batches it prints the values of `fetch_list`, each with its text of `fetch_info`;
        with `debug` it prints its speed at the end. `scope` and `thread` have no effect: one thread trains.
        Raises ValueError naming file, line and slot for text that does not fit.
        """
        where = "Executor.train_from_dataset"
        main = _check_program(program, where)
        _run_dataset(where, main, dataset, debug, fetch_list, fetch_info, print_period, fetch_handler)

    def infer_from_dataset(
        self,
        program: Program | None = None,
        dataset: QueueDataset | None = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Fetches | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: None = None,
    ) -> None:
        """Do as train_from_dataset(), but learn nothing."""
        where = "Executor.infer_from_dataset"
        main = _get_test_program(_check_program(program, where))
        _run_dataset(where, main, dataset, debug, fetch_list, fetch_info, print_period, fetch_handler)

    def close(self) -> None:
        """Do nothing: fleet.stop_worker() ends the connection to servers."""


def _check_program(program: Program | None, where: str) -> Program:
    found = default_main_program() if program is None else program
    if not isinstance(found, Program):
        raise TypeError(f"{where}: program={program!r}, expected a static.Program")
    return found


def _get_test_program(program: Program) -> Program:
    """Return the clone of a main program that learns nothing, a new one if the program has changed."""
    clone = program.test_program
    if clone is None or len(clone.graph) != len(program.graph) or clone.startup is not program.startup:
        clone = program.test_program = program.clone(for_test=True)
    return clone


def _run_dataset(
    where: str,
    main: Program,
    dataset: QueueDataset | None,
    debug: bool,
    fetch_list: Fetches | None,
    fetch_info: Sequence[str] | None,
    print_period: int,
    fetch_handler: None,
) -> None:
    """Run a program for each batch of a dataset; `where` names the caller in messages."""
    if fetch_handler is not None:
        raise ValueError(f"{where}: fetch_handler is not in this runtime; fetch_list prints values")
    if not isinstance(dataset, QueueDataset):
        raise TypeError(f"{where}: dataset={dataset!r}, expected a QueueDataset or an InMemoryDataset")
    slots = dataset.get_settings().use_var
    for slot in slots:
        get_variable(main, slot.name, f"{where}: use_var")
    fetches = _list_fetches(fetch_list)
    texts = [str(getattr(one, "name", one)) for one in fetches] if fetch_info is None else list(fetch_info)
    if len(texts) != len(fetches) or print_period < 1:
        raise ValueError(
            f"{where}: fetch_info={fetch_info!r}, print_period={print_period!r}, expected a text for "
            f"each of {len(fetches)} fetches, and a number from 1"
        )
    commands = Commands()
    loader = GeneratorLoader(slots, READ_AHEAD, iterable=False, return_list=False, end=commands.end)
    loader.set_batch_generator(lambda: dataset.read_batches(commands))
    session, number, begun_s = _get_session(main), 0, time.monotonic()
    loader.start()
    try:
        for number in itertools.count(1):
            values = session.run(None, fetches, loader)
            if fetches and number % print_period == 0:
                shown = ", ".join(map(_describe, texts, values))
                print(f"time: [{time.strftime('%F %T')}], batch: [{number}], {shown}", flush=True)
    except EOFException:
        if debug:
            print(f"{where}: {number - 1} batches in {time.monotonic() - begun_s:.3f} s", flush=True)
    finally:
        loader.reset()


def _initialize(startup: Program) -> None:
    if startup.parameters is None:
        startup.parameters = Parameters(startup.configs)
        FLEET.note_initialized()
    else:
        startup.parameters.extend(startup.configs)


def _get_parameters(program: Program) -> Parameters | None:
    """Return the parameters of a main program, None if it has none."""
    if program.startup is not None and program.startup.parameters is None:
        raise RuntimeError(
            "Executor.run: the startup program has not been run: call "
            "run(static.default_startup_program()) first"
        )
    return program.startup.parameters if program.startup else None


def _get_session(program: Program) -> Session:
    """Return the runs of a main program with its current parameters."""
    parameters = _get_parameters(program)
    session: Session | None = program.session
    if session is None or session.parameters is not parameters:
        session = program.session = Session(program, parameters)
    return session


def _list_fetches(fetches: Fetches | None) -> list[Fetch]:
    """Return the fetches of a list with lists in it, or of a single fetch."""
    if fetches is None:
        return []
    if isinstance(fetches, Value | str) or not isinstance(fetches, Sequence):
        return [fetches]
    return [one for part in fetches for one in _list_fetches(part)]


def _describe(text: str, value: Array) -> str:
    """Return a fetched value in PaddlePaddle's form."""
    form = "g" if value.dtype.kind == "f" else ""
    return f"{text}[{value.size}]:[{','.join(format(one, form) for one in value.reshape(-1))}]"


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A program for one list of fetches."""

    plan: Plan  # of the fetches, the loss, and the values that are always computed
    fetches: int


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The next batch of a loader, prepared during the step before."""

    feed: Feed
    batch: BatchInput


class Session:
    """Runs of one main program."""

    def __init__(self, program: Program, parameters: Parameters | None) -> None:
        self.parameters = parameters
        settings = get_settings()
        self._program = program
        self._parameters = parameters or Parameters()
        self._learner = Learner(
            program.graph,
            self._parameters,
            seed=settings.seed,
            trainer=settings.trainer_id,
            threads=settings.trainer_count,
        )
        self._compiled: dict[tuple[object, ...], _Compiled] = {}
        self._ahead: _Ahead | None = None
        self._form: object = None  # of the program when `_compiled` and `_data` were made
        self._data: dict[str, Value] = {}
        self._updater: Updater | None = None

    def run(
        self,
        feed: Feed | Sequence[Feed] | None,
        fetch_list: Sequence[Fetch],
        loader: GeneratorLoader | None = None,
    ) -> list[Array]:
        """Compute a batch, learn from it, and return the fetched values.

        Without `feed` the batch is that of `loader`, or of a loader of the program.
        """
        self._follow_program()
        key = tuple([getattr(one, "name", one) for one in fetch_list])
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(fetch_list)
        if feed is None and loader is None:
            loader = self._find_loader()
        feeds = self._check_feed(feed) if loader is None else loader.take()
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.feed is feeds and ahead.batch.plan is compiled.plan:
            batch = ahead.batch
        else:
            batch = compiled.plan.prepare(feeds)
        training = self._program.training
        if training is None:
            return self._learner.compute(batch).values[: compiled.fetches]
        updater = self._updater or self._find_updater()
        if loader is not None and updater.reads_ahead and (coming := loader.peek()) is not None:
            self._ahead = _Ahead(coming, compiled.plan.prepare(coming))
        following = self._ahead.batch if self._ahead else None
        if not training.is_distributed:
            return self._learner.train(batch, updater, following).values[: compiled.fetches]
        with FLEET.guard():
            result = self._learner.train(batch, updater, following)
        FLEET.report_step(batch.samples, result.values[compiled.fetches])
        return result.values[: compiled.fetches]

    def _follow_program(self) -> None:
        """Drop results of compilation if the program has changed; raises RuntimeError for new parameters."""
        program = self._program
        form = len(program.graph), program.training, len(program.always)
        if form == self._form:
            return
        for name in program.graph.params:
            if name not in self._parameters:
                raise RuntimeError(
                    f"Executor.run: parameter {name} is newer than the last run of the startup program: "
                    "call run(static.default_startup_program()) again"
                )
        self._parameters.check("Executor.run", program.graph.params)
        self._data = {value.name: value for value in program.graph if value.op == "data"}
        self._compiled.clear()
        self._ahead = None
        self._form = form

    def _compile(self, fetch_list: Sequence[Fetch]) -> _Compiled:
        program = self._program
        targets = [self._find_fetch(one) for one in fetch_list]
        training = program.training
        every = [*targets, *([training.loss] if training else []), *program.always]
        return _Compiled(self._learner.get_plan(every, training.goal if training else None), len(targets))

    def _find_fetch(self, fetch: Fetch) -> Value:
        if isinstance(fetch, str):
            return get_variable(self._program, fetch, "Executor.run: fetch_list")
        if not isinstance(fetch, Variable):
            raise TypeError(f"Executor.run: fetch_list has {fetch!r}, expected a variable or its name")
        return get_variable(self._program, fetch.name, "Executor.run: fetch_list")

    def _find_loader(self) -> GeneratorLoader | None:
        """Return the loader of the program whose pass has begun; None if the program needs no data."""
        loaders: list[GeneratorLoader] = self._program.loaders
        for one in loaders:
            if one.is_started:
                return one
        if loaders:
            raise RuntimeError("Executor.run: no feed, and no started DataLoader: call its start()")
        return None

    def _check_feed(self, feed: Feed | Sequence[Feed] | None) -> Feed:
        if isinstance(feed, list | tuple):
            if len(feed) != 1:
                raise ValueError(f"Executor.run: feed is a list of {len(feed)}, expected a dict")
            feed = feed[0]
        feed = {} if feed is None else feed
        if not isinstance(feed, Mapping):
            raise TypeError(
                f"Executor.run: feed is a {type(feed).__name__}, expected a dict of arrays by the names of "
                "variables"
            )
        given = {}
        for name, value in feed.items():
            if name not in self._data:
                near = difflib.get_close_matches(name, self._data, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(
                    f"Executor.run: feed has {name!r}, no variable of static.data in the program{hint}"
                )
            try:
                given[name] = np.asarray(value)
            except ValueError as e:
                raise ValueError(f"Executor.run: feed of {name}: {e}") from None
        return given

    def _find_updater(self) -> Updater:
        training = self._program.training
        assert training is not None  # its caller has one
        if training.is_distributed:
            self._updater = FLEET.get_updater(self._program)
        else:
            FLEET.refuse_alone()
            plan = self._learner.get_plan([], training.goal)
            run = Run(get_settings(), is_local=True)
            optimizer = training.optimizer
            self._updater = run.make_updater(plan.trained, plan.tables, self._parameters, optimizer)
            self._updater.start()
        return self._updater
