"""From one asv result file and its sidecars to rows of POINTS and STATIC."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .. import estimate
from ..gpus import peak_bytes_per_second
from ..measure.verdicts import NOT_STEADY
from ..measure.workload import BACKWARD, DTYPE_BYTES, FORWARD, Workload
from ..sidecar import Sidecar
from .asv_files import ResultFile, Row
from .commits import Placement

#: What decides the time of a kernel beside its code, in the order it is written.
TOOLCHAIN = ("torch", "nvidia-cutlass-dsl", "dsl_cuda", "apache-tvm-ffi", "cuda")

#: Static facts come from the compiler alone, so torch does not separate their series.
STATIC_TOOLCHAIN = ("nvidia-cutlass-dsl", "dsl_cuda", "apache-tvm-ffi")

#: What a session calls its GPU where there is none.
NO_GPU = "none"

_TIME = re.compile(r"^bench_\w+\.(\w+)\.track_time$")
_STATIC = re.compile(r"^bench_static\.(\w+)\.track_(\w+)$")
_STATIC_UNITS = {
    "registers": "registers",
    "spills": "instructions",
    "instructions": "instructions",
    "stack_bytes": "bytes",
    "shared_bytes": "bytes",
    "narrow_access_share": "share",
    "idle_warp_share": "share",
}

#: Seconds a row can last; what lies outside is damage, and would overflow ratios.
_LEAST_SECONDS, _MOST_SECONDS = 1e-12, 1e6

#: 99 % to 95 % half-width of a normal interval.
_99_TO_95 = 1.959964 / 2.575829


@dataclass(frozen=True)
class Measured:
    """A workload of a sidecar: its newest session, the rounds of it taken together.

    ``providers`` maps a name to verdict, reason and samples ``[process, placement, seconds]``.
    """

    session: Mapping[str, Any]
    line: Mapping[str, Any]
    providers: Mapping[str, Mapping[str, Any]]


def measured(sidecars: Iterable[Sidecar]) -> dict[str, Measured]:
    """Workloads by key. A later session replaces what it measured again, as asv's rows do."""
    found: dict[str, Measured] = {}
    for sidecar in sorted(sidecars, key=lambda s: _utc(s.session["started_at"])):
        rounds: dict[str, list[Mapping[str, Any]]] = {}
        for line in sidecar.workloads:
            lines = rounds.setdefault(line["key"], [])
            if line not in lines:  # a copied line is not a second round
                lines.append(line)
        for key, lines in rounds.items():
            found[key] = Measured(sidecar.session, lines[-1], _joined(lines))
    return found


def _joined(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Providers over all rounds; valid rounds go before others. Processes are numbered anew."""
    joined: dict[str, Mapping[str, Any]] = {}
    for name in dict.fromkeys(name for line in rounds for name in line["providers"]):
        tries = [(i, r["providers"][name]) for i, r in enumerate(rounds) if name in r["providers"]]
        valid = [(i, facts) for i, facts in tries if facts["verdict"] == "valid"]
        # what all samples of a session together are not steady enough for, part of them is not
        used = tries if tries[-1][1]["verdict"] == NOT_STEADY else valid or tries[-1:]
        numbers: dict[tuple[int, int], int] = {}
        for i, line in enumerate(rounds):
            for facts in line["providers"].values():
                for process, _, _ in facts["samples"]:
                    numbers.setdefault((i, process), len(numbers))
        samples = [
            [numbers[i, process], placement, seconds]
            for i, facts in used
            for process, placement, seconds in facts["samples"]
        ]
        # call times are taken once a session
        calls = [facts["call_seconds"] for _, facts in tries if "call_seconds" in facts]
        once = {"call_seconds": calls[-1]} if calls else {}
        joined[name] = {**used[-1][1], **once, "samples": samples}
    return joined


def point_rows(
    file: ResultFile, sidecars: Iterable[Sidecar], place: Placement
) -> Iterator[dict[str, Any]]:
    """Rows of POINTS. Timed rows without a sidecar fall back on asv's own statistics.

    What was never tried is left out: n/a to asv and unknown to sidecars, or no GPU in the session.
    So is what was not measured because another commit had the GPU do the same: a point of its own
    would pass for new evidence.
    """
    sessions = measured(sidecars)
    timed: dict[Workload, dict[str, Row]] = {}
    for row in file.rows:
        if workload := _timed_workload(row):
            timed.setdefault(workload, {})[row.params[2]] = row
    for workload, rows in timed.items():
        session = sessions.get(workload.key)
        for provider, row in rows.items():
            common = _identity(file, workload, provider, place, row)
            if session and session.session["environment"]["gpu"] == NO_GPU:
                continue
            if session and "shared" in session.line:
                continue
            if session and provider in session.providers:
                yield common | _from_sidecar(common, session, provider)
            elif row.outcome != "not available":
                yield common | _from_asv(common, file, rows, provider)


def _timed_workload(row: Row) -> Workload | None:
    name = _TIME.match(row.benchmark)
    if not name or len(row.params) != 3:
        return None
    return row_workload(name[1], row.params[0], row.params[1])


def row_workload(class_name: str, dtype: str, case: str) -> Workload | None:
    """The workload of ``RmsNormBackward``, ``bfloat16``, ``32768x4096/weight=none``."""
    shape, *options = case.split("/")
    if dtype not in DTYPE_BYTES or not re.fullmatch(r"\d{1,18}(x\d{1,18})*", shape):
        return None
    if not all(re.fullmatch(r"[^=,|]+=[^=,|]+", option) for option in options):
        return None
    op = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower()
    name = op.removesuffix(f"_{BACKWARD}")
    return Workload(
        name,
        dtype,
        tuple(int(n) for n in shape.split("x")),
        FORWARD if name == op else BACKWARD,
        tuple(tuple(option.split("=")) for option in options),
    )


def _identity(
    file: ResultFile, workload: Workload, provider: str, place: Placement, row: Row
) -> dict[str, Any]:
    return {
        "op": workload.op,
        "direction": workload.direction,
        "dtype": workload.dtype,
        "shape": workload.shape_text,
        "options": ",".join(f"{k}={v}" for k, v in workload.options),
        "provider": provider,
        "series": f"{workload.key}|{provider}|",
        "machine": file.machine,
        "env": file.env,
        "commit": file.commit,
        "position": place.position,
        "placement": place.kind,
        "benchmark": row.benchmark,
    }


def _from_sidecar(common: Mapping[str, Any], found: Measured, provider: str) -> dict[str, Any]:
    facts, line, environment = found.providers[provider], found.line, found.session["environment"]
    gpu = environment["gpu"]
    moved = int(line["bytes_read"]) + int(line["bytes_written"])  # JSON lets 4e9 be an integer
    seconds = estimate.seconds(facts["samples"])
    rate = moved / seconds.value if seconds.n else math.nan
    telemetry = line["telemetry"]
    versions = {**environment, "control": found.session["harness"]["control"]}
    return {
        "series": common["series"] + gpu,
        "gpu": gpu,
        "seconds": seconds.value,
        "seconds_low": seconds.low,
        "seconds_high": seconds.high,
        "samples": seconds.n,
        "call_seconds": facts.get("call_seconds", math.nan),
        "bytes": moved,
        "bytes_per_second": rate,
        "peak_share": rate / (peak_bytes_per_second(gpu) or math.nan),
        **_ratio("utilisation", _samples(found, "control"), facts["samples"]),
        **_ratio("speedup", _samples(found, "eager"), facts["samples"]),
        "verdict": facts["verdict"],
        "reason": facts["reason"],
        "card": environment.get("card"),
        **{
            name: telemetry[name][1] if name in telemetry else None
            for name in ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")
        },
        # The control's version stands here too: a new control moves utilisation like a compiler.
        "toolchain": _versions(versions, (*TOOLCHAIN, "control")),
        "driver": environment.get("driver"),
        "kernels": json.dumps(line["kernels"], sort_keys=True),
        "session": line["session"],
        "started_at": _utc(line["started_at"]),
    }


def _samples(found: Measured, reference: str) -> Sequence[estimate.Sample]:
    """Samples to compare with; none where the reference itself is not valid."""
    facts = found.providers.get(reference)
    return facts["samples"] if facts and facts["verdict"] == "valid" else ()


def _ratio(
    name: str, reference: Sequence[estimate.Sample], own: Sequence[estimate.Sample]
) -> dict[str, float]:
    ratio = estimate.log_ratio(reference, own)
    return {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}


def _from_asv(
    common: Mapping[str, Any], file: ResultFile, rows: Mapping[str, Row], provider: str
) -> dict[str, Any]:
    row = rows[provider]
    gpu = file.facts.get("gpu", "unknown")
    own = _asv_logs(row)
    value, low, high = _bounds(*own) if own else (math.nan,) * 3
    result = {
        "series": common["series"] + gpu,
        "gpu": gpu,
        "seconds": value,
        "seconds_low": low,
        "seconds_high": high,
        "samples": row.repeat or 0,
        "verdict": "valid" if own else "failed",
        "reason": "" if own else f"asv: {_no_time(row)}",
        "toolchain": _versions(file.requirements, TOOLCHAIN),
        "driver": file.facts.get("driver"),
        "started_at": None
        if row.started_at is None
        else datetime.fromtimestamp(row.started_at / 1000, UTC),
    }
    for name, reference in (("utilisation", "control"), ("speedup", "eager")):
        other = _asv_logs(rows[reference]) if reference in rows else None
        if own and other:
            half = 0.0 if provider == reference else math.hypot(other[1], own[1])
            value, low, high = _bounds(other[0] - own[0], half)
            result |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return result


def _asv_logs(row: Row) -> tuple[float, float] | None:
    """Logarithm of the row's value and the 95 % half-width of it, NaN where asv has none."""
    if row.value is None or not _LEAST_SECONDS <= row.value <= _MOST_SECONDS:
        return None
    low, high = row.ci_99 or (math.nan, math.nan)
    if not _LEAST_SECONDS <= low <= row.value <= high <= _MOST_SECONDS:
        return math.log(row.value), math.nan
    return math.log(row.value), _99_TO_95 * math.log(high / low) / 2


def _no_time(row: Row) -> str:
    return row.outcome if row.value is None else f"{row.value:g} s is no time of a kernel"


def _bounds(log: float, half: float) -> tuple[float, float, float]:
    return math.exp(log), math.exp(log - half), math.exp(log + half)


def static_rows(file: ResultFile, place: Placement) -> Iterator[dict[str, Any]]:
    """Rows of STATIC, with ``started_at`` beside (ms), by which the newest of equals is known."""
    toolchain = _versions(file.requirements, STATIC_TOOLCHAIN)
    for row in file.rows:
        name = _STATIC.match(row.benchmark)
        if not name or len(row.params) != 2 or row.value is None:
            continue
        workload = row_workload(name[1], *row.params)
        if workload is None:
            continue
        yield {
            "series": f"{workload.key}|{name[2]}|{toolchain}",
            "op": workload.op,
            "direction": workload.direction,
            "dtype": workload.dtype,
            "shape": workload.shape_text,
            "metric": name[2],
            "unit": _STATIC_UNITS.get(name[2], ""),
            "toolchain": toolchain,
            "machine": file.machine,
            "commit": file.commit,
            "position": place.position if place.kind == "main" else None,
            "value": row.value,
            "started_at": row.started_at or 0,
        }


def _versions(versions: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in names if versions.get(name))


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
