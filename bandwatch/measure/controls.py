"""The control: a kernel of the harness that moves as many bytes as the workload and does no more.

Utilisation is a workload's time against its control's in the same session. The control is a
provider like the others, checked, replayed in the same blocks, and versioned: a change of it is a
marked event in every history. Its kernels are compiled once and kept in the package, so that no
release of a compiler can move it. ``torch.Tensor.copy_`` cannot serve: captured into a CUDA graph
it becomes a copy-engine node, half as slow again as the same copy by a kernel.

What memory can do depends on the mix: on an H200, reading alone reaches more than reading and
writing in turn. So there is a control for each mix of streams read and written.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import objects
from .correctness import WrongResult
from .workload import DTYPE_BYTES, Tensors, Traffic, Workload

CONTROL = "streams/1"

#: The compiled kernels and what they are.
FROZEN = Path(__file__).with_name("control_kernels") / "streams-1"

#: Mixes (streams read, streams written) of up to five streams.
MIXES = tuple((r, w) for r in range(5) for w in range(5) if 0 < r + w <= 5)

#: Most that the share of reads in the bytes may differ between a workload and its control. From
#: 1:1 to 2:1 (a sixth) the rate changes by 3 %, so this is worth about 1 %.
MAX_IMBALANCE = 0.07

#: What the vectors that a thread of a read-only kernel reads must be in sum, all four words of it,
#: for the thread to write: 2^-128 for random data, but the compiler cannot know.
SENTINEL = 0x5EED1E55

#: Places at which the read-only kernel is tested for having read them.
_PLANTED = 8


def mix(traffic: Traffic) -> tuple[int, int]:
    """Streams (read, written) of the control for ``traffic``.

    Those of the workload where it tells them, else the fewest of the nearest share of reads.
    Raises NotImplementedError where there is no such mix.
    """
    if traffic.streams is not None:
        if traffic.streams not in MIXES:
            reads, writes = traffic.streams
            raise NotImplementedError(
                f"{CONTROL} has no mix of {reads} streams read and {writes} written"
            )
        return traffic.streams
    share = traffic.read / traffic.total
    nearest = min(MIXES, key=lambda mix: (round(abs(_share(mix) - share), 9), sum(mix)))
    if abs(_share(nearest) - share) > MAX_IMBALANCE:
        raise NotImplementedError(
            f"{CONTROL} has no mix near {share:.0%} reads "
            f"({traffic.read} bytes read, {traffic.written} written)"
        )
    return nearest


def _share(mix: tuple[int, int]) -> float:
    return mix[0] / sum(mix)


class StreamControl:
    """Reads and writes contiguous streams in the workload's mix, as many bytes in all."""

    version = CONTROL

    def variants(self, traffic: Traffic) -> Mapping[str, Callable[[Tensors], Any]]:
        """The frozen configurations for ``traffic`` by label. Loaded at the first call of each."""
        reads, writes = mix(traffic)
        target = (writes, _vectors(traffic), 4) if writes else (1, 1, 4)
        return {
            label: functools.partial(_run, label, target)
            for label in frozen()["kernels"]
            if label.startswith(f"r{reads}w{writes}t")
        }

    def make_inputs(
        self, workload: Workload, traffic: Traffic, device: Any, generator: Any
    ) -> Tensors:
        """``source`` as the kernel takes it: int32 of shape (streams, vectors, 4).

        All streams together are ``traffic.total`` bytes, each rounded up to whole 16-byte
        vectors. Random values of the workload's dtype, because power, and with it the clock,
        depends on the bits that toggle. Raises NotImplementedError where no mix fits.
        """
        import torch

        reads, _ = mix(traffic)
        shape = (reads, _vectors(traffic)) if reads else (1, 1)
        values = torch.randn(
            (*shape, 16 // DTYPE_BYTES[workload.dtype]),
            dtype=getattr(torch, workload.dtype),
            device=device,
            generator=generator,
        )
        return {"source": values.view(torch.int32)}

    def check(
        self,
        traffic: Traffic,
        run: Callable[[Tensors], Any],
        inputs: Tensors,
        output: Any,
        generator: Any,
    ) -> dict[str, float]:
        """Raise :class:`WrongResult` unless every stream was read and written to its end."""
        import torch

        reads, writes = mix(traffic)
        source = inputs["source"]
        if not writes:
            _require_read(run, inputs, generator)
        else:
            right = source.sum(0, dtype=torch.int32) if reads else source[0].expand_as(output[0])
            if not all(torch.equal(right, stream) for stream in output):
                raise WrongResult("what the control wrote is not the sum of what it read")
        return {"max_abs": 0.0, "max_rel": 0.0}


def _vectors(traffic: Traffic) -> int:
    """Vectors of 16 bytes in each stream."""
    return -(-traffic.total // (sum(mix(traffic)) * 16))


def _require_read(run: Callable[[Tensors], Any], inputs: Tensors, generator: Any) -> None:
    """Raise :class:`WrongResult` if a kernel that writes nothing left something unread.

    A sentinel is put at random places of zeros; the kernel writes only when it finds it.
    """
    import torch

    source = torch.zeros_like(inputs["source"])
    for _ in range(_PLANTED):
        stream, vector = (
            int(torch.randint(size, (1,), device=source.device, generator=generator))
            for size in source.shape[:2]
        )
        source[stream, vector] = SENTINEL
        if not bool((run({"source": source}) == SENTINEL).all()):
            raise WrongResult(f"the control did not read vector {vector} of stream {stream}")
        source[stream, vector] = 0


def _run(label: str, target: tuple[int, ...], inputs: Tensors) -> Any:
    import torch

    source = inputs["source"]
    written = torch.empty(target, dtype=torch.int32, device=source.device)
    _kernel(label)(source, written)
    return written


@functools.cache
def frozen() -> dict[str, Any]:
    """What the compiled kernels are: by label their digest, and the versions they are made with."""
    return json.loads((FROZEN / "kernels.json").read_text("utf-8"))


@functools.cache
def _kernel(label: str) -> Callable[[Any, Any], None]:
    return objects.load(FROZEN / "kernels.so")[label]
