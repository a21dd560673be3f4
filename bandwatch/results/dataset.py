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
    """One complete state of the dataset.

    ``rows`` counts them by table; equal ``fingerprint`` means equal input and code (None: unknown).
    ``reused`` is true where ingest found nothing new.
    """

    id: str
    path: Path
    rows: Mapping[str, int]
    fingerprint: str | None
    reused: bool = False


class Dataset:
    """One pinned generation, queried through DuckDB; it does not change while it is open.

    Raises :class:`DatasetError` where its files are gone, damaged or of another version.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self._connection = duckdb.connect(":memory:")
        try:
            for table, schema in TABLES.items():
                path = str(generation.path / f"{table}.parquet").replace("'", "''")
                columns = ", ".join(f'"{name}"' for name in schema.names)
                self._connection.execute(
                    f"CREATE VIEW {table} AS SELECT {columns} FROM read_parquet('{path}')"
                )
        except duckdb.Error as error:
            self.close()
            raise self._unreadable(error) from error

    def sql(
        self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Rows of ``query`` over the tables of :mod:`bandwatch.results.schema`.

        ``params`` fill ``?`` or ``$name`` placeholders. Safe to call from several threads.
        """
        with self._connection.cursor() as cursor:
            try:
                return cursor.execute(query, params).df()
            except (duckdb.IOException, duckdb.InvalidInputException) as error:
                raise self._unreadable(error) from error

    def _unreadable(self, error: duckdb.Error) -> DatasetError:
        problem = str(error).splitlines()[0]
        return DatasetError(
            f"{self.generation.path}: removed, damaged or of another version of bandwatch "
            f"({problem}); it is only a cache: delete it and run `bandwatch ingest`"
        )

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def current(dataset_dir: Path | str = DEFAULT_DIR) -> Generation | None:
    """The generation that ``CURRENT`` names, or None where there is none.

    The dataset is a cache, so a damaged one is none: the next ingest makes another.
    """
    root = Path(dataset_dir)
    try:
        name = (root / "CURRENT").read_text(encoding="utf-8").strip()
        path = root / "generations" / name
        facts = json.loads((path / "generation.json").read_text(encoding="utf-8"))
        return Generation(name, path, facts["rows"], facts.get("fingerprint"))
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError):
        return None


def open_dataset(dataset_dir: Path | str = DEFAULT_DIR) -> Dataset:
    """Pin the current generation for reading.

    Raises :class:`DatasetError` where there is none that can be read.
    """
    try:
        generation = current(dataset_dir)
    except OSError as error:
        raise DatasetError(f"{dataset_dir}: the dataset cannot be read ({error})") from error
    if generation is None:
        raise DatasetError(f"{dataset_dir}: no dataset here; run `bandwatch ingest` first")
    return Dataset(generation)
