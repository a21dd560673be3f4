"""One way to write numbers, times, commits and text that others chose.

Commit subjects, authors, benchmark and GPU names are untrusted: they reach the page as plain text
(``clean``) or, where a component reads markup, escaped (``html``).
"""

from __future__ import annotations

import html as _html
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

import pandas as pd

MISSING = "n/a"
MINUS = "\u2212"
THIN = "\u202f"  # narrow no-break space between a number and its unit


def clean(text: object, limit: int = 120) -> str:
    """``text`` as one line without control or direction-changing characters, at most ``limit``."""
    if _missing(text):
        return ""
    spaced = re.sub(rf"[^\S{THIN}]+", " ", str(text)).strip()
    line = "".join(c for c in spaced if unicodedata.category(c)[0] != "C")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def html(text: object, limit: int = 120) -> str:
    """``clean`` text escaped for HTML, which is also what Plotly reads in labels and hovers."""
    return _html.escape(clean(text, limit))


def short(commit: object) -> str:
    """The first 8 digits of a commit, as in result files' names; nothing else gets through."""
    return "".join(c for c in clean(commit)[:8] if c.isalnum())


def gpu(name: object) -> str:
    """The name of a GPU model; without a sidecar it is unknown."""
    return "unknown GPU" if name == "unknown" else clean(name)


def number(value: float, digits: int = 1) -> str:
    """``1234.56`` as ``1,234.6``, with a true minus sign; ``n/a`` for a missing value."""
    return MISSING if _missing(value) else f"{value:,.{digits}f}".replace("-", MINUS)


def change(effect: float) -> str:
    """A log ratio as a signed percentage: ``log(0.9)`` is ``−10.0 %``."""
    if _missing(effect):
        return MISSING
    return f"{math.expm1(effect) * 100:+.1f}{THIN}%".replace("-", MINUS)


def change_interval(low: float, high: float) -> str:
    """The interval of a log ratio, as percentages."""
    return "" if _missing(low) or _missing(high) else f"{change(low)} to {change(high)}"


def when(moment: object) -> str:
    """A time as ``2026-12-01 04:20 UTC``."""
    return (
        MISSING
        if _missing(moment)
        else f"{pd.Timestamp(moment).tz_convert('UTC'):%Y-%m-%d %H:%M} UTC"
    )


def age(moment: object, now: datetime | None = None) -> str:
    """How long ago: ``just now``, ``5 minutes ago``, ``3 days ago``."""
    if _missing(moment):
        return MISSING
    seconds = ((now or datetime.now(UTC)) - pd.Timestamp(moment)).total_seconds()
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            return plural(int(seconds // size), unit) + " ago"
    return "just now"


def plural(count: int, noun: str) -> str:
    """``1 commit``, ``2 commits``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join(*parts: object) -> str:
    """The parts that say something, joined by a middle dot."""
    return " · ".join(str(part) for part in parts if part)


def address(page: str, params: Mapping[str, str]) -> str:
    """A relative address of a page with its query parameters."""
    return f"{page}?{urlencode(params)}"


@dataclass(frozen=True)
class Metric:
    """How one metric is read from the tables, drawn and written.

    ``scale`` turns the stored value into the axis unit; ``low`` and ``high`` name the interval's
    columns, empty where the metric has none.
    """

    name: str
    label: str
    axis: str
    unit: str
    scale: float = 1.0
    digits: int = 1
    higher_is_better: bool = False
    low: str = ""
    high: str = ""

    @property
    def suffix(self) -> str:
        """The unit as it follows a number."""
        return self.unit if self.unit in ("", "×") else THIN + self.unit

    def text(self, value: float) -> str:
        """A stored value with its unit: ``78.1 %``, ``1.42×``."""
        if _missing(value):
            return MISSING
        return number(value * self.scale, self.digits) + self.suffix

    def interval(self, low: float, high: float) -> str:
        """A stored interval with its unit: ``77.9–78.4 %``; empty without one."""
        if _missing(low) or _missing(high):
            return ""
        return f"{number(low * self.scale, self.digits)}–{self.text(high)}"


TIMED = {
    metric.name: metric
    for metric in (
        Metric(
            "utilisation",
            "Utilisation",
            "Utilisation (% of control)",
            "%",
            scale=100,
            higher_is_better=True,
            low="utilisation_low",
            high="utilisation_high",
        ),
        Metric(
            "bytes_per_second",
            "Bandwidth",
            "Bandwidth (GB/s)",
            "GB/s",
            scale=1e-9,
            digits=0,
            higher_is_better=True,
            low="bytes_per_second_low",
            high="bytes_per_second_high",
        ),
        Metric(
            "seconds",
            "Time",
            "Time (µs)",
            "µs",
            scale=1e6,
            low="seconds_low",
            high="seconds_high",
        ),
        Metric(
            "call_seconds",
            "Call time",
            "Time of a call from Python, host and GPU (µs)",
            "µs",
            scale=1e6,
        ),
        Metric(
            "speedup",
            "Speed-up",
            "Speed-up over eager (×)",
            "×",
            digits=2,
            higher_is_better=True,
            low="speedup_low",
            high="speedup_high",
        ),
    )
}


def metric(name: str) -> Metric:
    """The metric of that name; one that is not timed is a static count, share or size."""
    if name in TIMED:
        return TIMED[name]
    label = clean(name).replace("_", " ").capitalize()
    if name.endswith("_share"):
        return Metric(name, label, f"{label} (%)", "%", scale=100)
    return Metric(name, label, label, "B" if name.endswith("_bytes") else "", digits=0)


def _missing(value: object) -> bool:
    return value is None or value is pd.NaT or value is pd.NA or value != value  # noqa: PLR0124
