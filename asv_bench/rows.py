"""What all benchmark rows share: the commit's suite, one session a process, remembered answers.

asv asks for one row at a time; a workload's providers are measured together, interleaved, when the
first of its rows is asked for. Each remembered answer is served once, so that a repeated request
is a new measurement. Of asv's rounds, each a process, the first is the pilot of the next. What
need not be measured is answered from recorded sessions, see :mod:`bandwatch.measure.known`. No
method here has a name that asv would take for a benchmark.

``BANDWATCH_FRESH=1`` measures everything, ``BANDWATCH_SHARD=i/n`` one of n parts of the grid.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from bandwatch import sidecar

# Settles which kernels eager uses, so before anything that imports torch.
from bandwatch.measure import environment, shards
from bandwatch.measure.known import Known
from bandwatch.measure.lock import GpuBusy
from bandwatch.measure.workload import ANCHOR, CONTROL, Op, Workload

from . import providers, workloads
from .anchor import anchor


@functools.cache
def suite() -> ModuleType:
    """The ``membound`` of the commit under test.

    Raises NotImplementedError where the commit has none, RuntimeError where another copy would be
    measured.
    """
    if "ASV_COMMIT" not in os.environ:
        raise RuntimeError("no commit under test; run asv with the environment type hostenv")
    try:
        import membound
    except ModuleNotFoundError as error:
        if error.name != "membound":
            raise
        raise NotImplementedError("this commit has no membound") from error
    folder = Path(next(iter(membound.__path__))).resolve()
    if not folder.is_relative_to(Path(os.environ["ASV_ENV_DIR"]).resolve()):
        raise RuntimeError(
            f"membound was imported from {folder}, not from the checkout of the commit in "
            f"{os.environ['ASV_ENV_DIR']}: its numbers would belong to another commit"
        )
    return membound


def operation(name: str) -> Op:
    """The operation of the commit under test; NotImplementedError where the commit lacks it."""
    ops = workloads.ops(suite())
    if name not in ops:
        raise NotImplementedError(f"this commit's membound has no {name}")
    op, frozen = ops[name], {ANCHOR: anchor().run}
    return dataclasses.replace(op, providers={**op.providers, **providers.bound(op), **frozen})


@functools.cache
def kernels() -> tuple[Any, ...]:
    """The kernels of the whole grid, each once; none where the suite records no launches."""
    found: dict[Any, None] = {}
    ops = workloads.ops(suite()) if hasattr(suite(), "runtime") else {}
    for workload in workloads.grid():
        if workload.op in ops:
            with _told():
                found |= dict.fromkeys(workloads.kernels(suite(), ops[workload.op], workload))
    return tuple(found)


@functools.cache
def compile_all() -> None:
    """Compile the kernels of the whole grid in parallel, once a process."""
    if kernels():
        with _told():
            suite().runtime.build(list(kernels()), jobs=os.cpu_count())


@functools.cache
def analyse_all() -> None:
    """Analyse the kernels of the whole grid together, once a process: 0.2 s each otherwise."""
    from bandwatch.measure import static

    compile_all()
    found: dict[str, Any] = {}
    for kernel in kernels():
        with _told():
            artifact = compiled(kernel)
            found[artifact.digest] = artifact
    with _told():
        analysed = static.analyse_all(list(found.values()), jobs=os.cpu_count() or 1)
        _facts.update(zip(found, analysed, strict=True))


@contextmanager
def _told() -> Iterator[None]:
    """Print an error and go on: what fails ahead of its row fails again, and is reported, there."""
    try:
        yield
    except Exception:
        traceback.print_exc()


_DIED = {
    "verdict": "failed",
    "reason": "the process died or hung when this row was measured",
    "samples": [],
}


_NOT_MEASURED = {
    "verdict": "not available",
    "reason": "the session that this is shared with, or linked to, did not measure it",
    "samples": [],
}


class Timings:
    """The GPU session of this process and the answers it still owes."""

    def __init__(self) -> None:
        from bandwatch.measure.sampling import QUICK, Plan
        from bandwatch.measure.session import Session

        self._quick = os.environ["ASV_QUICK"] == "1"
        self._round, self._rounds = int(os.environ["ASV_ROUND"]), int(os.environ["ASV_ROUNDS"])
        self._session = Session(
            QUICK if self._quick else Plan(),
            identity=os.environ["ASV_SESSION"],
            process=int(os.environ["ASV_PROCESS"]),
        )
        spool = Path(os.environ["ASV_SESSION_FILE"])
        header = {
            "session": os.environ["ASV_SESSION"],
            "commit": os.environ["ASV_COMMIT"],
            "started_at": os.environ["ASV_SESSION_STARTED"],
            "environment": self._session.environment(),
            "harness": self._session.harness() | {"anchor": anchor().version},
        }
        self._sidecar = sidecar.Writer(spool, header)
        self._recorded = sidecar.read(spool).workloads
        fresh = os.environ.get("BANDWATCH_FRESH", "0") != "0"
        self._known = None if fresh else Known(Path(os.environ["ASV_RESULTS"]), header)
        self._shard = shards.parse(os.environ.get("BANDWATCH_SHARD", "1/1"))
        self._unfinished = Unfinished(spool.with_name(spool.name + ".unfinished"))
        self._answers: dict[tuple[str, str], Mapping[str, Any]] = {}

    def answer(self, op: Op, workload: Workload, provider: str) -> Mapping[str, Any]:
        """The provider's part of the sidecar line: verdict, reason, samples.

        Raises NotImplementedError for what this run leaves out. Ends the process (SystemExit)
        where the provider broke its CUDA context.
        """
        if provider not in (*op.providers, CONTROL):
            raise NotImplementedError(f"{provider} has no {op.name}")
        if self._quick and workload not in workloads.quick():
            raise NotImplementedError(f"{workload.key} is left out of a quick run")
        if not self._shard.takes(workload.key):
            raise NotImplementedError(f"{workload.key} is measured by another shard")
        key = (workload.key, provider)
        if key not in self._answers:
            record = self._shared(op, workload) or self._measured(op, workload, provider)
            for name, answer in record.items():
                self._answers[workload.key, name] = answer
        return self._answers.pop(key)

    def _shared(self, op: Op, workload: Workload) -> Mapping[str, Mapping[str, Any]] | None:
        """The answers of another commit that had the GPU do the same."""
        if self._known is None:
            return None
        with _told():
            digest = op.digest(workload)
            found = self._known.work(workload.key, digest, next(iter(op.providers)))
            if found is not None:
                self._sidecar.append(
                    self._session.shared(op, workload, digest, found.session, found.commit)
                )
                lacking = dict.fromkeys((*op.providers, CONTROL), _NOT_MEASURED)
                return lacking | found.part(self._round, self._rounds)
        return None

    def _measured(
        self, op: Op, workload: Workload, asked_for: str
    ) -> Mapping[str, Mapping[str, Any]]:
        from bandwatch.measure.session import DeviceLost

        deadly = self._unfinished.providers(workload.key) - {asked_for}
        own = next(iter(op.providers))
        known = self._baselines(op, workload) - {asked_for}
        left_out = deadly | known
        if workload.key not in anchor().keys:
            left_out = left_out | {ANCHOR}
        names = [name for name in (*op.providers, CONTROL) if name not in left_out]
        lines = [line for line in self._recorded if line["key"] == workload.key]
        earlier = _samples(lines, (own, CONTROL, ANCHOR)) if self._round else {}
        with self._unfinished.note(workload.key, asked_for):
            try:
                result = self._session.measure(
                    op, workload, names, earlier=earlier, finish=self._round == self._rounds - 1
                )
                record = result.record()
            except DeviceLost as error:
                self._sidecar.append(error.result.record())
                sys.exit(str(error))
        if not lines:  # else the process that died told more
            record["providers"] |= dict.fromkeys(deadly, _DIED)
        control = record["providers"].get(CONTROL, {}).get("samples", ())
        for name in known:
            linked = self._known.baseline(workload.key, name, control)
            record["providers"][name] = linked or _NOT_MEASURED
        self._sidecar.append(record)
        return record["providers"]

    def _baselines(self, op: Op, workload: Workload) -> set[str]:
        """The other providers than the suite's that a recent session timed."""
        if self._known is None:
            return set()
        others = set(op.providers) - {next(iter(op.providers)), ANCHOR}
        return {name for name in others if self._known.has_baseline(workload.key, name)}


def _samples(
    lines: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[list[float]]]:
    """Valid samples that the processes of this session took before, by provider."""
    found: dict[str, list[list[float]]] = {}
    for line in lines:
        for name in names:
            facts = line["providers"].get(name)
            if facts is not None and facts["verdict"] == "valid":
                found.setdefault(name, []).extend(facts["samples"])
    return found


class Unfinished:
    """What was being measured, on disk, so that a crash costs its own row and not its workload.

    A row that ended the process leaves its note; the next process then measures the workload's
    other providers without that one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._notes = [tuple(json.loads(line)) for line in lines]

    def providers(self, key: str) -> set[str]:
        """The providers whose rows of this workload never came to an end."""
        return {provider for noted, provider in self._notes if noted == key}

    @contextmanager
    def note(self, key: str, provider: str) -> Iterator[None]:
        """Note the row on disk until the block ends, be it by an ordinary error."""
        self._notes.append((key, provider))
        self._write()
        try:
            yield
        except Exception:
            self._forget(key, provider)
            raise
        self._forget(key, provider)

    def _forget(self, key: str, provider: str) -> None:
        self._notes.remove((key, provider))
        self._write()

    def _write(self) -> None:
        self._path.write_text("".join(json.dumps(note) + "\n" for note in self._notes))


def timings() -> Timings:
    """This process's :class:`Timings`.

    Raises NotImplementedError where there is no usable GPU, GpuBusy where somebody else measures
    on it.
    """
    found = _timings()
    if isinstance(found, Exception):
        raise found
    return found


@functools.cache
def _timings() -> Timings | Exception:
    """Once a process, also what goes wrong: hundreds of rows would each wait for a busy GPU."""
    reason = environment.unavailable()
    if reason is not None:
        return NotImplementedError(reason)
    compile_all()
    try:
        return Timings()
    except GpuBusy as error:
        return error


class _Rows:
    """What rows of time and rows of static facts share: parameters from the registry."""

    op: str
    direction = "forward"
    version = "1"
    timeout = 120

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "op"):
            cls.params = cls.axes(workloads.benchmarked(cls.op, cls.direction))

    @classmethod
    def axes(cls, benchmarked: tuple[Workload, ...]) -> tuple[tuple[str, ...], ...]:
        dtypes = dict.fromkeys(one.dtype for one in benchmarked)
        return tuple(dtypes), tuple(dict.fromkeys(one.case_text for one in benchmarked))

    def workload(self, dtype: str, shape: str) -> Workload:
        """The workload of a row; NotImplementedError where it is not among the benchmarked."""
        workload = workloads.workload(self.op, dtype, shape, self.direction)
        if workload not in workloads.benchmarked(self.op, self.direction):
            raise NotImplementedError(f"{workload.key} is not benchmarked")
        return workload


class TimeRows(_Rows):
    """Rows of GPU time: one per dtype, shape and provider; a sample is one placement."""

    param_names = ("dtype", "shape", "provider")
    unit = "seconds"

    @classmethod
    def axes(cls, benchmarked: tuple[Workload, ...]) -> tuple[tuple[str, ...], ...]:
        return *super().axes(benchmarked), providers.PROVIDERS

    def setup(self, dtype: str, shape: str, provider: str) -> None:
        workload = self.workload(dtype, shape)
        self._answer = timings().answer(operation(self.op), workload, provider)
        if self._answer["verdict"] == "not available":
            raise NotImplementedError(self._answer["reason"])

    def seconds(self, dtype: str, shape: str, provider: str) -> dict[str, Any]:
        """asv's form of the samples; RuntimeError where the result was wrong or never came."""
        if self._answer["verdict"] == "failed":
            raise RuntimeError(self._answer["reason"])
        samples = [seconds for _process, _placement, seconds in self._answer["samples"]]
        return {"samples": samples, "number": 1}


class StaticRows(_Rows):
    """Rows of static facts: one per dtype and shape, lower is better, the same on any machine."""

    param_names = ("dtype", "shape")

    def setup(self, dtype: str, shape: str) -> None:
        op, workload = operation(self.op), self.workload(dtype, shape)
        if not hasattr(suite(), "runtime"):
            raise NotImplementedError("this commit's membound has no runtime to compile with")
        analyse_all()
        launched = workloads.kernels(suite(), op, workload)
        if not launched:
            raise NotImplementedError(f"{workload.key} launches no kernel of membound")
        self._facts = [facts(compiled(kernel)) for kernel in launched]

    def worst(self, fact: Callable[[Any], float]) -> float:
        """The largest value among the workload's kernels."""
        return max(fact(facts) for facts in self._facts)


def class_name(op: str, direction: str) -> str:
    """Of the class with an operation's rows: ``RmsNormBackward``; readers split it again."""
    return "".join(part.capitalize() for part in [*op.split("_"), direction]).removesuffix(
        "Forward"
    )


def compiled(kernel: Any) -> Any:
    """The kernel's artifact; NotImplementedError where it is not cached and no compiler is here."""
    try:
        return suite().runtime.artifact(kernel)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == suite().__name__:
            raise
        raise NotImplementedError(
            f"{error}: the kernel is not in the cache and cannot be compiled here; "
            "install the extra 'kernels'"
        ) from error


_facts: dict[str, Any] = {}


def facts(artifact: Any) -> Any:
    """Static facts of a compiled kernel, analysed once a process and digest.

    Raises NotImplementedError where they cannot be had, for want of a tool for example.
    """
    from bandwatch.measure import static

    if artifact.digest not in _facts:
        try:
            _facts[artifact.digest] = static.analyse(
                artifact.cubin,
                threads=artifact.threads,
                dynamic_smem=artifact.dynamic_smem,
                cluster=artifact.cluster,
            )
        except static.StaticAnalysisError as error:
            raise NotImplementedError(str(error)) from error
    return _facts[artifact.digest]
