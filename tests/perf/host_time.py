"""Host time of one call against another's, interleaved in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import membound
import pytest
import torch
from membound.runtime.launcher import Operand

#: Calls that are timed together: long against the clock, and far fewer than the 1024 launches
#: that a stream takes before the host must wait for the GPU.
CALLS = 20
ROUNDS = 300
WARMUP = 20


def ratio(
    benchmark: Any,
    own: Callable[[], object],
    other: Callable[[], object],
    settle: Callable[[], object],
    rounds: int = ROUNDS,
) -> float:
    """Host time of ``own`` over that of ``other``: the median over rounds that time both.

    ``benchmark`` is the fixture of pytest-benchmark, whose times are of ``CALLS`` calls of
    ``own``. ``settle`` waits, untimed, for what the calls have begun.
    """
    others: list[float] = []

    def calls(of: Callable[[], object]) -> None:
        for _ in range(CALLS):
            of()

    def before() -> None:
        settle()
        begin = time.perf_counter()
        calls(other)
        others.append(time.perf_counter() - begin)
        settle()

    benchmark.pedantic(calls, args=(own,), setup=before, rounds=rounds, warmup_rounds=WARMUP)
    if benchmark.stats is None:
        pytest.skip("benchmarks are disabled")
    owns = benchmark.stats.stats.data
    found = statistics.median(a / b for a, b in zip(owns, others[-rounds:], strict=True))
    benchmark.extra_info.update(
        calls=CALLS,
        own_us=1e6 * statistics.median(owns) / CALLS,
        other_us=1e6 * statistics.median(others) / CALLS,
        ratio=found,
    )
    return found


def bare(call: Callable[[], object]) -> Callable[[], None]:
    """The one launch of ``call`` and nothing around it, into memory that a recording left."""
    with membound.runtime.record_launches() as launches:
        call()
    (launch,) = launches
    return partial(membound.runtime.launch, launch.kernel, *map(_argument, launch.arguments))


def _argument(recorded: Any) -> Any:
    if not isinstance(recorded, Operand):
        return recorded
    tensor = torch.empty(0, dtype=getattr(torch, recorded.dtype), device=recorded.memory.device)
    return tensor.set_(recorded.memory, recorded.offset, recorded.shape, recorded.strides)
