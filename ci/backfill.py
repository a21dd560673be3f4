"""``bandwatch backfill``: measure many commits interleaved in one session.

All commits are compiled first, on CPUs. A workload is then measured at the commits on both sides of
every change of what it has the GPU do, and at both ends of the range; commits in between share
those measurements. All commits of a workload run in one process on the same placements, so that
drift hits them alike.

What is measured is written down at once: after an interruption, or a kill, the same command goes on
where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bandwatch import cli
from bandwatch.measure import shards
from bandwatch.measure.known import Measured as Known

LOCAL = Path(".bandwatch") / "backfill"
SUITE = "kernels/membound"

#: Seconds for a workload's commits, and for a process to start; one that takes longer hangs.
WORKLOAD_SECONDS, START_SECONDS = 120.0, 300.0
#: Most commits in one measurement: each holds graphs and results of its own.
MOST_SIDES = 10

_EXAMPLES = """\
examples:
  bandwatch backfill main~30..main             what those commits changed, into results/MACHINE
  bandwatch backfill main~30..main --prepare   compile only, on a machine without a GPU too
  bandwatch backfill main~30..main --device 1 --shard 2/4
                                               one of four parts on the second GPU; join the
                                               parts with bandwatch merge
"""

console = Console(highlight=False)


class BackfillError(Exception):
    """It cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class Commit:
    """A commit whose suite is unpacked in ``folder``, and what it has the GPU do, by workload."""

    hash: str
    folder: Path
    plan: Mapping[str, Mapping[str, Any]]

    @property
    def side(self) -> str:
        """Its name among others in one process."""
        return self.hash[:12]


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register ``backfill`` with the ``bandwatch`` command."""
    parser = subparsers.add_parser(
        "backfill",
        help="measure many commits interleaved in one session",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("range", help="commits of the main line, as git writes them: main~30..main")
    parser.add_argument("--prepare", action="store_true", help="compile and stop; needs no GPU")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes that compile (default: one a core)",
    )
    parser.add_argument("--machine", metavar="NAME", help="as in asv run --machine")
    parser.add_argument("--device", type=int, metavar="K", help="the GPU to use, by its number")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="one of N parts of the grid")
    parser.add_argument(
        "--fresh", action="store_true", help="measure again what results/ holds already"
    )
    parser.add_argument("--config", default="asv.conf.json", metavar="FILE", help="asv's settings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prepare, measure, write; the exit code is 1 where something could not be done."""
    try:
        shard = shards.parse(args.shard)
        if args.jobs < 1:
            raise BackfillError(f"--jobs is {args.jobs}, at least 1 was expected")
        commits = prepare(args.range, args.jobs)
        if args.prepare:
            return 0
        failed = _backfill(commits, shard, args)
    except (BackfillError, ValueError) as error:
        cli.errors.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        cli.errors.print("interrupted; what was measured is kept, the same command goes on")
        return 130
    return int(failed > 0)


# Preparing: no GPU --------------------------------------------------------------------------------


def prepare(commits: str, jobs: int) -> list[Commit]:
    """The commits of a range that change the suite, oldest first, unpacked, compiled and planned.

    The first is the newest such commit at or before the range's start, where there is one: what
    the range changed is told against it. Raises :class:`BackfillError` for a range that git does
    not know, or without such commits.
    """
    hashes = _hashes(commits)
    with _progress() as bar:
        task = bar.add_task("compiling", total=len(hashes))
        waiting = threads = min(jobs, len(hashes))
        each = max(1, jobs // threads)
        with ThreadPoolExecutor(waiting) as pool:

            def one(commit: str) -> Commit:
                prepared = _prepare(commit, each)
                bar.advance(task)
                return prepared

            return list(pool.map(one, hashes))


def _hashes(commits: str) -> list[str]:
    if ".." not in commits:
        raise BackfillError(f"range {commits!r}: expected A..B, such as main~30..main")
    listed = ["rev-list", "--first-parent", "--reverse"]
    found = _git(*listed, commits, "--", SUITE).split()
    if not found:
        raise BackfillError(f"no commit of {commits} changes {SUITE}")
    start = commits.partition("..")[0]
    before = _git("rev-list", "--first-parent", "-1", start or "HEAD", "--", SUITE).split()
    return [*before, *found]


def _prepare(commit: str, jobs: int) -> Commit:
    folder = LOCAL / "suites" / commit[:12]
    suite = folder / SUITE
    if not suite.is_dir() and _git("ls-tree", commit, SUITE):
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit, SUITE], capture_output=True, check=True)
        partial = folder.with_name(f".{folder.name}.{os.getpid()}")
        partial.mkdir()
        subprocess.run(["tar", "x", "-C", str(partial)], input=archive.stdout, check=True)
        os.replace(partial, folder)
    planned = LOCAL / "plans" / f"{commit[:12]}-{_harness()}.json"
    if not suite.is_dir():
        return Commit(commit, suite.absolute(), {})
    if not planned.exists():
        planned.parent.mkdir(parents=True, exist_ok=True)
        partial = planned.with_name(f".{planned.name}.{os.getpid()}")
        path = os.pathsep.join([str(suite.parent.absolute()), os.getcwd()])
        done = subprocess.run(
            [sys.executable, "-m", "asv_bench.sides", "plan", str(partial)],
            env={**os.environ, "PYTHONPATH": path, "BANDWATCH_JOBS": str(jobs)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BackfillError(f"{commit[:12]} cannot be planned:\n{done.stderr.strip()[-2000:]}")
        os.replace(partial, planned)
    found = json.loads(planned.read_text())
    if not Path(found["suite"]).samefile(suite):
        raise BackfillError(f"{planned} is of {found['suite']}, not of {suite}; delete it")
    return Commit(commit, suite.absolute(), found["plan"])


def _harness() -> str:
    """Changes with all that decides a plan beside the commit: descriptions and versions."""
    from bandwatch.measure.environment import versions

    digest = hashlib.sha256(json.dumps(versions(), sort_keys=True).encode())
    for source in sorted(Path("asv_bench").glob("**/*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def chosen(commits: Sequence[Commit], key: str) -> list[Commit]:
    """Those at which the workload is measured: both sides of every change, and both ends.

    A workload that no commit changes is measured at the newest alone.
    """
    having = [commit for commit in commits if "launches" in commit.plan.get(key, {})]
    changes = [i for i in range(1, len(having)) if changed(having[i - 1], having[i], key)]
    if not changes:
        return having[-1:]
    picked = {0, len(having) - 1, *changes, *(i - 1 for i in changes)}
    return [having[i] for i in sorted(picked)]


def changed(before: Commit, after: Commit, key: str) -> bool:
    """Whether the GPU does something else for the workload."""
    one, other = before.plan[key], after.plan[key]
    if one["digest"] and other["digest"]:
        return one["digest"] != other["digest"]
    return one["launches"] != other["launches"]  # all that is known of the older


def wanted(commits: Sequence[Commit], key: str, known: Known) -> list[Commit]:
    """Those of :func:`chosen` that are not known, and the other sides of their changes.

    A change is told best within one session, so both its sides are measured if one has to be.
    """
    sides = chosen(commits, key)
    if len(sides) == 1 and (key, sides[0].plan[key]["digest"]) in known.work:
        return []
    take = {i for i, one in enumerate(sides) if (one.hash, key) not in known.commits}
    for i in range(1, len(sides)):
        if {i - 1, i} & take and changed(sides[i - 1], sides[i], key):
            take |= {i - 1, i}
    return [sides[i] for i in sorted(take)]


# Measuring ----------------------------------------------------------------------------------------


def _backfill(commits: Sequence[Commit], shard: shards.Shard, args: argparse.Namespace) -> int:
    """Measure and write; returns how many measurements failed."""
    from . import asv_results

    target = asv_results.Target(Path(args.config), args.machine)
    if args.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(args.device)
    spool = _spool(commits, shard)
    keys = [key for key in commits[-1].plan if shard.takes(key)]
    failed = 0
    with Measurer() as measurer:
        header = measurer.header()
        known = Known() if args.fresh else target.known(header)
        jobs = [(key, part) for key in keys for part in _parts(wanted(commits, key, known))]
        done = {(line["key"], side) for line in _lines(spool) for side in line["sides"]}
        todo = [(k, part) for k, part in jobs if not done.issuperset((k, c.side) for c in part)]
        total = sum(len(part) for _, part in todo)
        console.print(
            f"{total} measurements of {len(todo)} workloads at {len(commits)} commits"
            + (f", {len(jobs) - len(todo)} workloads are done" if len(todo) < len(jobs) else "")
        )
        try:
            with _progress() as bar, spool.open("a") as file:
                task = bar.add_task("measuring", total=total)
                for key, part in todo:
                    for line in measurer.measure(key, part):
                        failed += line["record"] is None
                        file.write(json.dumps(line) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                    bar.advance(task, len(part))
        finally:
            written = _write(target, commits, list(_lines(spool)))
    spool.unlink()
    console.print(f"{written} commits in {target.folder}; [bold]bandwatch ingest[/] reads them")
    if failed:
        cli.errors.print(f"[yellow]{failed} measurements ended their process and are left out[/]")
    return failed


def _parts(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    for start in range(0, len(commits), MOST_SIDES):
        yield list(commits[start : start + MOST_SIDES])


def _spool(commits: Sequence[Commit], shard: shards.Shard) -> Path:
    text = json.dumps([[c.hash for c in commits], [shard.index, shard.count], _harness()])
    path = LOCAL / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _lines(spool: Path) -> Iterator[dict[str, Any]]:
    if not spool.exists():
        return
    for line in spool.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last one, of a killed run
            yield json.loads(line)


class Measurer:
    """A process that measures workloads at several commits; started anew when it dies or hangs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._header: dict[str, Any] = {}
        self._session = ""

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def header(self) -> dict[str, Any]:
        """The session line of the sidecars, but for the commit."""
        if self._process is None:
            self._start()
        return self._header

    def measure(self, key: str, commits: Sequence[Commit]) -> Iterator[dict[str, Any]]:
        """Lines of the spool: one, or one a commit where the process died over all together.

        ``record`` is the sidecar line in which each of ``sides`` is a provider, None where a
        process died or hung over that commit alone.
        """
        sides = {one.side: str(one.folder) for one in commits}
        header = self.header()
        record = self._ask({"key": key, "sides": sides})
        if record is None and len(commits) > 1:
            for one in commits:
                yield from self.measure(key, [one])
        else:
            yield {"key": key, "sides": list(sides), "header": header, "record": record}

    def _ask(self, job: Mapping[str, Any]) -> dict[str, Any] | None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        return self._answer(WORKLOAD_SECONDS)

    def _start(self) -> None:
        answers, written = os.pipe()
        # its descriptor is 3 there, whatever it is here
        command = f'exec "$0" -P -m asv_bench.sides measure 3>&{written}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, sys.executable],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None,
            text=True,
            pass_fds=[written],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        os.close(written)
        self._answers = os.fdopen(answers)
        facts = self._answer(START_SECONDS)
        if facts is None:
            raise BackfillError(
                "the measuring process ended at its start and says why above; without a GPU, "
                "--prepare compiles only"
            )
        started = datetime.now(UTC)
        self._header = {
            "session": f"{started:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}",
            "started_at": started.isoformat(timespec="seconds"),
            **facts,
        }

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        ready, _, _ = select.select([self._answers], [], [], seconds)
        line = self._answers.readline() if ready else ""
        if not line:
            self._stop()
            return None
        return json.loads(line)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)  # one stuck in a driver call may never go
        self._answers.close()


# Writing ------------------------------------------------------------------------------------------


def _write(target: Any, commits: Sequence[Commit], lines: Sequence[Mapping[str, Any]]) -> int:
    """Every commit's asv rows and sidecars from the spool; returns how many commits there are."""
    written = 0
    for commit in commits:
        sessions: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        for line in lines:
            if line["record"] is None or commit.side not in line["sides"]:
                continue
            header = {**line["header"], "commit": commit.hash}
            sessions.setdefault(header["session"], (header, []))[1].append(
                of_commit(line["record"], commit, line["sides"], header["session"])
            )
        if sessions:
            target.write(commit.hash, list(sessions.values()))
            written += 1
    return written


def of_commit(
    record: Mapping[str, Any], commit: Commit, sides: Sequence[str], session: str
) -> dict[str, Any]:
    """The sidecar line of one commit, out of one in which each commit is a provider."""
    others = set(sides) - {commit.side}
    providers = {
        "membound" if name == commit.side else name: facts
        for name, facts in record["providers"].items()
        if name not in others
    }
    about = commit.plan[record["key"]]
    line = {**record, "session": session, "providers": providers, "kernels": about["kernels"]}
    line.pop("digest", None)
    return line if about["digest"] is None else line | {"digest": about["digest"]}


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], capture_output=True, text=True)
    if done.returncode:
        raise BackfillError(f"git {args[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
