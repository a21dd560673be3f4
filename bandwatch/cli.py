"""The ``bandwatch`` command. Subcommands of other packages join by the entry-point group.

An entry point in ``bandwatch.commands`` names a function ``add_parser(subparsers)`` that adds its
parser and sets ``run``, a function from the parsed arguments to an exit code.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from . import history, link, sidecar
from .results import merge
from .results.commits import HistoryError
from .results.dataset import DEFAULT_DIR, Dataset, DatasetError, Generation, open_dataset
from .results.merge import MergeError

COMMANDS = "bandwatch.commands"

#: Where ``bandwatch watch`` puts what it measures on this machine.
LOCAL_RESULTS = Path(".bandwatch/results")

_WARNINGS_SHOWN = 10

_EXAMPLES = """\
examples:
  bandwatch ingest                    read results/ and the git history around it
  bandwatch status                    is the main branch fine?
  bandwatch incidents                 what broke, where, and the likely cause
  bandwatch incidents 3f9a2c71de      one of them, workload by workload
  bandwatch changes --op softmax      every verdict on every series of softmax
  bandwatch status --json             the same for scripts
"""

#: Columns where nobody looks at a terminal: a pipe must not lose the ends of the rows.
_PIPE_WIDTH = 240

console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
errors = Console(stderr=True, highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 0 also where regressions are open, 1 on errors."""
    args = _parser().parse_args(argv)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except (
        DatasetError,
        HistoryError,
        MergeError,
        sidecar.SidecarError,
        history.NotFound,
    ) as error:
        _say(f"[red]error:[/] {escape(str(error.args[0]))}")
        return 1
    except KeyboardInterrupt:
        _say("stopped")
        return 130
    except BrokenPipeError:
        # The reader (head, say) has enough; nor must the interpreter flush into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bandwatch",
        description="Continuous performance tracking for suites of memory-bound GPU kernels.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"bandwatch {metadata.version('bandwatch')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="command")

    reads = _add(
        commands,
        "ingest",
        _ingest,
        "bring the dataset up to date with the results",
        "  bandwatch ingest results other/results --repo .",
    )
    reads.add_argument(
        "results",
        nargs="*",
        type=Path,
        default=[Path("results"), LOCAL_RESULTS],
        help=f"folders in asv's layout (default: results and {LOCAL_RESULTS})",
    )
    reads.add_argument(
        "--repo", type=Path, default=Path(), help="the checkout that was measured (default: .)"
    )
    _add(
        commands,
        "status",
        _status,
        "whether the main branch is fine, and utilisation per operation",
        "  bandwatch status --json",
    )
    changes = _add(
        commands,
        "changes",
        _changes,
        "every verdict of detection, newest first",
        "  bandwatch changes --op softmax --verdict suspected",
    )
    for name in ("op", "dtype", "shape", "gpu", "verdict"):
        changes.add_argument(f"--{name}", help=f"only of this {name}")
    incidents = _add(
        commands,
        "incidents",
        _incidents,
        "changes of one direction and commit range taken together, open ones first",
        "  bandwatch incidents --open\n  bandwatch incidents 3f9a2c71de --json",
    )
    incidents.add_argument("id", nargs="?", help="show this one, workload by workload")
    incidents.add_argument("--open", action="store_true", help="only open ones")

    merging = _add(
        commands,
        "merge",
        _merge,
        "join result folders of shards or several runners, row by row",
        "  bandwatch merge runner-a/results runner-b/results --into results\n"
        "  bandwatch merge parts/* --into results --dry-run",
    )
    merging.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="result folders")
    merging.add_argument("--into", type=Path, required=True, metavar="RESULTS", help="the folder")
    merging.add_argument("--dry-run", action="store_true", help="only tell what would be done")

    spreading = _add(
        commands,
        "spread",
        _spread,
        "how much equal code differs between sessions, as measured and linked",
        "  bandwatch spread results results/studies",
    )
    spreading.add_argument(
        "folders",
        nargs="*",
        type=Path,
        default=[Path("results"), Path("results/studies")],
        help="folders of machines' folders with sidecars (default: results and its studies)",
    )

    for entry in metadata.entry_points(group=COMMANDS):
        _join(commands, entry)
    return parser


def _add(
    commands: argparse._SubParsersAction, name: str, run: Any, summary: str, examples: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run not in (_merge, _spread):
        parser.add_argument(
            "--dataset",
            type=Path,
            default=DEFAULT_DIR,
            help="folder of the dataset (default: %(default)s)",
        )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _join(commands: argparse._SubParsersAction, entry: metadata.EntryPoint) -> None:
    """Add a subcommand from elsewhere; one that is broken must not take the others with it."""
    try:
        entry.load()(commands)
    except Exception as error:
        _say(f"[yellow]warning:[/] no command {entry.name}: {escape(str(error))}")


# Commands -----------------------------------------------------------------------------------------


def ingest(results: Sequence[Path], repo: Path, dataset_dir: Path) -> Generation:
    """Ingest with a progress bar; says what came of it and warns of what was left out."""
    generation = _quiet_ingest(results, repo, dataset_dir)
    with open_dataset(dataset_dir) as dataset:
        warnings = dataset.sql("SELECT * FROM warnings")
    for warning in warnings.head(_WARNINGS_SHOWN).itertuples():
        _say(f"[yellow]warning:[/] {escape(f'{warning.source}: {warning.message}')}")
    if len(warnings) > _WARNINGS_SHOWN:
        errors.print(
            f"and {len(warnings) - _WARNINGS_SHOWN} more, all in `bandwatch ingest --json`"
        )
    rows = generation.rows
    console.print(
        ("Nothing new: " if generation.reused else "")
        + f"{rows['points']} points and {rows['static']} static facts over {rows['commits']} "
        f"commits, {rows['incidents']} incidents."
    )
    return generation


def _quiet_ingest(results: Sequence[Path], repo: Path, dataset_dir: Path) -> Generation:
    from .results.ingest import ingest

    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        return ingest(results, repo, dataset_dir, progress)


def _ingest(args: argparse.Namespace) -> int:
    if not args.json:
        ingest(args.results, args.repo, args.dataset)
        return 0
    generation = _quiet_ingest(args.results, args.repo, args.dataset)
    with open_dataset(args.dataset) as dataset:
        warnings = dataset.sql("SELECT * FROM warnings")
    facts = {"generation": generation.id, "reused": generation.reused}
    _print_json(facts | {"rows": dict(generation.rows), "warnings": _records(warnings)})
    return 0


def _merge(args: argparse.Namespace) -> int:
    summaries = merge.merge(args.sources, args.into, args.dry_run)
    if args.json:
        _print_json([asdict(one) | {"path": str(one.path)} for one in summaries])
        return 0
    table = _table("machine", "result", "added", "replaced", "kept", "sessions")
    for one in summaries:
        label = one.path.stem.partition("-")[0]  # the commit, or "benchmarks"
        counts = (one.added, one.replaced, one.kept, one.sessions)
        table.add_row(one.path.parent.name, label, *map(str, counts))
        for note in one.notes:
            _say(escape(f"{label}: {note}"))
    console.print(table)
    console.print("nothing was written" if args.dry_run else f"joined into {args.into}")
    return 0


def _spread(args: argparse.Namespace) -> int:
    paths = sorted({p for folder in args.folders for p in folder.glob(f"*/*{sidecar.SUFFIX}")})
    rows = link.spread(link.observations(map(sidecar.read, paths)))
    if args.json:
        _print_json([asdict(row) for row in rows])
        return 0
    if not rows:
        _say("no code was measured in two sessions: nothing can be compared")
        return 0
    table = _table("gpu", "card", "sessions", "codes", "raw", "linked")
    for row in rows:
        counts = (str(row.sessions), str(row.codes))
        spreads = (f"{row.raw:.2%}", f"{row.linked:.2%}")
        table.add_row(row.gpu, row.card or "all", *counts, *spreads)
    console.print(table)
    console.print("standard deviations of log(time / control's time) of equal code")
    for gpu in sorted({row.gpu for row in rows}):
        cards = [row for row in rows if row.gpu == gpu and row.card]
        if len(cards) < 3:
            console.print(f"{gpu}: only {len(cards)} cards so far; how cards differ needs more")
    return 0


def _status(args: argparse.Namespace) -> int:
    with open_dataset(args.dataset) as dataset:
        now = history.today(dataset)
        broken = history.incidents(dataset, status="open")
    if args.json:
        _print_json(asdict(now) | {"incidents": _records(broken)})
        return 0
    colour = {"fine": "green", "no data": "yellow"}.get(now.state, "red")
    console.print(f"main: [{colour}]{now.state}[/]")
    if now.newest:
        behind = f", {now.behind} commits behind" if now.behind else ""
        subject = escape(str(now.newest["subject"]))
        gpu = f" on {escape(now.gpu)}" if now.gpu else ""
        console.print(f"newest measured: {now.newest['commit'][:10]} {subject}{gpu}{behind}")
    if now.suspected:
        console.print(f"{now.suspected} series look slower at their last point: to be remeasured")
    if now.ops:
        table = _table("op", "utilisation", "vs eager", "worst workload", "n")
        for line in now.ops:
            table.add_row(
                line.op,
                _percent(line.utilisation, line.utilisation_low, line.utilisation_high),
                "" if line.speedup is None else f"{line.speedup:.2f}×",
                f"{line.worst} ({_percent(line.worst_utilisation)})",
                f"{line.workloads} of {line.available}",
            )
        console.print(table)
    if len(broken):
        console.print(_incident_table(broken))
    return 0


def _changes(args: argparse.Namespace) -> int:
    names = ("op", "dtype", "shape", "gpu", "verdict")
    with open_dataset(args.dataset) as dataset:
        found = history.changes(dataset, **{name: getattr(args, name) for name in names})
    if args.json:
        _print_json(_records(found))
        return 0
    table = _table("verdict", "workload", "gpu", "metric", "effect", "bad commit")
    for row in found.itertuples():
        placed = isinstance(row.bad_commit, str)
        table.add_row(
            row.verdict,
            f"{row.op} {row.dtype} {row.shape}",
            row.gpu,
            f"{row.metric} {_number(row.before)} → {_number(row.after)}" if placed else row.metric,
            _effect(row.effect),
            row.bad_commit[:10] if placed else row.reason,
        )
    console.print(table if len(found) else "no changes")
    return 0


def _incidents(args: argparse.Namespace) -> int:
    with open_dataset(args.dataset) as dataset:
        if args.id:
            return _incident(dataset, args)
        found = history.incidents(dataset, status="open" if args.open else None)
    if args.json:
        _print_json(_records(found))
    else:
        console.print(_incident_table(found) if len(found) else "no incidents")
    return 0


def _incident(dataset: Dataset, args: argparse.Namespace) -> int:
    found = history.incident(dataset, args.id)
    if args.json:
        parts = {"workloads": _records(found.workloads), "commits": _records(found.commits)}
        _print_json(found.facts | parts)
        return 0
    facts = found.facts
    console.print(
        f"{facts['verdict']} ({facts['status']}) on {escape(facts['gpu'])}"
        + (f"; likely cause: {escape(facts['cause'])}" if facts["cause"] else "")
    )
    for commit in found.commits.itertuples():
        author = f"{commit.author}, {commit.committed_at:%Y-%m-%d}"
        console.print(f"  {commit.commit[:10]} {escape(commit.subject)} ({escape(author)})")
    table = _table("workload", "metric", "effect")
    for row in found.workloads.itertuples():
        moved = f"{row.metric} {_number(row.before)} → {_number(row.after)}"
        table.add_row(f"{row.op} {row.dtype} {row.shape}", moved, _effect(row.effect))
    console.print(table)
    return 0


# Printing -----------------------------------------------------------------------------------------


def _say(message: str) -> None:
    """One line on standard error, whatever the width: paths in it can be copied and searched."""
    errors.print(message, soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _incident_table(incidents: pd.DataFrame) -> Table:
    table = _table("id", "what", "ops", "n", "worst", "bad commit")
    table.add_column("likely cause")
    for row in incidents.itertuples():
        table.add_row(
            row.incident,
            row.verdict if row.status == "closed" else f"{row.status} {row.verdict}",
            row.ops,
            str(row.workloads),
            _effect(row.worst_effect),
            row.bad_commit[:10],
            escape(row.cause),
        )
    return table


def _percent(value: float | None, low: float | None = None, high: float | None = None) -> str:
    if value is None:
        return "unknown"
    if low is None or high is None:
        return f"{100 * value:.1f} %"
    return f"{100 * value:.1f} ± {50 * (high - low):.1f} %"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def _effect(log: float) -> str:
    return "" if math.isnan(log) else f"{100 * math.expm1(log):+.1f} %"


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict("records")


def _print_json(value: Any) -> None:
    json.dump(_plain(value), sys.stdout, indent=1, allow_nan=False)
    print()


def _plain(value: Any) -> Any:
    """``value`` with what JSON has no words for (NaN, NaT, NumPy numbers, times) in its terms."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if value is None or pd.isna(value):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else value


if __name__ == "__main__":
    sys.exit(main())
