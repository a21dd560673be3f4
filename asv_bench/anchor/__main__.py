"""Freeze the suite's current kernels as a version of the anchor; needs no GPU."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bandwatch.measure.backward import flat
from bandwatch.measure.workload import Op, Workload

from .. import workloads
from . import KEYS

#: Operators of torch that only give memory, on the meta device.
_ALLOCATES = ("aten.empty.", "aten.empty_like.", "aten.empty_strided.", "aten.new_empty.")


class CannotFreeze(ValueError):
    """The workload's plan holds more than launches and allocations; the message says what."""


def plan(suite: ModuleType, op: Op, workload: Workload) -> tuple[dict[str, Any], list[Any]]:
    """The workload's plan as :class:`~bandwatch.measure.frozen.Frozen` reads it, and its kernels.

    The library of a launch is named after its kernel.
    """
    inputs = op.make_inputs(workload, "meta", None)
    with suite.runtime.record_plan() as recorded:
        results = flat(op.providers["membound"](inputs, workload))
    known = {value.untyped_storage()._cdata: name for name, value in inputs.items()}
    memories: list[dict[str, Any]] = []
    numbers: dict[int, int] = {}

    def told(value: Any) -> Any:
        if not hasattr(value, "memory"):
            return value
        identity = value.memory._cdata
        if identity not in numbers:
            numbers[identity] = len(memories)
            name = known.get(identity)
            memories.append({"input": name} if name else {"bytes": value.memory.nbytes()})
        return {
            "dtype": value.dtype,
            "shape": list(value.shape),
            "strides": list(value.strides),
            "offset": value.offset,
            "memory": numbers[identity],
        }

    launches, kernels = [], []
    for step in recorded.steps:
        if hasattr(step, "kernel"):
            kernels.append(step.kernel)
            library = f"{step.kernel.name}.so"
            launches.append({"library": library, "arguments": [told(a) for a in step.arguments]})
        elif not step.operator.startswith(_ALLOCATES):
            raise CannotFreeze(f"{workload.key} calls {step.operator} of torch")
    from membound.runtime.launcher import describe

    found = {
        "launches": launches,
        "results": [told(describe(result)) for result in results],
        "memories": memories,
    }
    return found, kernels


def freeze(suite: ModuleType, folder: Path) -> None:
    """Write the plans of :data:`KEYS` and the libraries they launch into ``folder``."""
    folder.mkdir(parents=True)
    by_key = {one.key: one for one in workloads.grid()}
    ops = workloads.ops(suite)
    plans, libraries = {}, {}
    for key in KEYS:
        workload = by_key[key]
        plans[key], kernels = plan(suite, ops[workload.op], workload)
        for kernel in kernels:
            target = folder / f"{kernel.name}.so"
            shutil.copyfile(suite.runtime.artifact(kernel).library, target)
            subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)
            libraries[target.name] = hashlib.sha256(target.read_bytes()).hexdigest()
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    facts = {
        "version": folder.name,
        "commit": commit,
        "toolchain": suite.runtime.toolchain(),
        "libraries": libraries,
        "plans": plans,
    }
    (folder / "plans.json").write_text(json.dumps(facts, indent=1) + "\n")


def main() -> None:
    """See the package's docstring."""
    if len(sys.argv) != 2:
        sys.exit("python -m asv_bench.anchor VERSION: name the version to freeze, such as a2")
    import membound

    folder = Path(__file__).parent / sys.argv[1]
    if folder.exists():
        sys.exit(f"{folder} exists: a frozen version never changes, name another")
    freeze(membound, folder)


if __name__ == "__main__":
    main()
