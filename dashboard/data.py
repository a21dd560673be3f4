"""Reads of the dataset, cached by generation.

A page pins the current generation when it starts to run. Cached frames are shared between sessions
and never changed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import TypeVar

import streamlit as st

from bandwatch.results.dataset import DEFAULT_DIR, Dataset, Generation, current

T = TypeVar("T")


def dataset_dir() -> Path:
    """The folder from ``--dataset``, else from ``$BANDWATCH_DATASET``, else the default one."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--dataset", default=os.environ.get("BANDWATCH_DATASET") or DEFAULT_DIR)
    return Path(parser.parse_known_args(sys.argv[1:])[0].dataset)


def pin() -> Dataset | None:
    """The current generation, open for reading, or None where nothing was ingested yet."""
    generation = current(dataset_dir())
    return None if generation is None else _open(generation)


@st.cache_resource(
    max_entries=2,
    show_spinner=False,
    hash_funcs={Generation: lambda made: str(made.path.resolve())},
)
def _open(generation: Generation) -> Dataset:
    return Dataset(generation)


@st.cache_resource(
    max_entries=512,
    show_spinner=False,
    hash_funcs={
        Dataset: lambda dataset: str(dataset.generation.path.resolve()),
        FunctionType: lambda function: f"{function.__module__}.{function.__qualname__}",
    },
)
def ask(question: Callable[..., T], dataset: Dataset, *args: object, **filters: object) -> T:
    """``question(dataset, ...)`` of :mod:`bandwatch.history`, once per generation and filters."""
    return question(dataset, *args, **filters)


def static_choices(dataset: Dataset) -> dict[str, list[str]]:
    """Ops, directions, dtypes, shapes and metrics that have static facts."""
    columns = ("op", "direction", "dtype", "shape", "metric")
    found = dataset.sql(f"SELECT DISTINCT {', '.join(columns)} FROM static")
    choices = {f"{name}s": sorted(found[name].unique()) for name in columns}
    choices["shapes"].sort(key=lambda shape: [int(n) for n in re.findall(r"\d+", shape)][::-1])
    return choices


def benchmarks(dataset: Dataset, series: tuple[str, ...]) -> list[str]:
    """The asv benchmarks that measure these series."""
    found = dataset.sql(
        "SELECT DISTINCT benchmark FROM points WHERE list_contains($series, series)"
        " AND benchmark IS NOT NULL ORDER BY benchmark",
        {"series": list(series)},
    )
    return list(found["benchmark"])
