"""What is measured: the workload, the bytes it must move, and how its result is checked.

A suite describes each of its operations once, as an :class:`Op`; tests, benchmarks and static
gates iterate over those descriptions. Nothing here imports torch: tensors are passed through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Storage size in bytes of one element, by torch dtype name.
DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Traffic:
    """The fewest bytes an operation must move through device memory.

    Each input is read once and each output written once; caches are not counted on.
    """

    read: int
    written: int

    @property
    def total(self) -> int:
        return self.read + self.written


@dataclass(frozen=True)
class Workload:
    """One row of the benchmark grid, without the provider: op, direction, dtype, shape, options."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    direction: str = "forward"
    options: tuple[tuple[str, str], ...] = ()

    @property
    def shape_text(self) -> str:
        """The shape as it is written in benchmark parameters, e.g. ``32768x4096``."""
        return "x".join(str(n) for n in self.shape)

    @property
    def key(self) -> str:
        """Stable identity: ``softmax/forward/bfloat16/32768x4096``; options follow as ``k=v``."""
        parts = [self.op, self.direction, self.dtype, self.shape_text]
        return "/".join(parts + [f"{name}={value}" for name, value in self.options])


@dataclass(frozen=True)
class Op:
    """How a suite's operation is fed, counted, checked and run.

    ``make_inputs(workload, device, generator)`` returns fresh random tensors by name;
    ``reference(inputs)`` the right answer in float64; ``traffic(workload)`` the byte model;
    ``tolerance(dtype)`` the (rtol, atol) for the result in that dtype; ``providers`` maps a
    provider's name to ``run(inputs) -> output``, first the suite's own, then the baselines.
    ``kernels(workload)`` names the suite's compiled kernels as ``{kernel name: digest}``.
    """

    name: str
    make_inputs: Callable[[Workload, Any, Any], Tensors]
    reference: Callable[[Tensors], Any]
    traffic: Callable[[Workload], Traffic]
    tolerance: Callable[[str], tuple[float, float]]
    providers: Mapping[str, Callable[[Tensors], Any]]
    kernels: Callable[[Workload], Mapping[str, str]] = field(default=lambda workload: {})
