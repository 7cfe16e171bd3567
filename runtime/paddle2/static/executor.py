"""`Executor`: runs startup and main programs. A main program is compiled once for each list of fetches."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...client.run import Run
from ...engine.columns import Feeds
from ...engine.graph import Value
from ...engine.learner import Learner
from ...engine.parameters import Parameters
from ...engine.plan import BatchInput, Plan
from ...engine.updater import Updater
from ...process.settings import get_settings
from ...shared.env import suggest
from ..base.life import FLEET
from ..core import EOFException
from ..io import GeneratorLoader, link_feeds
from ..program.program import Program, Variable, default_main_program, get_variable
from .commands import Commands
from .slot_datasets import QueueDataset

Array = npt.NDArray[Any]
Fetch = Value | str
Fetches = Fetch | Sequence["Fetches"]
READ_AHEAD = 64  # batches of a dataset


class CPUPlace:
    """The processor."""


class Number(np.ndarray[Any, Any]):
    """A fetched value of one number: an array without axes, as in PaddlePaddle since 2.5.

    [0] is the number too: before, it had one axis of size 1, and many programs are of that time.
    """

    def __getitem__(self, key: Any) -> Any:
        whole = not self.ndim and isinstance(key, int) and key in (0, -1)
        return super().__getitem__(() if whole else key)


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
        feed: Feeds | Sequence[Feeds] | None = None,
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
        an array for each variable of static.data, Sequences or a list of lists for one with lod_level=1, or
        a DataLoader of the program gives it. If minimize() was
        called, it also learns. Other arguments have no effect. Raises ValueError, naming the variable, for a
        feed or a fetch that does not fit, and core.EOFException at the end of a DataLoader.
        """
        program = _check_program(program, "Executor.run")
        if program.configs or not len(program.graph):
            if program.parameters is None:
                program.parameters = Parameters(program.configs)
                FLEET.note_initialized()
            else:
                program.parameters.extend(program.configs)
            return []
        values = _get_session(program).run(feed, _list_fetches(fetch_list))
        return [one if one.ndim else one.view(Number) for one in values]  # they share the memory

    def _run_dataset(
        self,
        what: str,
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
        """Run a main program for each batch of a dataset; infer_from_dataset() learns nothing.

        Every `print_period` batches it prints the values of `fetch_list`, each with its text of `fetch_info`;
        with `debug` it prints its speed at the end. `scope` and `thread` have no effect: one thread trains.
        Raises ValueError naming file, line and slot for text that does not fit.
        """
        where = f"Executor.{what}"
        main = _check_program(program, where)
        if what == "infer_from_dataset":
            main = _get_test_program(main)
        if fetch_handler is not None:
            raise ValueError(f"{where}: fetch_handler is not in this runtime; fetch_list prints values")
        if not isinstance(dataset, QueueDataset):
            raise TypeError(f"{where}: dataset={dataset!r}, expected a QueueDataset or an InMemoryDataset")
        for slot in dataset.get_settings().use_var:
            get_variable(main, slot.name, f"{where}: use_var")
        fetches = _list_fetches(fetch_list)
        texts = (
            [str(getattr(one, "name", one)) for one in fetches] if fetch_info is None else list(fetch_info)
        )
        if len(texts) != len(fetches) or print_period < 1:
            raise ValueError(
                f"{where}: fetch_info={fetch_info!r}, print_period={print_period!r}, expected a text for "
                f"each of {len(fetches)} fetches, and a number from 1"
            )
        begun_s = time.monotonic()
        number = _run_batches(main, dataset, fetches, texts, print_period)
        if debug:
            print(f"{where}: {number} batches in {time.monotonic() - begun_s:.3f} s", flush=True)

    @staticmethod
    def look_ahead(feeds: Iterable[Feeds]) -> Iterator[Feeds]:
        """Yield `feeds`, each once the next one is there: `run` then lets table rows travel one batch ahead.

        Each feed needs arrays of its own. DataLoaders and datasets do it by themselves.
        """
        return link_feeds(feeds)

    train_from_dataset = functools.partialmethod(_run_dataset, "train_from_dataset")
    infer_from_dataset = functools.partialmethod(_run_dataset, "infer_from_dataset")

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


def _run_batches(
    main: Program, dataset: QueueDataset, fetches: Sequence[Fetch], texts: Sequence[str], print_period: int
) -> int:
    """Run a program for each batch of a dataset, and return their number."""
    commands = Commands()
    slots = dataset.get_settings().use_var
    loader = GeneratorLoader(slots, READ_AHEAD, iterable=False, return_list=False, end=commands.end)
    loader.set_batch_generator(lambda: dataset.read_batches(commands))
    session, number = _get_session(main), 0
    loader.start()
    try:
        for number in itertools.count(1):
            values = session.run(loader, fetches, f", batch {number}")
            if fetches and number % print_period == 0:
                shown = ", ".join(map(_describe, texts, values))
                print(f"time: [{time.strftime('%F %T')}], batch: [{number}], {shown}", flush=True)
    except EOFException:
        number -= 1  # the one that the end has interrupted
    finally:
        loader.reset()
    return number


def _get_session(program: Program) -> Session:
    """Return the runs of a main program with its current parameters."""
    parameters = program.startup.parameters if program.startup else None
    if program.startup is not None and parameters is None:
        raise RuntimeError(
            "Executor.run: the startup program has not been run: call "
            "run(static.default_startup_program()) first"
        )
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
    form = "g" if value.dtype.kind == "f" else ""
    return f"{text}[{value.size}]:[{','.join(format(one, form) for one in value.reshape(-1))}]"


class Session:
    """Runs of one main program."""

    def __init__(self, program: Program, parameters: Parameters | None) -> None:
        self.parameters = parameters
        self._program = program
        self._parameters = parameters or Parameters()
        self._learner = Learner(program.graph, self._parameters)
        self._ahead: tuple[object, BatchInput] | None = None  # the next feed, prepared one step before
        self._form: object = None  # of the program when its parameters were checked and `_data` was made
        self._data: dict[str, Value] = {}
        self._updater: Updater | None = None
        self._guard = FLEET.guard

    def run(
        self,
        feed: Feeds | Sequence[Feeds] | GeneratorLoader | None,
        fetch_list: Sequence[Fetch],
        place: str = "",
    ) -> list[Array]:
        """Compute a batch, learn from it, and return the fetched values.

        The batch is the feed, or a loader's next one; without a feed that of a loader of the program.
        """
        self._follow_program()
        plan, count = self._get_plan(fetch_list), len(fetch_list)
        key = tuple([getattr(one, "name", one) for one in fetch_list])
        source: Any = self._find_loader() if feed is None else feed
        if isinstance(source, list | tuple) and len(source) == 1:
            (source,) = source
        given = source.take() if isinstance(source, GeneratorLoader) else source
        feeds = self._check_feed(given)
        training = self._program.training
        if training is not None and training.is_distributed:
            repeated = FLEET.replay.repeat(self._learner, key)
            if repeated is not None:
                return repeated
        ahead, self._ahead = self._ahead, None
        is_ready = ahead is not None and ahead[0] is given and ahead[1].plan is plan
        batch = ahead[1] if ahead is not None and is_ready else plan.prepare(feeds)
        if training is None:
            return self._learner.compute(batch).values[:count]
        updater = self._updater or self._find_updater()
        if updater.reads_ahead:
            self._ahead = self._prepare_next(plan, source)
        following = self._ahead[1] if self._ahead else None
        with self._guard():
            result = self._learner.train(batch, updater, following, place)
        if training.is_distributed:
            FLEET.report_step(batch.samples, result.values[count], self._learner)
            FLEET.note_run(self._learner, key, result.values[:count])
        return result.values[:count]

    def _prepare_next(self, plan: Plan, source: object) -> tuple[object, BatchInput] | None:
        """Return the next feed and its batch, if known; one that does not fit is refused in its turn."""
        coming = source.peek() if isinstance(source, GeneratorLoader) else getattr(source, "following", None)
        with contextlib.suppress(ValueError, TypeError):
            return (coming, plan.prepare(self._check_feed(coming))) if coming else None
        return None

    def _follow_program(self) -> None:
        """Look at the program again if it has changed; raises RuntimeError for new parameters."""
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
        self._form = form

    def _get_plan(self, fetch_list: Sequence[Fetch]) -> Plan:
        """Return the plan of the fetches, then of the loss and the values that are always computed."""
        program = self._program
        targets = [self._find_fetch(one) for one in fetch_list]
        training = program.training
        every = [*targets, *([training.loss] if training else []), *program.always]
        return self._learner.get_plan(every, training.goal if training else None)

    def _find_fetch(self, fetch: Fetch) -> Value:
        if not isinstance(fetch, Variable | str):
            raise TypeError(f"Executor.run: fetch_list has {fetch!r}, expected a variable or its name")
        name = fetch if isinstance(fetch, str) else fetch.name
        return get_variable(self._program, name, "Executor.run: fetch_list")

    def _find_loader(self) -> GeneratorLoader | None:
        """Return the loader of the program whose pass has begun; None if the program needs no data."""
        loaders: list[GeneratorLoader] = self._program.loaders
        for one in loaders:
            if one.is_started:
                return one
        if loaders:
            raise RuntimeError("Executor.run: no feed, and no started DataLoader: call its start()")
        return None

    def _check_feed(self, feed: Feeds | Sequence[Feeds] | None) -> Feeds:
        if isinstance(feed, list | tuple):  # of another length than 1
            raise ValueError(f"Executor.run: feed is a list of {len(feed)}, expected a dict")
        feed = {} if feed is None else feed
        if not isinstance(feed, Mapping):
            raise TypeError(
                f"Executor.run: feed is a {type(feed).__name__}, expected a dict of arrays by the names of "
                "variables"
            )
        for name in feed:
            if name not in self._data:
                hint = suggest(name, self._data)
                raise ValueError(
                    f"Executor.run: feed has {name!r}, no variable of static.data in the program{hint}"
                )
        return feed

    def _find_updater(self) -> Updater:
        training = self._program.training
        assert training is not None  # its caller has one
        if training.is_distributed:
            self._updater = FLEET.get_updater(self._program)
        else:
            FLEET.refuse_alone()
            plan = self._learner.get_plan([], training.goal)
            run = Run(get_settings(), is_local=True)
            self._guard = run.guard_training
            optimizer = training.optimizer
            self._updater = run.make_updater(plan.trained, plan.tables, self._parameters, optimizer)
            self._updater.start()
        return self._updater
