"""From changes of single series to incidents: what one commit range did to many workloads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from .steps import Change


@dataclass(frozen=True)
class Incident:
    """Changes of one direction on one GPU model that one commit range explains.

    (good, bad] is the intersection of the members' ranges, so it is never wider than any of them.
    """

    id: str
    verdict: str  # "regression" or "improvement"
    status: str  # "open" or "recovered" for a regression, "closed" for an improvement
    gpu: str
    good: int
    bad: int
    changes: tuple[Change, ...]

    @property
    def worst_effect(self) -> float:
        return max((c.effect for c in self.changes), key=abs)

    @property
    def median_effect(self) -> float:
        return median(c.effect for c in self.changes)


def group(changes: Iterable[tuple[str, Change]], commits: Sequence[str]) -> list[Incident]:
    """Incidents among ``changes``, given as (gpu, change); ``commits`` maps positions to hashes.

    Changes belong together where their ranges share a commit. The id is made of the GPU model,
    the direction and the first bad commit, so it stays when later points arrive. A regression is
    open while any of its series has not recovered. Verdicts other than regression and improvement
    make no incident: a recovery belongs to the regression it ends.
    """
    kinds: dict[tuple[str, str], list[Change]] = {}
    for gpu, change in changes:
        if change.verdict in ("regression", "improvement"):
            kinds.setdefault((gpu, change.verdict), []).append(change)
    found = [
        _incident(gpu, verdict, members, commits)
        for (gpu, verdict), group in kinds.items()
        for members in _stab(group)
    ]
    return sorted(found, key=lambda i: (i.bad, i.gpu, i.verdict))


def _stab(changes: list[Change]) -> list[list[Change]]:
    """Fewest groups whose ranges all hold one commit: the earliest bad one not yet explained."""
    groups: list[list[Change]] = []
    for change in sorted(changes, key=lambda c: (c.bad, c.series)):
        if groups and change.good < groups[-1][0].bad:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _incident(gpu: str, verdict: str, members: list[Change], commits: Sequence[str]) -> Incident:
    good, bad = max(c.good for c in members), min(c.bad for c in members)
    identity = f"{gpu}|{verdict}|{commits[bad]}"
    if verdict == "improvement":
        status = "closed"
    else:
        recovered = all(c.recovered_at is not None for c in members)
        status = "recovered" if recovered else "open"
    return Incident(
        hashlib.sha256(identity.encode()).hexdigest()[:10],
        verdict,
        status,
        gpu,
        good,
        bad,
        tuple(members),
    )
