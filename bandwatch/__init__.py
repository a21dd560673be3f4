"""Bandwatch: continuous performance tracking for suites of memory-bound GPU kernels."""

from pathlib import Path

# A wheel holds ci/ and dashboard/ inside this package, a checkout beside it: one name for both.
if not (Path(__file__).parent / "ci").is_dir():
    __path__.append(str(Path(__file__).parents[1]))
