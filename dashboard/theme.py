"""Colours and the one Plotly template, light and dark.

The hues are those of Okabe and Ito, told apart with every common colour blindness, darkened or
lightened for contrast with the page. Verdicts also differ in marker, the usual providers in dash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import plotly.graph_objects as go

FONT = '"Source Sans", "Source Sans Pro", system-ui, sans-serif'


@dataclass(frozen=True)
class Ink:
    """The colours of one theme; a pair in the tables below is (light, dark)."""

    text: str
    muted: str
    grid: str
    page: str


_INK = (
    Ink(text="#1f2933", muted="#5f6b7a", grid="#e4e8ee", page="#ffffff"),
    Ink(text="#e8ecf1", muted="#9aa7b6", grid="#2b3440", page="#11161d"),
)

# Providers that have a colour of their own, whatever else a dataset holds.
_KNOWN = {
    "membound": ("#0072b2", "#56b4e9"),
    "eager": ("#b0457f", "#e58fc0"),
    "compile": ("#a87400", "#f0b429"),
    "control": ("#7a8594", "#8f9baa"),
}
_OTHERS = (
    ("#6a51a3", "#b7a6ee"),
    ("#00838f", "#4dd0e1"),
    ("#8d5524", "#d7a377"),
    ("#5b7f00", "#b4d455"),
)
_DASHES = {"membound": "solid", "eager": "dash", "compile": "dashdot", "control": "dot"}


@dataclass(frozen=True)
class Verdict:
    """How a verdict looks: colours (light, dark), Plotly marker, sign in text."""

    colors: tuple[str, str]
    symbol: str
    sign: str


_OTHER_VERDICT = Verdict(("#5f6b7a", "#9aa7b6"), "diamond", "◆")
_WORSE = ("#c2410c", "#ff8a4c")
_BETTER = ("#00795a", "#34d3a2")
VERDICTS = {
    "regression": Verdict(_WORSE, "triangle-down", "▼"),
    "drift": Verdict(_WORSE, "triangle-down-open", "▽"),
    "suspected": Verdict(_WORSE, "triangle-down-open", "▽"),
    "improvement": Verdict(_BETTER, "triangle-up", "▲"),
    "recovered": Verdict(_BETTER, "triangle-up", "✓"),
    "outlier": Verdict(_OTHER_VERDICT.colors, "x-thin", "×"),
}


def ink(dark: bool) -> Ink:
    """Text, grid and page colours of a theme."""
    return _INK[dark]


def verdict(name: str) -> Verdict:
    """The look of a verdict; one not listed looks neutral."""
    return VERDICTS.get(name, _OTHER_VERDICT)


def verdict_color(name: str, dark: bool) -> str:
    """The colour of a verdict in a theme."""
    return verdict(name).colors[dark]


def line_colors(lines: Iterable[str], dark: bool) -> dict[str, str]:
    """A colour for each line's name, from all names of the dataset and not only those shown.

    So a colour stays when other lines are hidden or filtered away.
    """
    names = sorted(set(lines))
    rest = [name for name in names if name not in _KNOWN]
    colors = {name: _KNOWN[name][dark] for name in names if name in _KNOWN}
    return colors | {name: _OTHERS[i % len(_OTHERS)][dark] for i, name in enumerate(rest)}


def dash(line: str) -> str:
    """The dash of a line, so that among the usual ones colour is not the only difference."""
    return _DASHES.get(line, "solid")


def translucent(color: str, alpha: float) -> str:
    """``#rrggbb`` as an ``rgba(...)`` string."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def template(dark: bool) -> go.layout.Template:
    """The template of every chart: transparent ground, quiet grid, left-aligned hovers."""
    colors = ink(dark)
    axis = {
        "gridcolor": colors.grid,
        "linecolor": colors.grid,
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "tickfont": {"size": 11, "color": colors.muted},
        "title": {"font": {"size": 12, "color": colors.muted}, "standoff": 8},
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": colors.text},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "top",
                "yref": "container",
                "font": {"size": 12},
                "title": {"text": ""},
            },
            "hoverlabel": {
                "align": "left",
                "bgcolor": colors.page,
                "bordercolor": colors.grid,
                "font": {"family": FONT, "size": 12, "color": colors.text},
                "namelength": -1,
            },
            "annotationdefaults": {"font": {"size": 12, "color": colors.text}},
            "hovermode": "closest",
            "margin": {"l": 8, "r": 8, "t": 36, "b": 8},
        }
    )
