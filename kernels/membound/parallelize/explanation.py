"""What was replaced in the graphs of a parallelized function, and why other ops were not."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
_TORCH = str(Path(torch.__file__).parent) + os.sep


@dataclasses.dataclass(frozen=True)
class Entry:
    """An op of the graph for which this suite has a kernel."""

    op: str  #: what was recognised, such as "rms_norm" or "silu * up"
    where: str  #: "file:line in function" of the user's code, or "" where torch does not tell
    replaced: bool
    what: str  #: what runs in its place, or the reason why torch's op was kept

    @property
    def outcome(self) -> str:
        """``what``, and whether it is a reason."""
        return self.what if self.replaced else f"kept: {self.what}"


class Explanation:
    """The entries of every graph that was captured so far; printed as a table.

    torch captures a function again for inputs that its guards do not let pass (another dtype or
    device, a second shape), and in several graphs where it cannot capture the whole.
    """

    def __init__(self) -> None:
        self._graphs: dict[object, tuple[Entry, ...]] = {}

    def add(self, graph: object, entries: list[Entry]) -> None:
        """Note a graph; one that was noted before, because a capture began again, is replaced."""
        self._graphs[graph] = tuple(entries)

    @property
    def graphs(self) -> list[tuple[Entry, ...]]:
        """The entries of each graph, in the order of capture."""
        return list(self._graphs.values())

    @property
    def entries(self) -> list[Entry]:
        """The entries of all graphs."""
        return [entry for graph in self.graphs for entry in graph]

    @property
    def replaced(self) -> list[Entry]:
        """The entries of ops in whose place a kernel runs."""
        return [entry for entry in self.entries if entry.replaced]

    @property
    def kept(self) -> list[Entry]:
        """The entries of ops that stay torch's."""
        return [entry for entry in self.entries if not entry.replaced]

    def __str__(self) -> str:
        if not self._graphs:
            return "Nothing has been captured yet: call the function first."
        return "\n\n".join(
            table(entries, f"graph {number}" if len(self._graphs) > 1 else "")
            for number, entries in enumerate(self.graphs, 1)
        )

    __repr__ = __str__


def table(entries: Sequence[Entry], title: str = "") -> str:
    """One graph's entries in aligned columns, equal ones in one line, under their number."""
    replaced = sum(entry.replaced for entry in entries)
    head = f"{title}: " if title else ""
    head += f"{replaced} of {len(entries)} ops replaced" if entries else "no op that is known here"
    rows = [
        (f"{times}x" if times > 1 else "", entry.op, entry.where, entry.outcome)
        for entry, times in Counter(entries).items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join([head, *(f"  {line}" for line in lines)])


def where(node: torch.fx.Node) -> str:
    """Where the user's code calls the node: its innermost frame outside torch."""
    frames = list(_FRAME.finditer(node.stack_trace or ""))
    if not frames:
        return ""
    ours = [frame for frame in frames if not frame["file"].startswith(_TORCH)]
    frame = (ours or frames)[-1]
    path = os.path.relpath(frame["file"])
    file = frame["file"] if path.startswith("..") else path
    return f"{file}:{frame['line']} in {frame['function']}"
