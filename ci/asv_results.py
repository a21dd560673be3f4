"""Write what was measured outside of ``asv run`` as asv's own result files, with sidecars."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from asv import benchmarks, config, machine, repo, results, runner, util

from bandwatch import sidecar
from bandwatch.measure import known
from bandwatch.results.rows import row_workload

from . import asv_hostenv

Line = Mapping[str, Any]


class Target:
    """The folder of one machine under asv's ``results_dir``.

    Raises ValueError for a machine that asv does not know.
    """

    def __init__(self, settings: Path, machine_name: str | None) -> None:
        self._conf = config.Config.load(str(settings))
        self._repo = repo.get_repo(self._conf)
        name = machine_name or machine.Machine.get_unique_machine_name()
        try:
            machine.MachineCollection.load(name)
        except util.UserError as error:
            raise ValueError(f"{error} `asv machine --machine {name} --yes` describes it") from None
        self._machine = machine.Machine.load(machine_name=name)
        self._environment = asv_hostenv.HostEnvironment(self._conf, "same", {}, {})
        self._rows: dict[tuple[str, str], tuple[dict[str, Any], int]] | None = None

    @property
    def folder(self) -> Path:
        """Where the machine's files lie."""
        return Path(self._conf.results_dir) / self._machine.machine

    def known(self, header: Line) -> known.Measured:
        """What sessions comparable with that of ``header`` measured already."""
        return known.measured(Path(self._conf.results_dir), header)

    def write(self, commit: str, sessions: Sequence[tuple[Line, Sequence[Line]]]) -> None:
        """Add the lines of each session, given with its header, to the commit's files."""
        environment = self._environment
        params = {**vars(self._machine), "python": environment.python, **environment.requirements}
        found = results.Results(
            params,
            environment.requirements,
            commit,
            self._repo.get_date(commit),
            environment.python,
            environment.name,
            environment.env_vars,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._machine.save(self._conf.results_dir)
        found.load_data(self._conf.results_dir)
        path = (
            self.folder
            / Path(results.get_filename(self._machine.machine, commit, environment.name)).name
        )
        for header, lines in sorted(sessions, key=lambda one: one[0]["started_at"]):
            self._add(found, lines, datetime.fromisoformat(header["started_at"]))
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".") as folder:
                spool = Path(folder) / "session"
                writer = sidecar.Writer(spool, header)
                for line in lines:
                    writer.append(line)
                asv_hostenv.deliver(spool, path)
        found.save(self._conf.results_dir)

    def _add(self, found: results.Results, lines: Sequence[Line], started: datetime) -> None:
        by_benchmark: dict[str, dict[int, Line]] = {}
        for line in lines:
            for provider, facts in line["providers"].items():
                if row := self._row(line["key"], provider):
                    by_benchmark.setdefault(row[0]["name"], {})[row[1]] = facts
        for name, chosen in by_benchmark.items():
            benchmark = self._known_rows()[name]
            count = math.prod(len(axis) for axis in benchmark["params"])
            values: list[Any] = [math.nan] * count
            samples: list[Any] = [None] * count
            for index, facts in chosen.items():
                if facts["verdict"] == "failed":
                    values[index] = None
                elif facts["samples"]:
                    samples[index] = [seconds for _, _, seconds in facts["samples"]]
                    values[index] = 0.0  # asv computes it from the samples
            number = [None if one is None else 1 for one in samples]
            result = runner.BenchmarkResult(values, samples, number, 0, "", None)
            found.add_result(
                benchmark, result, started, record_samples=True, selected_idx=set(chosen)
            )

    def _row(self, key: str, provider: str) -> tuple[dict[str, Any], int] | None:
        """The benchmark and the position among its parameters; None where asv has no such row."""
        if self._rows is None:
            self._rows = {}
            for benchmark in self._known_rows().values():
                _, class_name, method = benchmark["name"].rsplit(".", 2)
                if method != "track_time":
                    continue
                for index, combination in enumerate(itertools.product(*benchmark["params"])):
                    dtype, case, name = (text.strip("'") for text in combination)
                    workload = row_workload(class_name, dtype, case)
                    if workload is not None:
                        self._rows[workload.key, name] = (benchmark, index)
        return self._rows.get((key, provider))

    def _known_rows(self) -> dict[str, dict[str, Any]]:
        if not hasattr(self, "_benchmarks"):
            head = self._repo.get_hash_from_name(self._conf.branches[0])
            self._benchmarks = benchmarks.Benchmarks.discover(
                self._conf, self._repo, [self._environment], [head]
            )
            self._benchmarks.save()
        return self._benchmarks
