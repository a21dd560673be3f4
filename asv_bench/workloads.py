"""The grid of workloads and, per operation, how it is fed, counted, checked and run.

The suite module is a parameter, so that today's descriptions measure any commit's code.
torch is imported inside the functions: asv's discovery imports this file everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from bandwatch.measure.workload import DTYPE_BYTES, Op, Tensors, Traffic, Workload

OPS = ("softmax", "rms_norm")
DTYPES = ("bfloat16", "float16", "float32")
SHAPES = (
    "32768x256",
    "32768x1024",
    "32768x1001",
    "4096x4096",
    "32768x4096",
    "16384x8192",
    "8192x16384",
    "4096x32768",
)
PROVIDERS = ("membound", "eager", "control")

#: Stabiliser of rms_norm, added to the mean square.
EPS = 1e-6

# Two roundings to the dtype are allowed (torch rounds the normalised value and its product with
# the weight), each by at most the unit roundoff 2^-p, and 2^-15 for float32 arithmetic inside:
# exponents up to about 50 carry 50 * 2^-24, a partial sum of a few hundred terms as much again.
# Below the absolute part lie subnormals: kept at a spacing of 2^-24 in float16, else flushed.
_TOLERANCE = {
    "bfloat16": (2 * 2.0**-8 + 2.0**-15, 2.0**-126),
    "float16": (2 * 2.0**-11 + 2.0**-15, 2.0**-24),
    "float32": (2 * 2.0**-24 + 2.0**-15, 2.0**-126),
}


def workload(op: str, dtype: str, shape: str) -> Workload:
    """The workload of one benchmark row; ``shape`` as asv writes it, e.g. ``"32768x4096"``."""
    return Workload(op, dtype, tuple(int(n) for n in shape.split("x")))


def grid() -> Iterator[Workload]:
    """Every workload that is benchmarked: operations × dtypes × shapes."""
    for op in OPS:
        for dtype in DTYPES:
            for shape in SHAPES:
                yield workload(op, dtype, shape)


def ops(suite: ModuleType) -> dict[str, Op]:
    """The operations that ``suite`` offers, by name; older commits may offer fewer."""
    return {name: _DESCRIBE[name](suite) for name in OPS if hasattr(suite, name)}


def kernels(suite: ModuleType, op: Op, workload: Workload) -> list[Any]:
    """The kernels that the suite launches for ``workload``, in order, each once; needs no GPU.

    Raises what the operation raises, NotImplementedError where it does not do this workload.
    """
    with suite.runtime.record_launches() as launches:
        op.providers["membound"](op.make_inputs(workload, "meta", None))
    return list(dict.fromkeys(launch.kernel for launch in launches))


def _softmax(suite: ModuleType) -> Op:
    def make_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
        # Spread so that a row's exponentials differ by e^30: a lost maximum would overflow.
        return {"x": _randn(workload.shape, workload.dtype, device, generator) * 4}

    def reference(inputs: Tensors) -> Any:
        import torch

        return torch.softmax(inputs["x"].double(), dim=-1)

    def traffic(workload: Workload) -> Traffic:
        nbytes = _elements(workload) * DTYPE_BYTES[workload.dtype]
        return Traffic(read=nbytes, written=nbytes)

    def eager(inputs: Tensors) -> Any:
        import torch

        return torch.softmax(inputs["x"], dim=-1)

    def own(inputs: Tensors) -> Any:
        return suite.softmax(inputs["x"], dim=-1)

    return _op(suite, "softmax", make_inputs, reference, traffic, own, eager)


def _rms_norm(suite: ModuleType) -> Op:
    def make_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
        return {
            "x": _randn(workload.shape, workload.dtype, device, generator),
            "weight": _randn(workload.shape[-1:], workload.dtype, device, generator),
        }

    def reference(inputs: Tensors) -> Any:
        x, weight = inputs["x"].double(), inputs["weight"].double()
        return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight

    def traffic(workload: Workload) -> Traffic:
        size = DTYPE_BYTES[workload.dtype]
        nbytes = _elements(workload) * size
        return Traffic(read=nbytes + workload.shape[-1] * size, written=nbytes)

    def eager(inputs: Tensors) -> Any:
        import torch

        x, weight = inputs["x"], inputs["weight"]
        return torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)

    def own(inputs: Tensors) -> Any:
        x, weight = inputs["x"], inputs["weight"]
        return suite.rms_norm(x, weight.shape, weight, EPS)

    return _op(suite, "rms_norm", make_inputs, reference, traffic, own, eager)


_DESCRIBE: Mapping[str, Callable[[ModuleType], Op]] = {"softmax": _softmax, "rms_norm": _rms_norm}


def _op(
    suite: ModuleType,
    name: str,
    make_inputs: Callable[[Workload, Any, Any], Tensors],
    reference: Callable[[Tensors], Any],
    traffic: Callable[[Workload], Traffic],
    own: Callable[[Tensors], Any],
    eager: Callable[[Tensors], Any],
) -> Op:
    def digests(workload: Workload) -> Mapping[str, str]:
        artifacts = [suite.runtime.artifact(kernel) for kernel in kernels(suite, op, workload)]
        return {artifact.name: artifact.digest for artifact in artifacts}

    op = Op(
        name=name,
        make_inputs=make_inputs,
        reference=reference,
        traffic=traffic,
        tolerance=_TOLERANCE.__getitem__,
        providers={"membound": own, "eager": eager},
        kernels=digests,
    )
    return op


def _randn(shape: tuple[int, ...], dtype: str, device: Any, generator: Any) -> Any:
    import torch

    return torch.randn(shape, dtype=getattr(torch, dtype), device=device, generator=generator)


def _elements(workload: Workload) -> int:
    rows, columns = workload.shape
    return rows * columns
