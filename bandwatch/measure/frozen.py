"""Frozen operations: compiled kernels and their launch plans, run without the suite they are from.

They are the anchor: the same machine code in every session, whatever compiler or commit is under
test, so that what moves with them is the session and not the code. A folder holds ``plans.json``
and one library a kernel.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import objects
from .workload import Tensors, Workload


class Frozen:
    """The frozen operations of a folder.

    ``plans.json`` maps a workload's key to its plan: ``memories``, each ``{"input": name}`` or
    ``{"bytes": n}``, which is allocated; ``launches`` of a ``library`` with ``arguments``; and
    ``results``. A tensor is ``{"dtype", "shape", "strides", "offset", "memory"}``, the offset in
    elements; other arguments are as they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._facts = json.loads((folder / "plans.json").read_text("utf-8"))

    @property
    def version(self) -> str:
        """The name of this anchor: sessions of another cannot be linked by it."""
        return self._facts["version"]

    @property
    def keys(self) -> frozenset[str]:
        """The workloads there is something frozen for."""
        return frozenset(self._facts["plans"])

    def damaged(self) -> list[str]:
        """Libraries that are not what was frozen."""
        return [
            name
            for name, digest in self._facts["libraries"].items()
            if hashlib.sha256((self._folder / name).read_bytes()).hexdigest() != digest
        ]

    def run(self, inputs: Tensors, workload: Workload) -> Any:
        """The results for ``inputs``, a tensor or a tuple, in memory of their own.

        Raises NotImplementedError for a workload that is not among :attr:`keys`.
        """
        import torch

        plan = self._facts["plans"].get(workload.key)
        if plan is None:
            raise NotImplementedError(f"{self.version} holds nothing for {workload.key}")
        device = next(iter(inputs.values())).device
        memories = [
            inputs[memory["input"]]
            if "input" in memory
            else torch.empty(memory["bytes"], dtype=torch.uint8, device=device)
            for memory in plan["memories"]
        ]
        for launch in plan["launches"]:
            self._function(launch["library"])(
                *(_argument(a, memories) for a in launch["arguments"])
            )
        results = tuple(_argument(result, memories) for result in plan["results"])
        return results if len(results) > 1 else results[0]

    @functools.cache  # noqa: B019 - lives as long as the process
    def _function(self, library: str) -> Any:
        return objects.load(self._folder / library)["run"]


def _argument(argument: Any, memories: list[Any]) -> Any:
    if not isinstance(argument, Mapping):
        return argument
    import torch

    dtype, memory = getattr(torch, argument["dtype"]), memories[argument["memory"]]
    typed = memory if memory.dtype == dtype else memory.view(dtype)
    return typed.as_strided(argument["shape"], argument["strides"], argument["offset"])
