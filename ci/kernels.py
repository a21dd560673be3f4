"""``bandwatch kernels``: fill, list and clean the cache of compiled kernels; needs no GPU."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import runpy
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bandwatch import cli

if TYPE_CHECKING:
    from membound.runtime import Entry, Kernel

_ABOUT = """\
Fill, list and clean the cache of compiled kernels; needs no GPU.

A process that finds its kernels in the cache starts without compiling them. The cache is
$MEMBOUND_CACHE_DIR, else ~/.cache/membound; it can be copied to another machine that has the same
versions of the packages.
"""
_BUILD = """\
Tensors are made on torch's meta device, where nothing is computed: do not name a device, and do
not read values.

examples:
  bandwatch kernels build calls.py           what the calls in this file launch, backward too
  bandwatch kernels build -c 'membound.softmax(torch.empty(32768, 4096, dtype=torch.bfloat16))'
  bandwatch kernels build --grid             what the benchmarks of this checkout launch

calls.py:
  import torch, membound
  x = torch.empty(32768, 4096, dtype=torch.bfloat16, requires_grad=True)
  membound.softmax(x).sum().backward()
"""
_LIST = """\
examples:
  bandwatch kernels list                     all kernels, with registers and spills
  bandwatch kernels list softmax             those with "softmax" in their names
  bandwatch kernels list --json              the same for scripts
"""
_CLEAN = """\
examples:
  bandwatch kernels clean                    delete what this version cannot use
  bandwatch kernels clean --all              delete all kernels
"""


class KernelsError(Exception):
    """Something asked for cannot be done; the message says why and how to go on."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register ``kernels`` with the ``bandwatch`` command."""
    parser = subparsers.add_parser(
        "kernels",
        help="compile kernels ahead, list what is compiled",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    build = _add(commands, "build", _build, "compile what calls will launch, in parallel", _BUILD)
    build.add_argument("files", nargs="*", type=Path, metavar="FILE", help="Python files to run")
    build.add_argument(
        "-c", dest="code", metavar="CODE", help="Python code to run; it knows torch and membound"
    )
    build.add_argument(
        "--grid", action="store_true", help="what the benchmarks of this checkout launch"
    )
    build.add_argument(
        "--jobs", type=_positive, metavar="N", help="processes that compile (default: one a core)"
    )

    listing = _add(commands, "list", _list, "what is in the cache", _LIST)
    listing.add_argument("name", nargs="?", default="", help="only kernels with this in their name")
    listing.add_argument("--json", action="store_true", help="print JSON")

    clean = _add(commands, "clean", _clean, "delete kernels that cannot be used any more", _CLEAN)
    clean.add_argument("--all", action="store_true", help="delete all kernels")


def _add(
    commands: argparse._SubParsersAction, name: str, run: Any, summary: str, epilog: str
) -> argparse.ArgumentParser:
    def reported(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except KernelsError as error:
            cli.errors.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
            return 1

    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=reported)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


# Build --------------------------------------------------------------------------------------------


def _build(args: argparse.Namespace) -> int:
    if not (args.files or args.code or args.grid):
        raise KernelsError(
            "nothing to build: name a Python file with calls, or give -c CODE or --grid; "
            "see bandwatch kernels build --help"
        )
    runtime = _suite().runtime
    kernels: dict[Kernel, None] = {}
    for file in args.files:
        kernels |= dict.fromkeys(_of_file(file))
    if args.code:
        kernels |= dict.fromkeys(_of_code(args.code))
    if args.grid:
        kernels |= dict.fromkeys(_of_grid())

    missing = [kernel for kernel in kernels if runtime.find(kernel) is None]
    began = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=cli.errors,
        transient=True,
        disable=not cli.errors.is_terminal,
    )
    try:
        with bar:
            task = bar.add_task("compiling", total=len(missing))
            runtime.build(missing, args.jobs, lambda kernel: bar.advance(task))
    except runtime.MissingDependency as error:
        raise KernelsError(str(error)) from error
    cli.console.print(
        f"{_count(len(missing))} compiled in {time.monotonic() - began:.1f} s, "
        f"{len(kernels) - len(missing)} were there: {escape(str(runtime.cache_folder()))}",
        soft_wrap=True,
    )
    return 0


def _suite() -> ModuleType:
    try:
        import membound
    except ModuleNotFoundError as error:
        raise KernelsError(f"{error}: pip install 'bandwatch[kernels]'") from error
    return membound


def _of_file(file: Path) -> list[Kernel]:
    if not file.is_file():
        raise KernelsError(f"{file}: no such file")
    with _recorded(str(file)) as kernels, _as_script(file):
        runpy.run_path(str(file), run_name="__main__")
    return kernels


def _of_code(code: str) -> list[Kernel]:
    import torch

    with _recorded("<code>") as kernels:
        exec(compile(code, "<code>", "exec"), {"torch": torch, "membound": _suite()})
    return kernels


@contextlib.contextmanager
def _recorded(source: str) -> Iterator[list[Kernel]]:
    """Fills the list with what is launched meanwhile; errors name the line of ``source``."""
    import torch

    kernels: list[Kernel] = []
    try:
        with _suite().runtime.record_launches() as launches, torch.device("meta"):
            yield kernels
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == source]
        if isinstance(error, SyntaxError) and error.filename == source:
            lines = [error.lineno]
        where = f"{source}:{lines[-1]}" if lines else source
        hint = (
            "; name no device: tensors are made on the meta device" if "CUDA" in str(error) else ""
        )
        raise KernelsError(f"{where}: {type(error).__name__}: {error}{hint}") from error
    kernels += dict.fromkeys(launch.kernel for launch in launches)
    if not kernels:
        raise KernelsError(f"{source} launches no kernel of membound")


@contextlib.contextmanager
def _as_script(file: Path) -> Iterator[None]:
    """As ``python FILE`` would: without our arguments, and with the modules beside the file."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [str(file)], [str(file.resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def _of_grid() -> list[Kernel]:
    """The kernels of the workloads that this checkout's benchmarks describe."""
    suite = _suite()
    workloads = _benchmarks(Path())
    ops = workloads.ops(suite)
    kernels: dict[Kernel, None] = {}
    for workload in workloads.grid():
        if workload.op not in ops:
            continue
        try:
            kernels |= dict.fromkeys(workloads.kernels(suite, ops[workload.op], workload))
        except NotImplementedError as error:
            cli.errors.print(f"[yellow]left out:[/] {escape(f'{workload.key}: {error}')}")
    return list(kernels)


def _benchmarks(start: Path) -> ModuleType:
    """The module ``workloads`` in the folder of benchmarks that asv.conf.json names.

    It is a plugin: found by that path, never by its name.
    """
    start = start.resolve()
    for root in (start, *start.parents):
        if (root / "asv.conf.json").is_file():
            break
    else:
        raise KernelsError(f"no asv.conf.json in {start} or above it; run this in a checkout")
    try:
        from asv import util
    except ModuleNotFoundError as error:
        raise KernelsError(f"{error}: pip install 'bandwatch[bench]'") from error
    config = util.load_json(str(root / "asv.conf.json"), js_comments=True)
    folder = root / config.get("benchmark_dir", "benchmarks")
    if not (folder / "workloads").is_dir() and not (folder / "workloads.py").is_file():
        raise KernelsError(f"{folder} describes no workloads")
    if folder.name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        sys.modules[folder.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[folder.name])
    return importlib.import_module(f"{folder.name}.workloads")


# List and clean -----------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    runtime = _suite().runtime
    entries = [entry for entry in runtime.entries() if args.name in entry.folder.name]
    rows = _rows(entries)
    if args.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    if not rows:
        named = f" with {args.name!r} in its name" if args.name else ""
        cli.console.print(f"no kernel{named} in {escape(str(runtime.cache_folder()))}")
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("kernel", overflow="fold")
    for name in ("registers", "spills", "shared", "size", "toolchain", "age", "state"):
        right = name in ("registers", "spills", "shared", "size", "age")
        table.add_column(name, no_wrap=True, justify="right" if right else "left")
    colours = {"current": "green", "stale": "yellow", "damaged": "red"}
    for row in rows:
        table.add_row(
            row["kernel"],
            _or_unknown(row["registers"]),
            _or_unknown(row["spills"]),
            _or_unknown(row["shared_bytes"], " B"),
            f"{row['size_bytes'] / 1024:.0f} KiB",
            " ".join(row["toolchain"].get(name, "") for name in ("nvidia-cutlass-dsl", "dsl_cuda")),
            _age(row["age_seconds"]),
            f"[{colours[row['state']]}]{row['state']}[/]",
        )
    cli.console.print(table)
    size = sum(row["size_bytes"] for row in rows) / 2**20
    cli.console.print(
        f"{_count(len(rows))}, {size:.1f} MiB in {escape(str(runtime.cache_folder()))}",
        soft_wrap=True,
    )
    return 0


def _rows(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    from bandwatch.measure import static

    sound = [entry.artifact for entry in entries if entry.artifact is not None]
    facts: dict[Path, Any] = {}
    try:
        analysed = static.analyse_all(sound, jobs=4)
        facts = {one.folder: fact for one, fact in zip(sound, analysed, strict=True)}
    except static.StaticAnalysisError as error:
        cli.errors.print(f"[yellow]no registers and spills:[/] {escape(str(error))}")
    return [_row(entry, facts.get(entry.folder)) for entry in entries]


def _row(entry: Entry, facts: Any) -> dict[str, Any]:
    artifact = entry.artifact
    state = "damaged" if artifact is None else "current" if entry.current else "stale"
    return {
        "kernel": entry.folder.name if artifact is None else artifact.name,
        "digest": None if artifact is None else artifact.digest,
        "registers": None if facts is None else facts.registers,
        "spills": None if facts is None else facts.spills,
        "stack_bytes": None if facts is None else facts.stack_bytes,
        "shared_bytes": None if artifact is None else artifact.dynamic_smem,
        "size_bytes": sum(file.stat().st_size for file in entry.folder.iterdir()),
        "toolchain": entry.toolchain,
        "age_seconds": round(time.time() - entry.built_at),
        "state": state,
        "folder": str(entry.folder),
    }


def _clean(args: argparse.Namespace) -> int:
    runtime = _suite().runtime
    entries = runtime.entries()
    unwanted = [entry for entry in entries if args.all or not entry.current]
    try:
        for entry in unwanted:
            entry.remove()
    except OSError as error:
        raise KernelsError(f"cannot delete: {error}") from error
    cli.console.print(
        f"{_count(len(unwanted))} deleted, {len(entries) - len(unwanted)} kept in "
        f"{escape(str(runtime.cache_folder()))}",
        soft_wrap=True,
    )
    return 0


def _count(number: int) -> str:
    return f"{number} kernel{'' if number == 1 else 's'}"


def _or_unknown(value: int | None, unit: str = "") -> str:
    return "?" if value is None else f"{value}{unit}"


def _age(seconds: int) -> str:
    age = timedelta(seconds=seconds)
    if age.days:
        return f"{age.days} d"
    minutes = seconds // 60
    return f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"
