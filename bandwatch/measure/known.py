"""What earlier sessions measured and this one need not: equal work, and baselines of last week.

Equal digest of a workload's launch plan on an equal toolchain is equal work for the GPU, so commits
share its measurement. Baselines belong to no commit: while the toolchain stays, their ratio to the
control is measured again only once in a while. Both need sessions that can be compared with this
one: the same GPU model, driver, versions and control.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import sidecar
from ..estimate import Sample

#: A baseline's ratio to the control is measured again after this many days, because the machine
#: changes in ways that no version tells.
BASELINE_DAYS = 7

#: Facts of the environment that may differ between sessions that are compared: the card is what
#: the control and the anchor are for.
_MAY_DIFFER = frozenset({"card", "memory_bytes", "python"})

#: Facts of the harness that must be equal.
_MUST_AGREE = ("control", "torch_native_jit")


@dataclass(frozen=True)
class Shared:
    """A workload's measurement at another commit: its providers, all samples of the session."""

    session: str
    commit: str
    providers: Mapping[str, Mapping[str, Any]]

    def part(self, index: int, count: int) -> dict[str, dict[str, Any]]:
        """The providers with every ``count``-th sample, so that rounds repeat none."""
        return {
            name: {**facts, "samples": facts["samples"][index::count]}
            for name, facts in self.providers.items()
        }


class Known:
    """Sessions under ``results`` that are comparable with the one of ``header``.

    ``header`` is the session line of the sidecar that is being written. Files that cannot be read
    are passed over: nothing is lost by measuring again.
    """

    def __init__(self, results: Path, header: Mapping[str, Any]) -> None:
        self._commit = header["commit"]
        self._now = _time(header["started_at"])
        comparable = [one for one in _read(results) if _comparable(one.session, header)]
        comparable.sort(key=lambda one: _time(one.session["started_at"]), reverse=True)
        #: Newest first: the session's line, and its workloads' lines by key.
        self._sessions = [(one.session, _by_key(one)) for one in comparable]

    def work(self, key: str, digest: str | None, own: str) -> Shared | None:
        """The newest measurement of the workload at another commit with this plan's digest."""
        if digest is None:
            return None
        for session, lines in self._sessions:
            if session["commit"] == self._commit:
                continue
            same = [line for line in lines.get(key, ()) if line.get("digest") == digest]
            providers = _joined(same)
            if providers.get(own, {}).get("verdict") == "valid":
                return Shared(session["session"], session["commit"], providers)
        return None

    def has_baseline(self, key: str, provider: str) -> bool:
        """Whether :meth:`baseline` can tell something, given a valid control."""
        return self.baseline(key, provider, [[0, 0, 1.0]]) is not None

    def baseline(self, key: str, provider: str, control: Sequence[Sample]) -> dict[str, Any] | None:
        """What the provider did in the newest session that timed it, told in today's times.

        Each of its ratios to the control of that session is multiplied by a sample of today's
        ``control`` and stands at that sample's placement, so that every later ratio has the error
        of both sessions. None where no session is recent enough.
        """
        oldest = self._now - datetime.timedelta(days=BASELINE_DAYS)
        for session, lines in self._sessions:
            if _time(session["started_at"]) < oldest:
                return None
            found = _joined(lines.get(key, ()))
            facts = found.get(provider)
            if facts is None or "reused" in facts:
                continue
            known = {**facts, "reused": session["session"]}
            if facts["verdict"] != "valid":
                return {**known, "samples": []}
            was = found.get("control", {})
            if was.get("verdict") != "valid" or not control:
                continue
            linked = _linked(facts["samples"], was["samples"], control)
            return {**known, "samples": linked} if linked else None
        return None


@dataclass(frozen=True)
class Measured:
    """What was measured: as (commit, workload's key), and as (workload's key, plan's digest)."""

    commits: frozenset[tuple[str, str]] = frozenset()
    work: frozenset[tuple[str, str]] = frozenset()


def measured(results: Path, header: Mapping[str, Any]) -> Measured:
    """What sessions under ``results`` that are comparable with ``header`` measured."""
    lines = [
        (one.session["commit"], key, line.get("digest"))
        for one in _read(results)
        if _comparable(one.session, header)
        for key, several in _by_key(one).items()
        for line in several
    ]
    return Measured(
        frozenset((commit, key) for commit, key, _ in lines),
        frozenset((key, digest) for _, key, digest in lines if digest),
    )


def _linked(
    samples: Sequence[Sample], was: Sequence[Sample], control: Sequence[Sample]
) -> list[list[float]]:
    at = {(process, placement): seconds for process, placement, seconds in was}
    ratios = [s / at[p, place] for p, place, s in samples if (p, place) in at]
    # no more samples than there are ratios: repeated ones would look like knowledge
    return [
        [process, placement, seconds * ratio]
        for (process, placement, seconds), ratio in zip(control, ratios, strict=False)
    ]


def _read(results: Path) -> Iterable[sidecar.Sidecar]:
    for path in sorted(results.glob(f"*/*{sidecar.SUFFIX}")):
        try:
            yield sidecar.read(path)
        except (sidecar.SidecarError, OSError):
            continue


def _comparable(session: Mapping[str, Any], header: Mapping[str, Any]) -> bool:
    def facts(of: Mapping[str, Any]) -> dict[str, Any]:
        found = {k: v for k, v in of["environment"].items() if k not in _MAY_DIFFER}
        return found | {"harness": [of["harness"].get(name) for name in _MUST_AGREE]}

    # a quick session of few placements is no measurement
    thorough = session["harness"]["placements"] >= header["harness"]["placements"]
    return thorough and facts(session) == facts(header)


def _by_key(one: sidecar.Sidecar) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in one.workloads:
        if "shared" not in line:
            found.setdefault(line["key"], []).append(line)
    return found


def _joined(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Providers over the processes of a session; what one of them found invalid is invalid."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        for name, facts in line["providers"].items():
            before = found.get(name)
            if before is None:
                found[name] = dict(facts)
            elif before["verdict"] == "valid" == facts["verdict"]:
                before["samples"] = [*before["samples"], *facts["samples"]]
            elif before["verdict"] == "valid":
                found[name] = dict(facts)
    return found


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
