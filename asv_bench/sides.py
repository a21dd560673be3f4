"""Several commits' suites side by side: what each has the GPU do, and measuring them interleaved.

Run as a program by ``bandwatch backfill``, in processes of its own::

    python -m asv_bench.sides plan FILE        of the ``membound`` on PYTHONPATH; compiles, no GPU
    python -m asv_bench.sides measure          jobs as JSON lines on stdin, an answer a line on FD 3
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

# Settles which kernels eager uses, so before anything that imports torch.
from bandwatch.measure import environment
from bandwatch.measure.workload import ANCHOR, CONTROL, Op, Workload

from . import workloads
from .anchor import anchor

#: Timed once a workload, beside all commits: what speed-ups are told against.
BASELINE = "eager"


def load(folder: Path, name: str) -> ModuleType:
    """Import the suite in ``folder`` as the package ``name``; others stay as they are.

    Raises RuntimeError where another folder is imported under that name already.
    """
    if name in sys.modules:
        known = next(iter(sys.modules[name].__path__))
        if Path(known) != folder:
            raise RuntimeError(f"{name} was imported from {known}, {folder} was expected")
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def side_by_side(suites: Mapping[str, ModuleType], name: str) -> Op:
    """The operation ``name`` with each suite's own provider under its key in ``suites``."""
    ops = {side: workloads.ops(suite) for side, suite in suites.items()}
    having = {side: found[name] for side, found in ops.items() if name in found}
    if not having:
        raise NotImplementedError(f"none of {list(suites)} has {name}")
    last = list(having.values())[-1]
    providers = {side: op.providers["membound"] for side, op in having.items()}
    common = {BASELINE: last.providers[BASELINE], ANCHOR: anchor().run}
    return dataclasses.replace(last, providers={**providers, **common})


def plan(suite: ModuleType) -> dict[str, dict[str, Any]]:
    """What the suite has the GPU do for each workload of the grid, compiled on the way.

    ``digest`` is that of the launch plan, None where the suite is too old to record one;
    ``launches`` are the digests of the kernels in the order of their launches; ``kernels`` maps
    names to digests. What the suite does not do has ``missing``, the reason, instead.
    """
    found: dict[str, dict[str, Any]] = {}
    if not hasattr(suite, "runtime"):
        return {one.key: {"missing": "no runtime to compile with"} for one in workloads.grid()}
    ops = workloads.ops(suite)
    kernels: dict[Workload, list[Any]] = {}
    for workload in workloads.grid():
        try:
            kernels[workload] = workloads.kernels(suite, ops[workload.op], workload)
        except KeyError:
            found[workload.key] = {"missing": f"no {workload.op}"}
        except Exception as error:
            found[workload.key] = {"missing": _line(error)}
    distinct = list(dict.fromkeys(kernel for several in kernels.values() for kernel in several))
    try:
        suite.runtime.build(distinct, jobs=int(os.environ.get("BANDWATCH_JOBS", "1")))
    except Exception:
        traceback.print_exc()  # what cannot be compiled is missing below
    for workload in kernels:
        try:
            launches = [
                suite.runtime.artifact(one.kernel)
                for one in workloads.launches(suite, ops[workload.op], workload)
            ]
            found[workload.key] = {
                "digest": workloads.digest(suite, ops[workload.op], workload),
                "launches": [artifact.digest for artifact in launches],
                "kernels": {artifact.name: artifact.digest for artifact in launches},
            }
        except Exception as error:
            found[workload.key] = {"missing": _line(error)}
    return found


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def measure(answers: Any) -> None:
    """Answer each job ``{"key", "sides": {name: folder}}`` of stdin with its sidecar line.

    The first answer describes this process: environment and harness.
    """
    from bandwatch.measure.session import Session

    session = Session()
    harness = session.harness() | {"anchor": anchor().version}
    _answer(answers, {"environment": session.environment(), "harness": harness})
    by_key = {one.key: one for one in workloads.grid()}
    for line in sys.stdin:
        job = json.loads(line)
        workload = by_key[job["key"]]
        suites = {
            side: load(Path(folder), f"membound_{side}") for side, folder in job["sides"].items()
        }
        op = side_by_side(suites, workload.op)
        names = [*op.providers, CONTROL]
        if workload.key not in anchor().keys:
            names.remove(ANCHOR)
        result = session.measure(op, workload, names, own=list(suites))
        _answer(answers, result.record())


def _answer(answers: Any, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def main() -> None:
    """See the module's docstring."""
    command, *rest = sys.argv[1:]
    if command == "plan":
        folder = Path(importlib.util.find_spec("membound").submodule_search_locations[0])
        try:
            found = plan(importlib.import_module("membound"))
        except Exception as error:  # a commit that cannot even be imported
            traceback.print_exc()
            found = {one.key: {"missing": _line(error)} for one in workloads.grid()}
        Path(rest[0]).write_text(json.dumps({"suite": str(folder), "plan": found}))
    elif command == "measure":
        reason = environment.unavailable()
        if reason is not None:
            sys.exit(f"nothing can be measured here: {reason}")
        with os.fdopen(3, "w") as answers:
            measure(answers)
    else:
        sys.exit(f"unknown command {command!r}; see the docstring of {__spec__.name}")


if __name__ == "__main__":
    main()
