"""The noise of the measurement: many processes measure one commit again and again.

::

    python -m asv_bench.study run FILE --processes 20     needs a GPU; about 15 s each
    python -m asv_bench.study show FILE...                the figures of docs/measurement.md

A line of FILE is one workload in one process: times of the suite and of the control by placement,
and how much the replays of a placement differ.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

# Settles which kernels eager uses, so before anything that imports torch.
from bandwatch import estimate
from bandwatch.measure import environment
from bandwatch.measure.sampling import Plan, more

from . import workloads

#: Placements of a process, about as many as a session takes: plans are tried on parts of them.
PLACEMENTS = 8
#: Fewer processes of a workload tell nothing.
LEAST_PROCESSES = 4
#: From this time on the bars of long workloads hold.
LONG_SECONDS = 30e-6

console = Console(highlight=False)


def chosen() -> list[workloads.Workload]:
    """One workload of every operation, and the short ones, which are the noisiest.

    Ragged ones are left out: their inputs take longer to make than to measure.
    """
    short = (one for one in workloads.grid() if one.shape == (32768, 256) and not one.options)
    first = sorted(workloads.quick(), key=lambda one: one.key)
    return [one for one in dict.fromkeys([*short, *first]) if not one.op.startswith("ragged")]


def run(file: Path, processes: int) -> None:
    """Measure in ``processes`` processes, one after another, and append to ``file``."""
    before = sum(1 for _ in file.open()) if file.exists() else 0
    for process in range(processes):
        subprocess.run(
            [sys.executable, "-m", "asv_bench.study", "process", str(file), str(process)],
            check=True,
        )
        lines = sum(1 for _ in file.open()) - before
        console.print(f"process {process + 1} of {processes}: {lines} lines")


def measure(file: Path, process: int) -> None:
    """One process of the study."""
    import membound

    from bandwatch.measure.session import Session

    class Recording(Session):
        def _replay_blocks(self, graphs: Mapping[str, Any]) -> dict[str, list[float]]:
            replays = super()._replay_blocks(graphs)
            if {"membound", "control"} <= set(replays):
                pairs = zip(replays["membound"], replays["control"], strict=True)
                spread.append(statistics.stdev(math.log(own / other) for own, other in pairs))
            return replays

    plan = Plan(pilot=PLACEMENTS, least=0, most=0, calls=False)
    session = Recording(plan, process=process)
    facts = session.environment()
    about = {name: facts[name] for name in ("gpu", "card", "driver")}
    ops = workloads.ops(membound)
    with file.open("a") as lines:
        for workload in chosen():
            spread: list[float] = []
            result = session.measure(ops[workload.op], workload, ["membound", "control"])
            own, control = (result.providers[name] for name in ("membound", "control"))
            if own.verdict == "failed" or not control.samples:
                text = f"{workload.key}: {own.verdict} {own.reason} {control.reason}"
                console.print(text, markup=False)
                continue
            line = {
                "key": workload.key,
                "process": process,
                "own": [float(f"{seconds:.7g}") for _, _, seconds in own.samples],
                "control": [float(f"{seconds:.7g}") for _, _, seconds in control.samples],
                "replays": [float(f"{one:.3g}") for one in spread],
                **about,
            }
            lines.write(json.dumps(line) + "\n")


def analyse(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row a workload and card, over its processes; standard deviations are of log ratios.

    Attributes of a row: ``seconds``; ``process``, ``placement`` and ``replay``, the components of
    the variance; ``reported``, of what sessions of two processes would have told; ``covered``, how
    often the 95 % interval of such a session held the mean of the other processes. A workload
    needs four processes.
    """
    groups: dict[tuple[str, str], list[np.ndarray]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    replays: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        group = (line["card"], line["key"])
        groups.setdefault(group, []).append(np.log(np.divide(line["own"], line["control"])))
        seconds.setdefault(group, []).append(statistics.median(line["own"]))
        replays.setdefault(group, []).extend(line["replays"])
    rows = []
    for group, logs in groups.items():
        if len(logs) < LEAST_PROCESSES:
            continue
        means = np.array([one.mean() for one in logs])
        within = float(np.mean([one.var(ddof=1) for one in logs]))
        between = float(means.var(ddof=1)) - within / len(logs[0])
        sessions = [_session(one, other) for one, other in zip(logs, _turned(logs), strict=True)]
        covered = []
        for i, (session, processes) in enumerate(sessions):
            others = np.delete(means, [i, (i + 1) % len(means)])
            truth, error = others.mean(), others.std(ddof=1) / len(others) ** 0.5
            told = estimate.of_logs(session, processes)
            half = math.log(told.high / told.low) / 2
            # the truth is known to ``error`` only
            covered.append(abs(math.log(told.value) - truth) <= math.hypot(half, 2 * error))
        reported = [statistics.fmean(session) for session, _ in sessions]
        rows.append(
            {
                "card": group[0],
                "key": group[1],
                "seconds": statistics.median(seconds[group]),
                "processes": len(logs),
                "process": max(0.0, between) ** 0.5,
                "placement": within**0.5,
                "replay": float(np.sqrt(np.mean(np.square(replays[group])))),
                "reported": statistics.stdev(reported),
                "placements": statistics.fmean(len(session) for session, _ in sessions),
                "intervals": len(covered),
                "covered": sum(covered),
            }
        )
    return rows


def _session(first: np.ndarray, second: np.ndarray) -> tuple[list[float], list[int]]:
    """What a session of two processes would have measured, and the process of each placement.

    The pilot of one, and as many placements of the other as the pilot asks for.
    """
    plan = Plan()
    pilot = list(first[: plan.pilot])
    added = list(second[: more(plan, pilot)])
    return [*pilot, *added], [0] * len(pilot) + [1] * len(added)


def _turned(logs: list[np.ndarray]) -> list[np.ndarray]:
    """Each process's successor, so that every process is a pilot once and adds once."""
    return [*logs[1:], logs[0]]


def show(files: Sequence[Path]) -> None:
    """Print the figures; ends the program where the files hold nothing."""
    rows = analyse([json.loads(line) for file in files for line in file.open()])
    if not rows:
        names = ", ".join(map(str, files))
        sys.exit(f"{names}: no workload was measured in {LEAST_PROCESSES} processes")
    table = Table(title="Noise of log(time / control's time): standard deviations in percent")
    for name in ("workload", "µs", "process", "placement", "replay", "reported", "covered"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for row in sorted(rows, key=lambda row: row["seconds"]):
        table.add_row(
            row["key"],
            f"{row['seconds'] * 1e6:.0f}",
            *(f"{row[name]:.2%}"[:-1] for name in ("process", "placement", "replay", "reported")),
            f"{row['covered'] / row['intervals']:.0%}",
        )
    console.print(table)
    for text, part in (
        (f"from {LONG_SECONDS * 1e6:.0f} µs", [r for r in rows if r["seconds"] >= LONG_SECONDS]),
        (f"below {LONG_SECONDS * 1e6:.0f} µs", [r for r in rows if r["seconds"] < LONG_SECONDS]),
    ):
        if part:
            mean = {
                name: math.sqrt(statistics.mean(row[name] ** 2 for row in part))
                for name in ("process", "placement", "replay", "reported")
            }
            worst = max(part, key=lambda row: row["reported"])
            console.print(
                f"{text}: {len(part)} workloads; root mean squares process {mean['process']:.2%}, "
                f"placement {mean['placement']:.2%}, replay {mean['replay']:.2%}; reported "
                f"{mean['reported']:.2%}, at most {worst['reported']:.2%} ({worst['key']})"
            )
    covered, total = (sum(row[name] for row in rows) for name in ("covered", "intervals"))
    console.print(f"{covered} of {total} intervals cover ({covered / total:.1%})")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("file", type=Path)
    running.add_argument("--processes", type=int, default=20)
    one = commands.add_parser("process")
    one.add_argument("file", type=Path)
    one.add_argument("number", type=int)
    showing = commands.add_parser("show")
    showing.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    if args.command == "show":
        show(args.files)
    elif args.command == "process":
        measure(args.file, args.number)
    elif reason := environment.unavailable():
        sys.exit(f"nothing can be measured here: {reason}")
    else:
        run(args.file, args.processes)


if __name__ == "__main__":
    main()
