"""Few combinations of many choices, such that each two values meet in one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Random completions of a pair from which the one with the most new pairs is taken.
_TRIES = 40


def pairwise(
    choices: Mapping[str, Sequence[Any]], accepts: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Combinations in which every two values of two choices meet, where ``accepts`` allows any.

    The same each time; those that cover most come first.
    """
    rng = random.Random(0)
    names = list(choices)
    if len(names) == 1:
        return [one for value in choices[names[0]] if accepts(one := {names[0]: value})]
    missing = {
        ((a, i), (b, j)): None
        for a, b in itertools.combinations(names, 2)
        for i in range(len(choices[a]))
        for j in range(len(choices[b]))
    }
    found = []
    while missing:
        pair = next(iter(missing))
        best: tuple[int, dict[str, int]] | None = None
        for _ in range(_TRIES):
            picked = {name: rng.randrange(len(choices[name])) for name in names} | dict(pair)
            if accepts({name: choices[name][i] for name, i in picked.items()}):
                gain = sum(one in missing for one in _pairs(picked))
                if best is None or gain > best[0]:
                    best = gain, picked
        if best is None:
            del missing[pair]  # the two exclude each other
            continue
        for one in _pairs(best[1]):
            missing.pop(one, None)
        found.append({name: choices[name][i] for name, i in best[1].items()})
    return found


def _pairs(picked: Mapping[str, int]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    return list(itertools.combinations(picked.items(), 2))
