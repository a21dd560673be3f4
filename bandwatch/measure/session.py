"""A measuring session: providers of a workload side by side, on many placements of their buffers.

The unit of sampling is the placement, a fresh allocation of everything: where buffers happen to
lie decides more than the noise of one replay. Within a placement the providers, the control
among them, are replayed in blocks of random order, so that drift hits all alike and their ratio
is paired.
"""

from __future__ import annotations

import datetime
import functools
import math
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..gpus import GPUS
from . import backward, correctness, verdicts
from .controls import CopyControl
from .device import CudaDevice, Device, Graph, Run
from .environment import describe, native_jit, unavailable
from .telemetry import Watch
from .workload import BACKWARD, Op, Tensors, Traffic, Workload

CONTROL_PROVIDER = "control"

#: Sets of buffers rotate through at least this many L2 sizes, so that no replay finds its data.
L2_ROTATION = 3
#: Most sets of a workload; one so small that these do not exceed L2 is L2-resident, and said so.
MAX_SETS = 64
#: Least seconds of a replay: event resolution and graph launch (some µs) stay below 0.5 %.
REPLAY_SECONDS = 1.5e-3
#: Blocks per placement; the median over them is robust against a disturbed replay.
BLOCKS = 9
#: Replays that size a provider's graph and choose the control's configuration; the first warms up.
TRIALS = 5
#: Seconds that a trial would last at the rate of the fastest memory known, and the least that a
#: launch takes: long enough that the GPU is timed and not the host's launching.
TRIAL_SECONDS = 0.5e-3
LAUNCH_SECONDS = 2e-6
#: Padding between placements, in steps of the 2 MiB pages CUDA maps, up to 512 MiB.
PADDING_STEP = 2 << 20
PADDING_STEPS = 256
#: Of a quick session, which only shows that everything runs.
QUICK_PLACEMENTS, QUICK_BLOCKS = 2, 3


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
    check: Callable[[Sequence[Tensors], Graph], dict[str, float]]
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

    ``placements`` samples are taken per provider and workload. ``quick`` takes two, to show that
    everything runs. ``seed`` fixes data, padding and orders. ``process`` numbers the processes
    that share one session ``identity`` (a worker restarted after a CUDA error, or another round).
    ``device`` and ``control`` stand in for the GPU and the copy kernel.
    """

    def __init__(
        self,
        placements: int = 6,
        quick: bool = False,
        seed: int | None = None,
        *,
        process: int = 0,
        identity: str | None = None,
        device: Device | None = None,
        control: CopyControl | None = None,
    ) -> None:
        if placements < 1:
            raise ValueError(f"placements is {placements}, at least 1 was expected")
        self.placements = min(placements, QUICK_PLACEMENTS) if quick else placements
        self.blocks = QUICK_BLOCKS if quick else BLOCKS
        self.process = process
        self.identity = identity or f"{_now()}-{secrets.token_hex(4)}"
        self._rng = np.random.default_rng(seed)
        if device is None:
            reason = unavailable()
            if reason is not None:
                raise RuntimeError(f"nothing can be measured here: {reason}")
            device = CudaDevice()
        self._device = device
        self._control = CopyControl() if control is None else control

    def environment(self) -> dict[str, Any]:
        """The ``environment`` of the sidecar's session line."""
        return describe()

    def harness(self) -> dict[str, Any]:
        """The ``harness`` of the sidecar's session line."""
        return {
            "control": self._control.version,
            "placements": self.placements,
            "torch_native_jit": native_jit(),
        }

    def measure(
        self, op: Op, workload: Workload, providers: Sequence[str] | None = None
    ) -> WorkloadResult:
        """Check and time the providers of ``op`` on ``workload``, the control among them.

        ``providers`` names some of ``op.providers`` and ``"control"``; all by default. What goes
        wrong with a provider becomes its verdict; only :class:`DeviceLost` is raised.
        """
        known = (*op.providers, CONTROL_PROVIDER)
        names = list(known if providers is None else providers)
        unknown = sorted(set(names) - set(known))
        if unknown or not names:
            raise ValueError(f"providers {unknown or names} of {op.name}: expected {list(known)}")

        begin = time.perf_counter()
        result = WorkloadResult(self.identity, workload, op.traffic(workload), _now())
        candidates = [self._candidate(name, op, workload, result) for name in names]
        with Watch(self._device.telemetry()) as watch, self._device.active():
            for placement in range(self.placements):
                self._measure_placement(op, candidates, placement, result)
        telemetry = watch.telemetry()
        for candidate in candidates:
            if candidate.alive:
                candidate.result.verdict, candidate.result.reason = verdicts.judge(
                    [sample[2] for sample in candidate.result.samples],
                    traffic_bytes=result.traffic.total,
                    rotation_bytes=candidate.rotation_bytes,
                    l2_bytes=self._device.l2_bytes,
                    gpu=self._device.name,
                    telemetry=telemetry,
                )
        result.telemetry = telemetry.record()
        self._name_kernels(op, result)
        result.host_seconds = time.perf_counter() - begin
        return result

    def _candidate(
        self, name: str, op: Op, workload: Workload, result: WorkloadResult
    ) -> _Candidate:
        outcome = result.providers[name] = ProviderResult()
        if name == CONTROL_PROVIDER:

            def check(sets: Sequence[Tensors], graph: Graph) -> dict[str, float]:
                errors = [
                    self._control.check(inputs, output)
                    for inputs, output in zip(sets, graph.outputs, strict=True)
                ]
                return errors[0]

            return _Candidate(name, self._control.variants, check, outcome)

        provider, own = op.providers[name], name == next(iter(op.providers))
        if workload.direction == BACKWARD:
            prepare = functools.partial(self._run_forward, provider, op, workload)
            run, check_one = functools.partial(_backward, provider), correctness.check_gradients
        else:
            prepare, check_one = dict, correctness.check
            run = functools.partial(_forward, provider, workload=workload)

        def check(sets: Sequence[Tensors], graph: Graph) -> dict[str, float]:
            error = check_one(op, workload, sets[0], graph.outputs[0], own)
            for output in graph.outputs[1:]:
                for tensor in backward.flat(output):
                    correctness.require_written(tensor)
            return error

        return _Candidate(name, lambda: {"": run}, check, outcome, prepare)

    def _run_forward(
        self, provider: Any, op: Op, workload: Workload, inputs: Tensors
    ) -> backward.Prepared:
        return backward.prepare(provider, op, workload, inputs, self._device.generator)

    def _measure_placement(
        self, op: Op, candidates: list[_Candidate], placement: int, result: WorkloadResult
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
        prepared: list[list[Any]] = []  # lives as long as the graphs
        graphs: dict[str, Graph] = {}
        for i in self._rng.permutation(len(alive)):
            candidate = alive[i]
            is_control = candidate.name == CONTROL_PROVIDER
            try:
                if is_control not in fed:
                    fed[is_control] = feed(is_control)
                sets = [candidate.prepare(inputs) for inputs in fed[is_control]]
                prepared.append(sets)
                graphs[candidate.name] = self._prepare(candidate, sets, traffic.total)
            except Exception as error:
                self._fail([candidate], error, result)
        timed = [candidate for candidate in alive if candidate.alive]
        try:
            seconds = self._replay_blocks(graphs)
        except RuntimeError as error:
            self._fail(timed, error, result)
            return
        for candidate in timed:
            sample = seconds[candidate.name]
            if not _is_time(sample):
                self._fail([candidate], _NoTime(sample), result)
                continue
            candidate.result.samples.append([self.process, placement, sample])
            candidate.result.launches_per_replay = graphs[candidate.name].launches

    def _prepare(self, candidate: _Candidate, sets: list[Tensors], traffic_bytes: int) -> Graph:
        """The graph to be timed; at the first placement the provider is checked and sized."""
        if candidate.run is None:
            self._qualify(candidate, sets, traffic_bytes)
        graph = self._device.capture(candidate.run, sets, candidate.rounds)
        candidate.result.sets = len(sets)
        tensors = [tensor for inputs in sets for tensor in inputs.values()]
        candidate.rotation_bytes = distinct_bytes([*tensors, *_tensors(graph)])
        return graph

    def _qualify(self, candidate: _Candidate, sets: list[Tensors], traffic_bytes: int) -> None:
        """Check every variant through a graph, as it will be timed, and keep the fastest."""
        best = math.inf
        peak = max(gpu.peak_bytes_per_second for gpu in GPUS.values())
        fastest = len(sets) * max(traffic_bytes / peak, LAUNCH_SECONDS)
        rounds = max(1, math.ceil(TRIAL_SECONDS / fastest))
        for config, run in candidate.variants().items():
            graph = self._device.capture(run, sets, rounds)
            # Sets are shared: poison in an input would fail the other providers too.
            _require_own_memory(_tensors(graph), sets)
            # What the capture missed (a launch on another stream, say) leaves the poison.
            for output in _tensors(graph):
                correctness.poison(output)
            graph.replay()
            self._device.synchronize()
            candidate.result.error = candidate.check(sets, graph)
            seconds = statistics.median(self._device.time([graph] * TRIALS)[1:]) / rounds
            if not _is_time(seconds):
                raise _NoTime(seconds)
            if seconds < best:
                best, candidate.run, candidate.result.config = seconds, run, config
        candidate.rounds = max(1, math.ceil(REPLAY_SECONDS / best))

    def _replay_blocks(self, graphs: Mapping[str, Graph]) -> dict[str, float]:
        """Seconds per launch of each graph: the median over randomised blocks."""
        blocks = random_blocks(list(graphs), 1 + self.blocks, self._rng)
        order = [name for block in blocks for name in block]
        replays = self._device.time([graphs[name] for name in order])
        measured: dict[str, list[float]] = {name: [] for name in graphs}
        for name, seconds in list(zip(order, replays, strict=True))[len(graphs) :]:
            measured[name].append(seconds)  # the first block uploads the graphs and warms up
        return {
            name: statistics.median(values) / graphs[name].launches
            for name, values in measured.items()
        }

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
