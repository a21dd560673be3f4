"""Static facts of the compiled kernels; needs no GPU and has no noise.

Where a workload launches several kernels, each metric is the worst of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from . import rows, workloads


class _Static(rows.StaticRows):
    def track_registers(self, dtype: str, shape: str) -> int:
        return self.worst(attrgetter("registers"))

    def track_spills(self, dtype: str, shape: str) -> int:
        return self.worst(attrgetter("spills"))

    def track_stack_bytes(self, dtype: str, shape: str) -> int:
        return self.worst(attrgetter("stack_bytes"))

    def track_shared_bytes(self, dtype: str, shape: str) -> int:
        return self.worst(attrgetter("shared_bytes"))

    def track_instructions(self, dtype: str, shape: str) -> int:
        return self.worst(attrgetter("instructions"))

    def track_narrow_access_share(self, dtype: str, shape: str) -> float:
        return self.worst(attrgetter("narrow_access_share"))

    def track_idle_warp_share(self, dtype: str, shape: str) -> float:
        return self.worst(attrgetter("idle_warp_share"))

    track_registers.unit = "registers"
    track_spills.unit = "instructions"
    track_stack_bytes.unit = "bytes"
    track_shared_bytes.unit = "bytes"
    track_instructions.unit = "instructions"
    track_narrow_access_share.unit = "share"
    track_idle_warp_share.unit = "share"


def _classes() -> Iterator[type[_Static]]:
    """A class per operation and direction, such as ``RmsNorm`` and ``RmsNormBackward``."""
    for op in workloads.OPS:
        for direction in workloads.describe(op).directions:
            if workloads.benchmarked(op, direction):
                name = rows.class_name(op, direction)
                place = {"op": op, "direction": direction, "__module__": __name__}
                yield type(name, (_Static,), {**place, "__doc__": f"Kernels of {op}, {direction}."})


globals().update({cls.__name__: cls for cls in _classes()})
