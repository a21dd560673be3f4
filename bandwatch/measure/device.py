"""The device a session measures on, behind a small interface; and the real one, a CUDA GPU."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from . import environment, lock, telemetry
from .workload import Tensors

#: Seconds to wait for whoever measures on the device: a worker that was just killed, say.
PATIENCE = 30.0

Run = Callable[[Tensors], Any]


class Graph(Protocol):
    """A captured sequence of launches: ``launches`` of them, set after set, round after round.

    ``outputs`` holds one output per input set, each in a buffer of its own.
    """

    outputs: Sequence[Any]
    launches: int

    def replay(self) -> None: ...


class Calls:
    """Plain calls in place of a graph: what the host needs between launches is timed too."""

    def __init__(self, run: Run, sets: Sequence[Tensors], rounds: int) -> None:
        self._run, self._sets, self._rounds = run, sets, rounds
        self.outputs: list[Any] = [run(inputs) for inputs in sets]
        self.launches = rounds * len(sets)

    def replay(self) -> None:
        for _ in range(self._rounds):
            for i, inputs in enumerate(self._sets):
                self.outputs[i] = self._run(inputs)


class NotCapturable(RuntimeError):
    """What runs outside a CUDA graph but cannot be captured into one."""


class Device(Protocol):
    """What a session asks of the machine; sizes in bytes, times in seconds."""

    name: str
    l2_bytes: int
    handle: Any  # what torch takes as device=
    generator: Any  # a torch.Generator on it

    def active(self) -> AbstractContextManager[None]:
        """Everything below happens inside this context."""

    def place(self, padding: int, seed: int) -> None:
        """Give cached memory back, block ``padding`` bytes, and seed the generator."""

    def capture(self, run: Run, sets: Sequence[Tensors], rounds: int) -> Graph:
        """Capture ``rounds`` runs over all ``sets``.

        Raises what ``run`` raises outside a capture, :class:`NotCapturable` where only that fails.
        """

    def batch(self, run: Run, sets: Sequence[Tensors], rounds: int) -> Graph:
        """The same as plain calls, for what cannot be captured."""

    def call_seconds(self, run: Run, sets: Sequence[Tensors], calls: int) -> float:
        """Wall seconds of one of ``calls`` calls on ``sets`` in turn, host and device."""

    def time(self, order: Sequence[Graph]) -> list[float]:
        """Replay the graphs one after another; seconds on the device for each replay."""

    def synchronize(self) -> None:
        """Wait for the device; raises if a kernel failed."""

    def healthy(self) -> bool:
        """Whether the device still works: some CUDA errors end it for the whole process."""

    def telemetry(self) -> telemetry.Source | None:
        """Where readings come from, None without NVML."""


class CudaGraph:
    """A CUDA graph and the outputs it writes, which must live as long as it is replayed."""

    def __init__(self, graph: Any, outputs: Sequence[Any], launches: int) -> None:
        self._graph = graph
        self.outputs = outputs
        self.launches = launches

    def replay(self) -> None:
        self._graph.replay()


class CudaDevice:
    """A CUDA device, all work on one side stream (a capture cannot use the default stream).

    The process holds the device's lock from then on: nobody else measures on it. Raises
    :class:`~.lock.GpuBusy` where somebody does, for :data:`PATIENCE` seconds.
    """

    def __init__(self, index: int = 0) -> None:
        import torch

        self._torch = torch
        self.handle = torch.device("cuda", index)
        properties = torch.cuda.get_device_properties(self.handle)
        self.l2_bytes = properties.L2_cache_size
        self.generator = torch.Generator(self.handle)
        self._stream = torch.cuda.Stream(self.handle)
        uuid = environment.gpu_uuid(index)
        _hold(uuid)
        self._nvml = telemetry.connect(uuid)
        self.name = self._nvml.name if self._nvml else properties.name
        self._padding: Any = None

    @contextmanager
    def active(self) -> Iterator[None]:
        torch = self._torch
        with torch.cuda.device(self.handle), torch.cuda.stream(self._stream), torch.no_grad():
            yield

    def place(self, padding: int, seed: int) -> None:
        self._padding = None
        self.synchronize()
        self._torch.cuda.empty_cache()
        self._padding = self._torch.empty(padding, dtype=self._torch.uint8, device=self.handle)
        self.generator.manual_seed(seed)

    def capture(self, run: Run, sets: Sequence[Tensors], rounds: int) -> CudaGraph:
        run(sets[0])  # modules are loaded and attributes set at the first call, not in a capture
        self.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        outputs: list[Any] = [None] * len(sets)
        # Not torch.cuda.graph, which empties the cache around each of hundreds of captures.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            try:
                for _ in range(rounds):
                    for i, inputs in enumerate(sets):
                        # Released first, so that a set finds its own buffer again in the next
                        # round; the others are held, or all would share one that stays in L2.
                        outputs[i] = None
                        outputs[i] = run(inputs)
            finally:
                graph.capture_end()
        except Exception as error:
            self.synchronize()  # raises where the device itself is lost
            raise NotCapturable(_first_cause(error)) from error
        return CudaGraph(graph, outputs, rounds * len(sets))

    def batch(self, run: Run, sets: Sequence[Tensors], rounds: int) -> Calls:
        return Calls(run, sets, rounds)

    def call_seconds(self, run: Run, sets: Sequence[Tensors], calls: int) -> float:
        self.synchronize()
        begin = time.perf_counter()
        for i in range(calls):
            run(sets[i % len(sets)])
        self.synchronize()
        return (time.perf_counter() - begin) / calls

    def time(self, order: Sequence[Graph]) -> list[float]:
        event = self._torch.cuda.Event
        marks = []
        for graph in order:
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            marks.append((begin, end))
        self.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in marks]

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self.handle)

    def healthy(self) -> bool:
        try:
            self.synchronize()
        except RuntimeError:
            return False
        return True

    def telemetry(self) -> telemetry.Nvml | None:
        return self._nvml


@functools.cache
def _hold(uuid: str) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(lock.exclusive(uuid, PATIENCE))
    return stack


def _first_cause(error: BaseException) -> str:
    """What made a capture fail: its end fails as well, and raises over what came before."""
    while error.__context__ is not None:
        error = error.__context__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
