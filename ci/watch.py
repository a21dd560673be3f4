"""``bandwatch watch``: benchmark the newest commits here, ingest, detect, serve the dashboard.

What is measured here goes to ``.bandwatch/results``, outside git's view; ``results/`` holds the
recorded history that is committed. Both are ingested.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bandwatch import cli
from bandwatch.measure import environment

LOCAL = Path(".bandwatch")
DATASET = LOCAL / "dataset"

_EXAMPLES = """\
examples:
  bandwatch watch                  benchmark the newest commits, then serve the dashboard
  bandwatch watch --commits 10     go further back
  bandwatch watch --commits 0      only show what is recorded
  bandwatch watch --once           stop after the ingest, for scripts
"""

console = Console(highlight=False)


class WatchError(Exception):
    """A step cannot be done; the message says why and how to go on."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register ``watch`` with the ``bandwatch`` command."""
    parser = subparsers.add_parser(
        "watch",
        help="benchmark the newest commits here, ingest, open the dashboard",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--commits",
        type=int,
        default=3,
        metavar="N",
        help="how many of the newest commits that change the kernels (default: %(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="stop after the ingest")
    parser.add_argument(
        "--port", type=int, default=8501, help="first port to try for the dashboard (default: 8501)"
    )
    parser.add_argument(
        "--machine",
        default=platform.node(),
        metavar="NAME",
        help="what asv calls this machine (default: its host name, %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do all steps; with ``--once`` the exit code is 1 where one of them failed."""
    try:
        root = checkout()
        measured = _measure(root, args.commits, args.machine)
        ingested = _ingest(root)
        if args.once:
            return int(not (measured and ingested))
        return _serve(root, args.port)
    except WatchError as error:
        cli.errors.print(f"[red]error:[/] {escape(str(error))}")
        return 1


def checkout(start: Path = Path()) -> Path:
    """The root of the git checkout around ``start``, which must hold ``asv.conf.json``."""
    try:
        root = Path(_git(start, "rev-parse", "--show-toplevel"))
    except FileNotFoundError:
        raise WatchError("git is not installed; it is needed to know the commits") from None
    except subprocess.CalledProcessError:
        raise WatchError(
            f"{start.resolve()} is not in a git checkout, so there are no commits to measure; "
            "`git clone` the repository and run this inside it"
        ) from None
    if not (root / "asv.conf.json").is_file():
        raise WatchError(f"{root} has no asv.conf.json; run this in a checkout of the suite")
    return root


def newest_commits(root: Path, count: int) -> list[str]:
    """At most ``count`` newest commits of HEAD's first-parent line that change the kernels.

    Full hashes, newest first. Others cannot move a number: today's harness measures every commit.
    """
    if count <= 0:
        return []
    try:
        return _git(
            root, "log", "--first-parent", f"-n{count}", "--format=%H", "HEAD", "--", "kernels"
        ).split()
    except subprocess.CalledProcessError as error:
        raise WatchError(f"no commits to measure in {root}: {error.stderr.strip()}") from None


def local_config(root: Path) -> Path:
    """Write asv's configuration with results under ``.bandwatch`` instead of ``results/``."""
    from asv import util

    config = util.load_json(str(root / "asv.conf.json"), js_comments=True)
    config["results_dir"] = str(LOCAL / "results")
    # Beside asv.conf.json, since every path in it is relative to its folder.
    path = root / ".asv.local.json"
    path.write_text(json.dumps(config, indent=1))
    return path


def _measure(root: Path, count: int, machine: str) -> bool:
    """Benchmark what is new; False where asv failed, which is reported but stops nothing."""
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":
        console.print(
            "[yellow]This clone is shallow, so older commits are missing from the history;[/] "
            "`git fetch --unshallow` brings them."
        )
    commits = newest_commits(root, count)
    if not commits:
        console.print("No commits to benchmark.")
        return True
    no_gpu = environment.unavailable()
    (root / LOCAL).mkdir(exist_ok=True)
    ledger = root / LOCAL / "measured.json"
    measured = json.loads(ledger.read_text()) if ledger.exists() else {}
    state = _state(root, not no_gpu, machine)
    todo = [commit for commit in commits if measured.get(commit) != state]
    tier = f"static tier; {no_gpu}" if no_gpu else "GPU and static tier"
    console.print(f"{len(todo)} of the newest {len(commits)} commits to benchmark ({tier})")
    if not todo:
        return True
    log = root / LOCAL / "asv.log"
    code = _run_asv(root, todo, machine, not no_gpu, log)
    if code:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        console.print(tail, style="dim", markup=False)
        console.print(
            f"[red]asv failed with exit code {code};[/] its output is in {log.relative_to(root)}. "
            "Going on with what is recorded."
        )
        return False
    ledger.write_text(json.dumps(measured | dict.fromkeys(todo, state), indent=1))
    return True


def _state(root: Path, gpu: bool, machine: str) -> str:
    """What a measurement depends on beside the commit: a change of it measures again."""
    harness = _git(root, "log", "-1", "--format=%h", "--", "asv_bench")
    versions = [f"{name} {version}" for name, version in environment.versions().items()]
    return ", ".join([machine, "gpu" if gpu else "static", f"asv_bench {harness}", *versions])


def _run_asv(root: Path, commits: Sequence[str], machine: str, gpu: bool, log: Path) -> int:
    from asv.machine import Machine, MachineCollection

    # asv asks its questions about the machine at a console; here the defaults are the answer.
    MachineCollection.save(machine, Machine.get_defaults() | {"machine": machine})
    config = local_config(root)
    command = [sys.executable, "-m", "asv", "run", "--config", str(config), "--machine", machine]
    command += ["HASHFILE:-"] if gpu else ["--bench", "bench_static", "HASHFILE:-"]
    variables = os.environ | {"PYTHONUNBUFFERED": "1"}
    if not gpu:
        variables.setdefault("CUTE_DSL_ARCH", "sm_90a")
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        console=console,
    )
    with bar, log.open("w") as out:
        task = bar.add_task("asv run", total=100)
        process = subprocess.Popen(
            command,
            cwd=root,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        process.stdin.write("\n".join(commits) + "\n")
        process.stdin.close()
        for line in process.stdout:
            out.write(line)
            if found := re.match(r"\[\s*(\d+\.\d+)%\]", line):
                bar.update(task, completed=float(found[1]))
        return process.wait()


def _ingest(root: Path) -> bool:
    """Bring the dataset up to date; False, with the reason printed, where it stays as it was."""
    folders = [str(root / "results"), str(root / LOCAL / "results")]
    return not cli.main(["ingest", *folders, "--repo", str(root), "--dataset", str(root / DATASET)])


def free_port(first: int, tries: int = 20) -> int:
    """The first port from ``first`` on that nothing listens to on this host."""
    for port in range(first, first + tries):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise WatchError(
        f"ports {first} to {first + tries - 1} are all taken; name another with --port"
    )


def _serve(root: Path, first_port: int) -> int:
    port = free_port(first_port)
    app = files("bandwatch.dashboard") / "app.py"
    options = {
        "server.port": port,
        "server.headless": "true",
        "browser.gatherUsageStats": "false",
        "logger.level": "warning",
    }
    command = [sys.executable, "-m", "streamlit", "run", str(app)]
    command += [f"--{name}={value}" for name, value in options.items()]
    command += ["--", f"--dataset={root / DATASET}"]
    server = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL)
    try:
        _wait_until_up(server, port)
        console.print(f"Dashboard: [bold]http://localhost:{port}[/]  (Ctrl-C stops it)")
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.terminate()
        server.wait()


def _wait_until_up(server: subprocess.Popen, port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise WatchError(f"the dashboard stopped at once with exit code {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise WatchError(f"the dashboard did not answer on port {port} within {seconds:.0f} s")


def _git(folder: Path, *args: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(folder), *args], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()
