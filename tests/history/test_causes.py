"""The likely cause of an incident, from static facts."""

from __future__ import annotations

import pytest

from bandwatch.detect.causes import likely_cause
from bandwatch.detect.incidents import group
from bandwatch.detect.steps import Change

WORKLOAD = {"op": "softmax", "direction": "forward", "dtype": "float32", "shape": "8x8"}
POINT = WORKLOAD | {"placement": "main", "verdict": "valid", "toolchain": "torch 2", "driver": "5"}


def cause(before: dict, after: dict, verdict="regression", toolchains=("a", "a")) -> str:
    change = Change("s", "utilisation", verdict, 0, 1, *[0.0] * 5, "")
    (incident,) = group([("gpu", change)], ["a" * 40, "b" * 40])
    static = [
        WORKLOAD | {"metric": name, "toolchain": toolchain, "position": position, "value": value}
        for position, (facts, toolchain) in enumerate(zip((before, after), toolchains, strict=True))
        for name, value in facts.items()
    ]
    return likely_cause(incident, {"s": [POINT | {"position": p} for p in (0, 1)]}, static)


@pytest.mark.parametrize(
    "before, after, expected",
    [
        ({"registers": 64}, {"registers": 128}, "registers 64 → 128 (1 of 1 workloads)"),
        ({"registers": 64}, {"registers": 66}, ""),
        (
            {"narrow_access_share": 0.0, "registers": 64},
            {"narrow_access_share": 1.0, "registers": 32},
            "narrow accesses 0 % → 100 % (1 of 1 workloads)",
        ),
        ({"registers": 64}, {"registers": 32}, "registers 64 → 32 (1 of 1 workloads)"),
        ({"idle_warp_share": 0.25}, {"idle_warp_share": 0.27}, ""),
        ({"spills": 0}, {}, ""),
        ({"compile_seconds": 1}, {"compile_seconds": 9}, ""),
    ],
)
def test_telling_moves_are_named_those_for_the_worse_first(before, after, expected):
    assert cause(before, after) == expected


def test_an_improvement_is_explained_by_what_fell():
    before = {"narrow_access_share": 1.0, "registers": 32}
    after = {"narrow_access_share": 0.0, "registers": 64}
    expected = "narrow accesses 100 % → 0 % (1 of 1 workloads)"
    assert cause(before, after, "improvement") == expected


def test_a_version_of_several_words_is_named_whole():
    change = Change("s", "utilisation", "regression", 0, 1, *[0.0] * 5, "")
    (incident,) = group([("gpu", change)], ["a" * 40, "b" * 40])
    versions = ("torch 2.1, local build, cuda 13.0", "torch 2.2, local build, cuda 13.0")
    points = [POINT | {"position": p, "toolchain": v} for p, v in enumerate(versions)]
    assert likely_cause(incident, {"s": points}, []) == "toolchain changed: torch 2.1 → 2.2"


def test_static_facts_of_two_toolchains_are_not_compared():
    assert cause({"spills": 0}, {"spills": 9}, toolchains=("a", "b")) == ""
