"""The kernels that are compiled and looked at without a GPU.

Calls that fail have none here: tests of their own tell of them.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress

import membound
from membound.runtime import Kernel

from asv_bench import workloads
from bandwatch.measure.workload import Op

from .cases import OPS, cases, launched, optional, plain

#: Most kernels of an ordinary run; ``make nightly`` takes all.
MOST = 600
NIGHTLY = os.environ.get("MEMBOUND_NIGHTLY") == "1"


def _benchmarked() -> Iterator[Kernel]:
    for workload in workloads.grid():
        with suppress(Exception):
            yield from workloads.kernels(membound, OPS[workload.op], workload)


def _of(op: Op) -> Iterator[Kernel]:
    """The kernels of an op's cases, those with the most pairs of options first."""
    mine = [case for case in cases().values() if case.op is op]
    every = [*plain(op, full=True), *optional(op, full=True)] if NIGHTLY else []
    optional_first = sorted(mine, key=lambda case: not case.workload.options)
    for case in [*optional_first, *every]:
        with suppress(Exception):
            yield from launched(case)


def _in_turns() -> Iterator[Kernel]:
    """One kernel of each op after another."""
    for turn in itertools.zip_longest(*(dict.fromkeys(_of(op)) for op in OPS.values())):
        yield from filter(None, turn)


def _variants() -> list[Kernel]:
    every = dict.fromkeys(itertools.chain(_benchmarked(), _in_turns()))
    return list(itertools.islice(every, None if NIGHTLY else MOST))


VARIANTS = _variants()
