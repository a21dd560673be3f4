"""How many placements are measured: a pilot tells how much they differ, the target how many more.

The pilot has a fixed size and its samples count. The interval over all samples then covers the
truth in 94 to 95 % of cases instead of 95 (simulated in the tests); stopping as soon as an
interval looks narrow would cover far less.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from .. import estimate


@dataclass(frozen=True)
class Plan:
    """Placements and blocks of a session.

    docs/measurement.md tells where the numbers come from.

    Attributes:
        pilot: placements of the first stage.
        least, most: placements of the second stage, where there is one.
        target: half-width that the 95 % interval of the time over the control's shall have.
        baseline: placements in a process at which other providers than the suite's are timed.
        blocks: replays of each provider at a placement, of which the median is taken.
        calls: whether call times are taken too.
    """

    pilot: int = 4
    least: int = 2
    most: int = 6
    target: float = 0.004
    baseline: int = 2
    blocks: int = 5
    calls: bool = True

    def __post_init__(self) -> None:
        for name in ("pilot", "baseline", "blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 was expected")
        if not 0 <= self.least <= self.most:
            raise ValueError(
                f"least is {self.least}, most {self.most}: 0 <= least <= most expected"
            )


#: Shows that everything runs, and no more.
QUICK = Plan(pilot=2, least=0, most=0, baseline=1, blocks=3, calls=False)


def more(plan: Plan, pilot: Sequence[float]) -> int:
    """Placements of the second stage, given the logarithms that the first one found."""
    if len(pilot) < 2:
        return plan.most
    spread = statistics.stdev(pilot)
    quantile = float(stdtrit(len(pilot) - 1, (1 + estimate.CONFIDENCE) / 2))
    needed = math.ceil((quantile * spread / plan.target) ** 2)
    return min(plan.most, max(plan.least, needed - len(pilot)))
