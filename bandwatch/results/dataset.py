"""The dataset: complete generations of Parquet tables, replaced as a whole, read without waiting.

A dataset folder holds ``generations/<id>/<table>.parquet`` and ``CURRENT``, which names the
generation to read. It is a cache: asv's files and the sidecars are the truth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from .schema import TABLES

DEFAULT_DIR = Path(".bandwatch/dataset")


class DatasetError(Exception):
    """There is no readable dataset, or results cannot be ingested; the message says what to do."""


@dataclass(frozen=True)
class Generation:
    """One complete state of the dataset. ``reused`` is true where ingest found nothing new."""

    id: str
    path: Path
    rows: Mapping[str, int]
    reused: bool = False


class Dataset:
    """One pinned generation, queried through DuckDB; it does not change while it is open."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self._connection = duckdb.connect(":memory:")
        for table in TABLES:
            path = str(generation.path / f"{table}.parquet").replace("'", "''")
            self._connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{path}')")

    def sql(
        self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Rows of ``query`` over the tables of :mod:`bandwatch.results.schema`.

        ``params`` fill ``?`` or ``$name`` placeholders. Safe to call from several threads.
        """
        with self._connection.cursor() as cursor:
            return cursor.execute(query, params).df()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def current(dataset_dir: Path | str = DEFAULT_DIR) -> Generation | None:
    """The generation that ``CURRENT`` names, or None where nothing was ingested yet."""
    root = Path(dataset_dir)
    try:
        name = (root / "CURRENT").read_text().strip()
        facts = json.loads((root / "generations" / name / "generation.json").read_text())
    except FileNotFoundError:
        return None
    return Generation(name, root / "generations" / name, facts["rows"])


def open_dataset(dataset_dir: Path | str = DEFAULT_DIR) -> Dataset:
    """Pin the current generation for reading.

    Raises :class:`DatasetError` where there is none.
    """
    generation = current(dataset_dir)
    if generation is None:
        raise DatasetError(f"{dataset_dir}: no dataset here; run `bandwatch ingest` first")
    return Dataset(generation)
