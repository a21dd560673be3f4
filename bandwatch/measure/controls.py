"""The control: a kernel of the harness that moves as many bytes as the workload and does no more.

Utilisation is a workload's time against its control's in the same session. The control is a
provider like the others, checked, replayed in the same blocks, and versioned: a change of it is a
marked event in every history. ``torch.Tensor.copy_`` cannot serve: captured into a CUDA graph it
becomes a copy-engine node, half as slow again as the same copy by a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .correctness import WrongResult
from .workload import DTYPE_BYTES, Tensors, Traffic, Workload

CONTROL = "copy/1"

#: Most that bytes read and written may differ, as a share of their sum, for a 1:1 copy to be the
#: right control; a weight vector beside a matrix is far below.
MAX_IMBALANCE = 0.05


class CopyControl:
    """The 1:1 copy: reads half of the workload's bytes and writes the other half."""

    version = CONTROL

    def variants(self) -> Mapping[str, Callable[[Tensors], Any]]:
        """The frozen configurations by label, compiled at the first call of each."""
        from . import copy_kernel

        def runner(config: copy_kernel.CopyConfig) -> Callable[[Tensors], Any]:
            copy = copy_kernel.compiled(config)

            def run(inputs: Tensors) -> Any:
                import torch

                target = torch.empty_like(inputs["source"])
                copy(inputs["source"], target)
                return target

            return run

        return {config.label: runner(config) for config in copy_kernel.CONFIGS}

    def make_inputs(
        self, workload: Workload, traffic: Traffic, device: Any, generator: Any
    ) -> Tensors:
        """One source of ``traffic.total / 2`` bytes, rounded up to whole 16-byte vectors.

        Random values of the workload's dtype, because power, and with it the clock, depends on
        the bits that toggle. Raises NotImplementedError where reads and writes are not balanced.
        """
        import torch

        if abs(traffic.read - traffic.written) > MAX_IMBALANCE * traffic.total:
            raise NotImplementedError(
                f"{CONTROL} reads as much as it writes; {workload.key} reads {traffic.read} and "
                f"writes {traffic.written} bytes"
            )
        vectors = -(-traffic.total // 2 // 16)
        values = torch.randn(
            vectors * 16 // DTYPE_BYTES[workload.dtype],
            dtype=getattr(torch, workload.dtype),
            device=device,
            generator=generator,
        )
        return {"source": values.view(torch.int32).view(-1, 4)}

    def check(self, inputs: Tensors, output: Any) -> dict[str, float]:
        """Raise :class:`WrongResult` unless every byte arrived."""
        import torch

        if not torch.equal(inputs["source"], output):
            raise WrongResult("the copy differs from its source")
        return {"max_abs": 0.0, "max_rel": 0.0}
