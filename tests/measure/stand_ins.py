"""A CPU that plays the GPU: providers really run and are checked, times come from a model."""

from contextlib import contextmanager

import numpy as np
import torch

from bandwatch.measure.backward import flat
from bandwatch.measure.controls import StreamControl
from bandwatch.measure.correctness import WrongResult
from bandwatch.measure.device import Calls, NotCapturable
from bandwatch.measure.telemetry import Reading
from bandwatch.measure.workload import DTYPE_BYTES, Op, Tolerance, Traffic

H200 = "NVIDIA H200"


class SimulatedGraph:
    def __init__(self, run, sets, rounds):
        self._run, self.sets = run, sets
        self.launches = rounds * len(sets)
        self.outputs = [run(inputs) for inputs in sets]

    def replay(self):
        for inputs, output in zip(self.sets, self.outputs, strict=True):
            for tensor, again in zip(flat(output), flat(self._run(inputs)), strict=True):
                tensor.copy_(again)


def measured(run):
    """What a session was given of which ``run`` is made: a provider, or the control's function."""
    return run.args[0] if hasattr(run, "args") else run


class SimulatedDevice:
    """``speed(provider)`` gives seconds per launch; each placement multiplies all by one factor."""

    handle = "cpu"
    #: What the host takes for a call.
    host_seconds = 1e-5

    def __init__(self, speed, l2_bytes=4096, name=H200, placement_noise=0.02, source=None):
        self.speed, self.l2_bytes, self.name, self.source = speed, l2_bytes, name, source
        self.generator = torch.Generator()
        self.noise = np.random.default_rng(0)
        self.placement_noise = placement_noise
        self.factors, self.paddings, self.orders = [], [], []
        self.lost = False

    @contextmanager
    def active(self):
        with torch.no_grad():
            yield

    def place(self, padding, seed):
        self.paddings.append(padding)
        self.factors.append(float(np.exp(self.noise.uniform(-1, 1) * self.placement_noise)))
        self.generator.manual_seed(seed)

    def capture(self, run, sets, rounds):
        if getattr(measured(run), "captured", True):
            return SimulatedGraph(run, sets, rounds)
        raise NotCapturable("RuntimeError: a capture cannot wait")

    def batch(self, run, sets, rounds):
        return Calls(run, sets, rounds)

    def call_seconds(self, run, sets, calls):
        run(sets[0])
        return self.speed(measured(run)) + self.host_seconds

    def time(self, order):
        self.orders.append([measured(graph._run) for graph in order])
        return [self.speed(measured(g._run)) * g.launches * self.factors[-1] for g in order]

    def synchronize(self):
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def healthy(self):
        return not self.lost

    def telemetry(self):
        return self.source


class CloneControl(StreamControl):
    """Three configurations; ``variants`` returns one function object each, for ``speed``."""

    def __init__(self):
        self.runs = {label: self._make() for label in ("a", "b", "c")}

    def variants(self, traffic):
        return self.runs

    def check(self, traffic, run, inputs, output, generator):
        if not torch.equal(inputs["source"], output):
            raise WrongResult("not a copy")
        return {"max_abs": 0.0, "max_rel": 0.0}

    @staticmethod
    def _make():
        return lambda inputs: inputs["source"].clone()


class Readings:
    """A telemetry source that repeats one reading."""

    max_sm_clock = 1980.0

    def __init__(self, sm_clock=1980.0, reasons=0):
        self.reading = Reading(sm_clock, 3201.0, 40.0, 500.0, reasons)

    def read(self):
        return self.reading


def right(inputs, workload=None):
    return torch.softmax(inputs["x"], dim=-1)


def eager(inputs, workload=None):
    return torch.softmax(inputs["x"].clone(), dim=-1)


def softmax_op(**providers):
    """A softmax op whose providers are ``membound=right, eager=eager`` unless given."""

    def make_inputs(workload, device, generator):
        dtype = getattr(torch, workload.dtype)
        return {"x": torch.randn(workload.shape, dtype=dtype, generator=generator, device=device)}

    def traffic(workload):
        nbytes = int(np.prod(workload.shape)) * DTYPE_BYTES[workload.dtype]
        return Traffic(nbytes, nbytes)

    return Op(
        name="softmax",
        make_inputs=make_inputs,
        reference=lambda inputs, workload: torch.softmax(inputs["x"].double(), dim=-1),
        traffic=traffic,
        directions=("forward", "backward"),
        differentiable=("x",),
        tolerance=Tolerance(terms=1024),
        providers=providers or {"membound": right, "eager": eager},
        kernels=lambda workload: {"softmax_kernel": "0f" * 32},
    )
