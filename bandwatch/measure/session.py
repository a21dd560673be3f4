"""A measuring session: providers of a workload side by side, on many placements of their buffers.

The unit of sampling is the placement, a fresh allocation of everything: where buffers happen to
lie decides more than the noise of one replay. Within a placement the providers, the control
among them, are replayed in blocks of random order, so that drift hits all alike and their ratio
is paired. A pilot of a few placements tells how many more the workload needs.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import secrets
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import estimate
from ..gpus import GPUS
from . import backward, correctness, sampling, verdicts
from .controls import StreamControl
from .device import CudaDevice, Device, Graph, NotCapturable, Run
from .environment import describe, native_jit, unavailable
from .sampling import Plan
from .telemetry import Telemetry, Watch
from .workload import ANCHOR, BACKWARD, CONTROL, Op, Tensors, Traffic, Workload

#: Placements at which an anchor is timed at least: its error is shared by the whole session.
ANCHOR_PLACEMENTS = 8

#: Sets of buffers rotate through at least this many L2 sizes, so that no replay finds its data.
L2_ROTATION = 3
#: Most sets of a workload; one so small that these do not exceed L2 is L2-resident, and said so.
MAX_SETS = 64
#: Least seconds of a replay: event resolution and graph launch (some µs) stay below 0.5 %.
REPLAY_SECONDS = 1.5e-3
#: Replays that size a provider's graph and choose the control's configuration; the first warms up.
TRIALS = 5
#: Seconds that a trial would last at the rate of the fastest memory known, and the least that a
#: launch takes: long enough that the GPU is timed and not the host's launching.
TRIAL_SECONDS = 0.5e-3
LAUNCH_SECONDS = 2e-6
#: Padding between placements, in steps of the 2 MiB pages CUDA maps, up to 512 MiB.
PADDING_STEP = 2 << 20
PADDING_STEPS = 256
#: Wall time over which a provider's calls are timed, and the least number of them.
CALL_SECONDS, LEAST_CALLS = 4e-3, 10


class DeviceLost(RuntimeError):
    """A CUDA error that outlives its call: nothing more can be measured in this process.

    ``result`` is the workload's result so far; record it, then go on in a new process.
    """

    def __init__(self, message: str, result: WorkloadResult) -> None:
        super().__init__(message)
        self.result = result


@dataclass
class ProviderResult:
    """What one provider did: its verdict, and per placement ``[process, placement, seconds]``."""

    verdict: str = ""
    reason: str = ""
    samples: list[list[float]] = field(default_factory=list)
    sets: int = 0
    launches_per_replay: int = 0
    error: dict[str, float] = field(default_factory=dict)
    config: str = ""
    timing: str = "graph"
    call_seconds: float | None = None

    def record(self) -> dict[str, Any]:
        """The provider's object in a sidecar line."""
        line: dict[str, Any] = {
            "verdict": self.verdict,
            "reason": self.reason,
            "samples": self.samples,
        }
        if self.samples:
            line |= {"sets": self.sets, "launches_per_replay": self.launches_per_replay}
        if self.error:
            line["error"] = self.error
        if self.config:
            line["config"] = self.config
        if self.timing != "graph":
            line["timing"] = self.timing
        if self.call_seconds is not None:
            line["call_seconds"] = self.call_seconds
        return line


@dataclass
class WorkloadResult:
    """A measured workload. ``record()`` is its line in the sidecar."""

    session: str
    workload: Workload
    traffic: Traffic
    started_at: str
    host_seconds: float = 0.0
    providers: dict[str, ProviderResult] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    digest: str | None = None
    telemetry: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The workload line of the sidecar, as ``sidecar.Writer.append`` takes it."""
        line = {
            "session": self.session,
            "key": self.workload.key,
            "op": self.workload.op,
            "direction": self.workload.direction,
            "dtype": self.workload.dtype,
            "shape": list(self.workload.shape),
            "options": dict(self.workload.options),
            "bytes_read": self.traffic.read,
            "bytes_written": self.traffic.written,
            "started_at": self.started_at,
            "host_seconds": round(self.host_seconds, 4),
            "providers": {name: result.record() for name, result in self.providers.items()},
            "kernels": self.kernels,
            "telemetry": self.telemetry,
        }
        return line if self.digest is None else line | {"digest": self.digest}


@dataclass
class _Candidate:
    """A provider on its way through one workload."""

    name: str
    variants: Callable[[], Mapping[str, Run]]
    check: Callable[[Run, Sequence[Tensors], Graph], dict[str, float]]
    result: ProviderResult
    #: What it makes of a set of inputs, untimed, before its run on that is captured.
    prepare: Callable[[Tensors], Tensors | backward.Prepared] = dict
    run: Run | None = None
    rounds: int = 0
    rotation_bytes: int = 0

    @property
    def alive(self) -> bool:
        return not self.result.verdict


class Session:
    """Measures workloads in this process.

    ``plan`` says how often. ``seed`` fixes data, padding and orders. ``process`` numbers the
    processes that share one session ``identity`` (a worker restarted after a CUDA error, or
    another round). ``device`` and ``control`` stand in for the GPU and the frozen kernels.
    """

    def __init__(
        self,
        plan: Plan | None = None,
        seed: int | None = None,
        *,
        process: int = 0,
        identity: str | None = None,
        device: Device | None = None,
        control: StreamControl | None = None,
    ) -> None:
        self.plan = plan or Plan()
        self.process = process
        self.identity = identity or f"{_now()}-{secrets.token_hex(4)}"
        self._rng = np.random.default_rng(seed)
        if device is None:
            reason = unavailable()
            if reason is not None:
                raise RuntimeError(f"nothing can be measured here: {reason}")
            device = CudaDevice()
        self._device = device
        self._control = StreamControl() if control is None else control

    def environment(self) -> dict[str, Any]:
        """The ``environment`` of the sidecar's session line."""
        return describe()

    def harness(self) -> dict[str, Any]:
        """The ``harness`` of the sidecar's session line."""
        return {
            "control": self._control.version,
            "placements": self.plan.pilot,
            "most_placements": self.plan.pilot + self.plan.most,
            "torch_native_jit": native_jit(),
        }

    def measure(
        self,
        op: Op,
        workload: Workload,
        providers: Sequence[str] | None = None,
        *,
        own: Collection[str] | None = None,
        earlier: Mapping[str, Sequence[estimate.Sample]] | None = None,
        finish: bool = True,
    ) -> WorkloadResult:
        """Check and time the providers of ``op`` on ``workload``, the control among them.

        ``providers`` names some of ``op.providers`` and ``"control"``; all by default. Those of
        ``own``, by default the first of ``op.providers``, are timed at every placement, as are
        control and anchor; the others at ``plan.baseline`` of them. ``earlier`` holds the samples
        that another process of this session took as its pilot; without any, this call takes the
        pilot, and the second stage too unless ``finish`` is False.

        What goes wrong with a provider becomes its verdict; only :class:`DeviceLost` is raised.
        """
        known = (*op.providers, CONTROL)
        names = list(known if providers is None else providers)
        unknown = sorted(set(names) - set(known))
        if unknown or not names:
            raise ValueError(f"providers {unknown or names} of {op.name}: expected {list(known)}")
        own = [next(iter(op.providers))] if own is None else own

        begin = time.perf_counter()
        result = WorkloadResult(self.identity, workload, op.traffic(workload), _now())
        op = dataclasses.replace(op, reference=_Remembered(op.reference))
        candidates = [
            self._candidate(name, op, workload, result, name in (*own, ANCHOR)) for name in names
        ]
        always = [c for c in candidates if c.name in {*own, CONTROL, ANCHOR}]
        others = [c for c in candidates if c not in always]
        done = 0
        with Watch(self._device.telemetry()) as watch, self._device.active():
            if not earlier:
                done = self.plan.pilot
                for placement in range(done):
                    few = others if placement < self.plan.baseline else []
                    self._measure_placement(op, [*always, *few], placement, result, watch)
            if earlier or finish:
                anchored = ANCHOR in names
                for placement in range(done, done + self._more(own, result, earlier, anchored)):
                    few = others if placement < self.plan.baseline else []
                    self._measure_placement(op, [*always, *few], placement, result, watch)
        self._judge(result, candidates, watch.telemetry(), earlier, finish)
        self._name_kernels(op, result)
        result.host_seconds = time.perf_counter() - begin
        return result

    def shared(
        self, op: Op, workload: Workload, digest: str, session: str, commit: str
    ) -> dict[str, Any]:
        """The sidecar line of a workload that ``session`` measured at ``commit``, by its digest."""
        result = WorkloadResult(self.identity, workload, op.traffic(workload), _now())
        result.digest = digest
        return result.record() | {"shared": {"session": session, "commit": commit}}

    def _more(
        self,
        own: Collection[str],
        result: WorkloadResult,
        earlier: Mapping[str, Sequence[estimate.Sample]] | None,
        anchored: bool,
    ) -> int:
        """Placements of the second stage: what the middle one of the suite's own needs."""
        pilot = earlier or {name: got.samples for name, got in result.providers.items()}
        needs = [
            sampling.more(self.plan, _logs(pilot[name], pilot.get(CONTROL, ())))
            for name in own
            if pilot.get(name)
        ]
        least = ANCHOR_PLACEMENTS - self.plan.pilot if anchored else self.plan.least
        return max(least, statistics.median_high(needs)) if needs else least

    def _judge(
        self,
        result: WorkloadResult,
        candidates: Sequence[_Candidate],
        telemetry: Telemetry,
        earlier: Mapping[str, Sequence[estimate.Sample]] | None,
        finish: bool,
    ) -> None:
        pool = {
            name: [*(earlier or {}).get(name, ()), *got.samples]
            for name, got in result.providers.items()
        }
        control = pool.get(CONTROL, ())
        for candidate in candidates:
            if not candidate.alive:
                continue
            candidate.result.verdict, reason = verdicts.judge(
                [sample[2] for sample in candidate.result.samples],
                logs=_logs(pool[candidate.name], control),  # 0 for the control itself
                finished=bool(earlier) or finish,
                traffic_bytes=result.traffic.total,
                rotation_bytes=candidate.rotation_bytes,
                l2_bytes=self._device.l2_bytes,
                gpu=self._device.name,
                telemetry=telemetry,
            )
            candidate.result.reason = f"{reason} {candidate.result.reason}".strip()
        result.telemetry = telemetry.record()
        suspect = result.providers.get(CONTROL)
        if suspect is not None and suspect.verdict == verdicts.VALID:
            suspect.reason = verdicts.suspicion(
                {n: p for n, p in pool.items() if result.providers[n].verdict == verdicts.VALID},
                control,
            )

    def _candidate(
        self, name: str, op: Op, workload: Workload, result: WorkloadResult, own: bool
    ) -> _Candidate:
        outcome = result.providers[name] = ProviderResult()
        if name == CONTROL:
            return _Candidate(
                name,
                lambda: self._control.variants(result.traffic),
                functools.partial(self._check_control, result.traffic),
                outcome,
            )

        provider = op.providers[name]
        if workload.direction == BACKWARD:
            prepare = functools.partial(self._run_forward, provider, op, workload)
            run, check_one = functools.partial(_backward, provider), correctness.check_gradients
        else:
            prepare, check_one = dict, correctness.check
            run = functools.partial(_forward, provider, workload=workload)

        def check(_: Run, sets: Sequence[Tensors], graph: Graph) -> dict[str, float]:
            error = check_one(op, workload, sets[0], graph.outputs[0], own)
            for output in graph.outputs[1:]:
                for tensor in backward.flat(output):
                    correctness.require_written(tensor)
            return error

        return _Candidate(name, lambda: {"": run}, check, outcome, prepare)

    def _check_control(
        self, traffic: Traffic, run: Run, sets: Sequence[Tensors], graph: Graph
    ) -> dict[str, float]:
        # the first and the last, for the others are launched alike
        generator = self._device.generator
        for i in (0, -1):
            error = self._control.check(traffic, run, sets[i], graph.outputs[i], generator)
        return error

    def _run_forward(
        self, provider: Any, op: Op, workload: Workload, inputs: Tensors
    ) -> backward.Prepared:
        return backward.prepare(provider, op, workload, inputs, self._device.generator)

    def _measure_placement(
        self,
        op: Op,
        candidates: Sequence[_Candidate],
        placement: int,
        result: WorkloadResult,
        watch: Watch,
    ) -> None:
        alive = [candidate for candidate in candidates if candidate.alive]
        if not alive:
            return
        device, workload, traffic = self._device, result.workload, result.traffic
        padding = PADDING_STEP * int(self._rng.integers(1, PADDING_STEPS + 1))
        device.place(padding, seed=int(self._rng.integers(2**31)))
        count = set_count(traffic.total, device.l2_bytes)

        def feed(control: bool) -> list[Tensors]:
            if control:
                return [
                    self._control.make_inputs(workload, traffic, device.handle, device.generator)
                    for _ in range(count)
                ]
            return [op.make_inputs(workload, device.handle, device.generator) for _ in range(count)]

        fed: dict[bool, list[Tensors]] = {}
        prepared: dict[str, list[Any]] = {}  # lives as long as the graphs
        graphs: dict[str, Graph] = {}
        for i in self._rng.permutation(len(alive)):
            candidate = alive[i]
            is_control = candidate.name == CONTROL
            try:
                if is_control not in fed:
                    fed[is_control] = feed(is_control)
                sets = [candidate.prepare(inputs) for inputs in fed[is_control]]
                prepared[candidate.name] = sets
                graphs[candidate.name] = self._prepare(candidate, sets, traffic.total)
            except Exception as error:
                self._fail([candidate], error, result)
        op.reference.forget()
        timed = [candidate for candidate in alive if candidate.alive]
        watch.read()
        try:
            replays = self._replay_blocks(graphs)
            # the median is robust against a disturbed replay
            seconds = {name: statistics.median(values) for name, values in replays.items()}
            if self.plan.calls and not self.process and not placement:
                for candidate in timed:
                    candidate.result.call_seconds = self._call(
                        candidate, prepared[candidate.name], seconds[candidate.name]
                    )
        except RuntimeError as error:
            self._fail(timed, error, result)
            return
        watch.read()
        for candidate in timed:
            sample = seconds[candidate.name]
            if not _is_time(sample):
                self._fail([candidate], _NoTime(sample), result)
                continue
            candidate.result.samples.append([self.process, placement, sample])
            candidate.result.launches_per_replay = graphs[candidate.name].launches

    def _call(self, candidate: _Candidate, sets: list[Tensors], seconds: float) -> float:
        """Seconds of a call from Python, host and GPU: the second of two batches, one after
        another without waiting in between."""
        calls = max(LEAST_CALLS, math.ceil(CALL_SECONDS / max(seconds, LAUNCH_SECONDS * 5)))
        return [self._device.call_seconds(candidate.run, sets, calls) for _ in range(2)][-1]

    def _prepare(self, candidate: _Candidate, sets: list[Tensors], traffic_bytes: int) -> Graph:
        """The graph to be timed; at the first placement the provider is checked and sized."""
        if candidate.run is None:
            self._qualify(candidate, sets, traffic_bytes)
        graph = self._graph(candidate, candidate.run, sets, candidate.rounds)
        candidate.result.sets = len(sets)
        tensors = [tensor for inputs in sets for tensor in inputs.values()]
        candidate.rotation_bytes = distinct_bytes([*tensors, *_tensors(graph)])
        return graph

    def _graph(self, candidate: _Candidate, run: Run, sets: list[Tensors], rounds: int) -> Graph:
        """A CUDA graph, or calls timed by events where the provider cannot be captured."""
        if candidate.result.timing == "graph":
            try:
                return self._device.capture(run, sets, rounds)
            except NotCapturable as error:
                candidate.result.timing = "events"
                candidate.result.reason = f"timed by events, host included: {error}"
        return self._device.batch(run, sets, rounds)

    def _qualify(self, candidate: _Candidate, sets: list[Tensors], traffic_bytes: int) -> None:
        """Check every variant through a graph, as it will be timed, and keep the fastest."""
        best = math.inf
        peak = max(gpu.peak_bytes_per_second for gpu in GPUS.values())
        fastest = len(sets) * max(traffic_bytes / peak, LAUNCH_SECONDS)
        rounds = max(1, math.ceil(TRIAL_SECONDS / fastest))
        for config, run in candidate.variants().items():
            graph = self._graph(candidate, run, sets, rounds)
            # Sets are shared: poison in an input would fail the other providers too.
            _require_own_memory(_tensors(graph), sets)
            # What the capture missed (a launch on another stream, say) leaves the poison.
            for output in _tensors(graph):
                correctness.poison(output)
            graph.replay()
            self._device.synchronize()
            candidate.result.error = candidate.check(run, sets, graph)
            seconds = statistics.median(self._device.time([graph] * TRIALS)[1:]) / rounds
            if not _is_time(seconds):
                raise _NoTime(seconds)
            if seconds < best:
                best, candidate.run, candidate.result.config = seconds, run, config
        candidate.rounds = max(1, math.ceil(REPLAY_SECONDS / best))

    def _replay_blocks(self, graphs: Mapping[str, Graph]) -> dict[str, list[float]]:
        """Seconds per launch of each graph, one for each of the randomised blocks."""
        blocks = random_blocks(list(graphs), 1 + self.plan.blocks, self._rng)
        order = [name for block in blocks for name in block]
        replays = self._device.time([graphs[name] for name in order])
        measured: dict[str, list[float]] = {name: [] for name in graphs}
        for name, seconds in list(zip(order, replays, strict=True))[len(graphs) :]:
            # the first block, left out, uploads the graphs and warms up
            measured[name].append(seconds / graphs[name].launches)
        return measured

    def _fail(
        self, candidates: Sequence[_Candidate], error: Exception, result: WorkloadResult
    ) -> None:
        reason = _first_line(error)
        for candidate in candidates:
            unavailable = isinstance(error, NotImplementedError)
            candidate.result.verdict = verdicts.NOT_AVAILABLE if unavailable else verdicts.FAILED
            candidate.result.reason = reason
        if self._device.healthy():
            return
        for provider in result.providers.values():
            if not provider.verdict:
                provider.verdict = verdicts.FAILED
                provider.reason = f"the device was lost with {candidates[0].name}: {reason}"
        raise DeviceLost(f"{result.workload.key}: {reason}", result) from error

    def _name_kernels(self, op: Op, result: WorkloadResult) -> None:
        own = next(iter(op.providers))
        provider = result.providers.get(own)
        if provider is None or not provider.samples:
            return
        try:
            result.kernels = dict(op.kernels(result.workload))
            result.digest = op.digest(result.workload)
        except Exception as error:  # times stand without digests, but it must be said
            provider.reason = f"{provider.reason} kernel digests: {_first_line(error)}".strip()


class _Remembered:
    """A reference that is computed once for the providers that are checked on the same inputs."""

    def __init__(self, reference: Callable[[Tensors, Workload], Any]) -> None:
        self._reference = reference
        self._known: tuple[list[int], Any] | None = None

    def __call__(self, inputs: Tensors, workload: Workload) -> Any:
        if workload.direction == BACKWARD:  # of leaves that are made anew each time
            return self._reference(inputs, workload)
        identity = [id(tensor) for tensor in inputs.values()]
        if self._known is None or self._known[0] != identity:
            self._known = (identity, self._reference(inputs, workload))
        return self._known[1]

    def forget(self) -> None:
        """Give the memory back."""
        self._known = None


def _logs(
    samples: Sequence[estimate.Sample], against: Sequence[estimate.Sample] = ()
) -> list[float]:
    """Logarithms of the times, or of their ratios to ``against`` at the same placement."""
    other = {(process, placement): seconds for process, placement, seconds in against}
    if not other:
        return [math.log(seconds) for _, _, seconds in samples]
    return [
        math.log(seconds / other[process, placement])
        for process, placement, seconds in samples
        if (process, placement) in other
    ]


def _forward(provider: Callable[..., Any], inputs: Tensors, workload: Workload) -> Any:
    return provider(inputs, workload)


def _backward(provider: Callable[..., Any], prepared: backward.Prepared) -> Any:
    return backward.gradients(prepared)


def _tensors(graph: Graph) -> list[Any]:
    return [tensor for output in graph.outputs for tensor in backward.flat(output)]


class _NoTime(RuntimeError):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"the device timed a launch at {seconds:g} s")


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0


def _require_own_memory(outputs: Sequence[Any], sets: Sequence[Tensors]) -> None:
    taken = {tensor.untyped_storage().data_ptr() for inputs in sets for tensor in inputs.values()}
    if any(output.untyped_storage().data_ptr() in taken for output in outputs):
        raise correctness.WrongResult("the result lies in the memory of an input")


def set_count(traffic_bytes: int, l2_bytes: int) -> int:
    """Sets of inputs and outputs to rotate: L2_ROTATION L2 sizes in all, 2 to MAX_SETS."""
    return min(MAX_SETS, max(2, math.ceil(L2_ROTATION * l2_bytes / max(1, traffic_bytes))))


def random_blocks(names: Sequence[str], blocks: int, rng: np.random.Generator) -> list[list[str]]:
    """``blocks`` blocks that each hold every name once, in random order."""
    return [[names[i] for i in rng.permutation(len(names))] for _ in range(blocks)]


def distinct_bytes(tensors: Sequence[Any]) -> int:
    """Bytes of the distinct memory behind ``tensors``: buffers that share it count once."""
    return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    if isinstance(error, (correctness.WrongResult, NotImplementedError, _NoTime)) and line:
        return line
    return f"{type(error).__name__}: {line}".rstrip(": ")
