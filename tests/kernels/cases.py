"""Calls of the suite's operations: built on a GPU to be run, on the meta device to be recorded.

``python -m tests.kernels.cases`` compiles the kernels of the GPU tests ahead, on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import membound
import torch
from membound.ops import tiling

from asv_bench import workloads

OPS = workloads.OPS
DTYPES = workloads.DTYPES

#: Makes a tensor: ``new(dtype, *shape)``.
New = Callable[..., torch.Tensor]

#: Elements on each side of a guarded output; a multiple of every access.
PAD = 256
SENTINEL = 7.0


@dataclass(frozen=True)
class Call:
    """One call of an operation; ``shape``, ``weight`` and ``eps`` are rms_norm's."""

    op: str
    x: torch.Tensor
    weight: torch.Tensor | None = None
    shape: tuple[int, ...] | None = None
    eps: float | None = None

    @property
    def columns(self) -> int:
        return math.prod(self.shape or self.x.shape[-1:])

    def __call__(self) -> torch.Tensor:
        if self.op == "softmax":
            return membound.softmax(self.x)
        shape = self.shape or self.x.shape[-1:]
        return membound.rms_norm(self.x, shape, self.weight, self.eps)

    def guarded(self, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Run with the output ``offset`` elements behind a boundary, in a buffer of our own.

        Returns the output, NaN where the kernel left it out, and the buffer, SENTINEL elsewhere.
        """
        begin, count = PAD + offset, self.x.numel()
        buffer = torch.full(
            (begin + count + PAD,), SENTINEL, dtype=self.x.dtype, device=self.x.device
        )
        out = buffer[begin : begin + count].view(-1, self.columns)
        out.fill_(float("nan"))
        # the operations take their outputs from here
        with mock.patch.object(torch, "empty_like", lambda *args, **kwargs: out):
            result = self()
        assert result.is_meta or result.data_ptr() == out.data_ptr()
        return result, buffer


def new(device: str) -> New:
    """Normal values with a deviation of 4, the same in each run."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)

    def make(dtype: str, *shape: int) -> torch.Tensor:
        values = torch.randn(shape, dtype=getattr(torch, dtype), device=device, generator=generator)
        return values.mul_(4)

    return make


def plain(op: str, dtype: str, rows: int, columns: int, make: New) -> Call:
    weight = make(dtype, columns) if op == "rms_norm" else None
    return Call(op, make(dtype, rows, columns), weight)


def shifted(dtype: str, rows: int, columns: int, by: int, make: New) -> torch.Tensor:
    """A contiguous matrix that starts ``by`` elements behind an allocation's start."""
    return make(dtype, rows * columns + by)[by:].view(rows, columns)


COLUMNS = (1, 8, 1000, 1001, 1152, 16384, 32768, 50257, 262144)
SHAPES = [
    *((rows, columns) for columns in COLUMNS for rows in (1, 3, 4097 if columns <= 16384 else 67)),
    *(workloads.workload("softmax", "float32", shape).shape for shape in workloads.SHAPES),
]

PLAIN: dict[str, Callable[[New], Call]] = {
    f"{op}-{dtype}-{rows}x{columns}": partial(plain, op, dtype, rows, columns)
    for op in OPS
    for dtype in DTYPES
    for rows, columns in SHAPES
}

#: Inputs that are not contiguous matrices, by what they are.
_VIEWS: dict[str, Callable[[New, str], torch.Tensor]] = {
    "first columns": lambda new, dtype: new(dtype, 67, 2048)[:, :1000],
    "columns from 3 on": lambda new, dtype: new(dtype, 67, 2048)[:, 3:1003],
    "columns from 4 on": lambda new, dtype: new(dtype, 67, 2048)[:, 4:1004],
    "columns from 2 on": lambda new, dtype: new(dtype, 67, 2048)[:, 2:1002],
    "odd row stride": lambda new, dtype: new(dtype, 67, 1001)[:, :1000],
    "one element late": lambda new, dtype: shifted(dtype, 67, 1000, 1, new),
    "odd and one element late": lambda new, dtype: shifted(dtype, 67, 1001, 1, new),
    "every third row": lambda new, dtype: new(dtype, 201, 1000)[::3],
    "every other column": lambda new, dtype: new(dtype, 67, 2000)[:, ::2],
    "transposed": lambda new, dtype: new(dtype, 1000, 67).t(),
    "one row expanded": lambda new, dtype: new(dtype, 1, 1000).expand(67, 1000),
    "one column expanded": lambda new, dtype: new(dtype, 67, 1).expand(67, 1000),
    "one dimension": lambda new, dtype: new(dtype, 1000),
    "three dimensions": lambda new, dtype: new(dtype, 3, 5, 1000),
    "leading dimensions swapped": lambda new, dtype: new(dtype, 5, 3, 1000).transpose(0, 1),
    "three dimensions of a slice": lambda new, dtype: new(dtype, 3, 5, 2048)[:, 1:4, :1000],
    "no rows": lambda new, dtype: new(dtype, 0, 1000),
    "one column of a row": lambda new, dtype: new(dtype, 1, 67).t(),
    "one column of many": lambda new, dtype: new(dtype, 67, 9)[:, 4:5],
    "one element": lambda new, dtype: new(dtype, 1),
}

VIEWS: dict[str, Callable[[New], Call]] = {
    f"{op}-{dtype}-{name}": lambda new, op=op, dtype=dtype, view=view: Call(op, view(new, dtype))
    for op in OPS
    for dtype in ("bfloat16", "float32")
    for name, view in _VIEWS.items()
}


def _weighted(x: tuple, weight: tuple, view: Callable = lambda w: w, **options) -> Callable:
    return lambda new: Call("rms_norm", new(*x), view(new(*weight)), **options)


BF16, FP16, FP32 = DTYPES

WEIGHTS: dict[str, Callable[[New], Call]] = {
    "none": lambda new: Call("rms_norm", new(BF16, 67, 1000)),
    "none, float16": lambda new: Call("rms_norm", new(FP16, 67, 1000)),
    "none, odd": lambda new: Call("rms_norm", new(BF16, 67, 1001)),
    "wider": _weighted((BF16, 67, 1000), (FP32, 1000)),
    "wider, odd": _weighted((FP16, 67, 1001), (FP32, 1001)),
    "wider, cluster": _weighted((BF16, 3, 262144), (FP32, 262144)),
    "narrower": _weighted((FP32, 67, 1000), (BF16, 1000)),
    "narrower, odd": _weighted((FP32, 67, 1001), (FP16, 1001)),
    "narrower, cluster": _weighted((FP32, 3, 262144), (FP16, 262144)),
    "of the other 16 bits": _weighted((BF16, 67, 1000), (FP16, 1000)),
    "one element late": _weighted((BF16, 67, 1000), (BF16, 1001), lambda w: w[1:]),
    "wider, one element late": _weighted((BF16, 67, 1000), (FP32, 1001), lambda w: w[1:]),
    "narrower, one element late": _weighted((FP32, 67, 1000), (BF16, 1001), lambda w: w[1:]),
    "every other element": _weighted((FP32, 67, 1000), (FP32, 2000), lambda w: w[::2]),
    "one value expanded": _weighted((FP32, 67, 1000), (FP32, 1), lambda w: w.expand(1000)),
    "of one column": _weighted((FP32, 67, 1), (FP32, 1)),
    "two dimensions": _weighted((BF16, 67, 8, 125), (BF16, 8, 125), shape=(8, 125)),
    "two dimensions, transposed": _weighted(
        (FP32, 67, 8, 125), (FP32, 125, 8), lambda w: w.t(), shape=(8, 125)
    ),
    "all dimensions": _weighted((FP32, 8, 125), (FP32, 8, 125), shape=(8, 125)),
    "large eps": _weighted((FP32, 67, 1000), (FP32, 1000), eps=100.0),
    "no eps": _weighted((FP32, 67, 1000), (FP32, 1000), eps=0.0),
}


def _late(op: str, dtype: str, columns: int, by: int, make: New) -> Call:
    weight = make(dtype, columns) if op == "rms_norm" else None
    return Call(op, shifted(dtype, 67, columns, by, make), weight)


#: Calls to run with an output that is not aligned, and how many elements it is late.
MISALIGNED: dict[str, tuple[Callable[[New], Call], int]] = {
    f"{op}-{dtype}-n{columns}-x{late}-out{offset}": (
        partial(_late, op, dtype, columns, late),
        offset,
    )
    for op in OPS
    for dtype in (BF16, FP32)
    for columns, late, offset in (
        (8, 0, 1),
        (1000, 0, 1),
        (1000, 0, 4),
        (1000, 3, 3),  # x and output alike: shifted accesses
        (1001, 0, 1),
        (1001, 5, 5),
    )
}

#: Matrices of more than 2^31 elements, dense and strided.
HUGE: dict[str, Callable[[New], Call]] = {
    "softmax-dense": lambda new: Call("softmax", new(BF16, 33_000, 65_536)),
    "softmax-strided": lambda new: Call("softmax", new(BF16, 67, (1 << 25) + 8)[:, :1000]),
    "rms_norm-dense": lambda new: Call("rms_norm", new(BF16, 33_000, 65_536)),
    "rms_norm-strided": lambda new: Call("rms_norm", new(BF16, 67, (1 << 25) + 8)[:, :1000]),
}


@contextmanager
def recorded() -> Iterator[list]:
    """Record launches as on a GPU, where allocations start on boundaries."""
    address = mock.patch.object(
        tiling, "_address", lambda tensor: tensor.storage_offset() * tensor.element_size()
    )
    with address, membound.runtime.record_launches() as launches:
        yield launches


def gpu_kernels() -> list[membound.runtime.Kernel]:
    """Every kernel that the GPU tests launch, each once; needs no GPU."""
    make = new("meta")
    with recorded() as launches:
        for build in [*PLAIN.values(), *VIEWS.values(), *WEIGHTS.values(), *HUGE.values()]:
            build(make)()
        for build, offset in MISALIGNED.values():
            build(make).guarded(offset)
    return list(dict.fromkeys(launch.kernel for launch in launches))


if __name__ == "__main__":
    kernels = gpu_kernels()
    done = iter(range(1, len(kernels) + 1))
    membound.runtime.build(
        kernels, progress=lambda kernel: print(f"{next(done)}/{len(kernels)} {kernel.name}")
    )
