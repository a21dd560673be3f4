"""Chart builders: frames in, Plotly figures out. No Streamlit, no statistics.

Traces are SVG (``Scatter``), never WebGL, of which a browser draws only about eight a page. Plotly
reads a subset of HTML in names, titles and hovers, so every text from the data is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from . import format, theme
from .format import Metric

#: What :func:`history` reads: one row per point, ``panel`` names its subplot, ``line`` its line.
LINE_COLUMNS = (
    "panel",
    "line",
    "series",
    "position",
    "commit",
    "subject",
    "author",
    "committed_at",
    "value",
    "low",
    "high",
    "verdict",
    "reason",
    "note",
)

_CROWD = 60  # points of a line from which on their dots would touch
_CONDITIONS = ("sm_clock_mhz", "temperature_c", "samples")


def timed_lines(points: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Points of the main branch as ``LINE_COLUMNS``: a panel per shape, a line per provider.

    Values stay in the units of the table; the metric's scale is applied where they are drawn.
    """
    frame = points[points["placement"] == "main"]
    if metric.name == "bytes_per_second":
        frame = frame.assign(
            bytes_per_second_low=frame["bytes"] / frame["seconds_high"],
            bytes_per_second_high=frame["bytes"] / frame["seconds_low"],
        )
    return frame.assign(
        panel=frame["shape"],
        line=frame["provider"],
        value=frame[metric.name],
        low=frame[metric.low] if metric.low else math.nan,
        high=frame[metric.high] if metric.high else math.nan,
        note=[_conditions(row) for row in frame[list(_CONDITIONS)].to_dict("records")],
    )[list(LINE_COLUMNS)].dropna(subset="value")


def static_lines(facts: pd.DataFrame) -> pd.DataFrame:
    """Static facts as ``LINE_COLUMNS``: a panel per shape, a line per toolchain, no intervals."""
    frame = facts.dropna(subset=["position", "value"])
    blank = {"author": "", "low": math.nan, "high": math.nan, "verdict": "valid"}
    return frame.assign(panel=frame["shape"], line=frame["toolchain"], reason="", note="", **blank)[
        list(LINE_COLUMNS)
    ]


def history(
    lines: pd.DataFrame,
    commits: pd.DataFrame,
    changes: pd.DataFrame,
    metric: Metric,
    colors: Mapping[str, str],
    *,
    panels: Sequence[str],
    dates: bool = False,
    from_zero: bool = False,
    dark: bool = False,
    narrow: bool = False,
) -> go.Figure:
    """Lines over the commits of the main branch, one subplot per panel.

    ``lines`` has ``LINE_COLUMNS``, ``commits`` and ``changes`` the columns of COMMITS and CHANGES;
    ``colors`` maps each line to its colour and ``panels`` orders the subplots. Commits stand at
    equal distances in first-parent order, or at their dates. Runs of neighbouring commits are
    joined by a solid line, gaps (unmeasured or invalid commits) by a faint dotted one; invalid
    points are hollow and belong to no line; changes are marked on their series.
    """
    columns = 1 if narrow else {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[format.html(panel) for panel in panels] if len(panels) > 1 else None,
        shared_xaxes="all" if len(panels) > 1 else False,
        horizontal_spacing=0.05,
        vertical_spacing=0.25 / rows,
    )
    named: set[str] = set()
    for index, panel in enumerate(panels):
        where = {"row": index // columns + 1, "col": index % columns + 1}
        inside = lines[lines["panel"] == panel]
        for line in colors:
            points = inside[inside["line"] == line].sort_values("position", kind="stable")
            if points.empty:
                continue
            style = _LineStyle(line, colors[line], line not in named, metric, dates)
            figure.add_traces([*_line_traces(points, style)], rows=where["row"], cols=where["col"])
            named.add(line)
        for trace in _change_traces(inside, changes, metric, dates, dark):
            figure.add_trace(trace, **where)
    _commit_axis(figure, lines, commits, ticks=4 if narrow else 14 // columns, dates=dates)
    figure.update_xaxes(showticklabels=True)
    figure.update_yaxes(
        rangemode="tozero" if from_zero else "normal",
        ticksuffix=metric.suffix,
        title_text=metric.axis if len(panels) == 1 else None,
    )
    figure.update_annotations(font_size=12)  # the subplots' titles
    figure.update_layout(
        template=theme.template(dark),
        height=440 if len(panels) == 1 else 70 + 235 * rows,
        margin_t=30 if len(panels) == 1 else 56,
        legend_itemsizing="constant",
    )
    return figure


def sparkline(
    positions: Sequence[int],
    values: Sequence[float],
    commits: pd.DataFrame,
    metric: Metric,
    color: str,
    *,
    dark: bool = False,
) -> go.Figure:
    """The last commits of one line without axes; the newest point is marked.

    ``positions`` and ``values`` run side by side; ``commits`` gives the hover its subjects.
    """
    known = commits.set_index("position")
    x, y, hover = [], [], []
    for position, value in zip(positions, values, strict=True):
        if x and position - x[-1] > 1:
            x.append(x[-1] + 1)
            y.append(None)
            hover.append("")
        x.append(position)
        y.append(value * metric.scale)
        hover.append(_commit_hover(known.loc[position], metric.text(value)))
    figure = go.Figure()
    line = {"color": color, "width": 1.5}
    dots = {"size": 4, "color": color}
    if len(x) > 1:
        gap = go.Scatter(x=x, y=y, mode="lines", connectgaps=True, hoverinfo="skip")
        figure.add_trace(gap.update(line={**line, "dash": "dot", "width": 1}, opacity=0.5))
    figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="lines+markers",
            line=line,
            marker=dots,
            hovertext=hover,
            hoverinfo="text",
        )
    )
    newest = go.Scatter(x=x[-1:], y=y[-1:], mode="markers", hoverinfo="skip")
    figure.add_trace(newest.update(marker={"size": 9, "color": color}))
    figure.update_layout(
        template=theme.template(dark),
        height=76,
        showlegend=False,
        margin={"l": 6, "r": 8, "t": 8, "b": 8},
        xaxis_visible=False,
        yaxis_visible=False,
    )
    return figure


def effects(workloads: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Change of each affected workload with its 95 % interval, the largest at the top.

    ``workloads`` has the columns of CHANGES and the workload's; the axis is the change in percent.
    """
    frame = workloads.iloc[::-1]
    labels = [
        f"{format.html(row['op'])} {format.html(row['direction'])}<br>{format.html(row['dtype'])} "
        f"{format.join(format.html(row['shape']), format.html(row['provider']))}"
        for row in frame.to_dict("records")
    ]
    percent = [math.expm1(effect) * 100 for effect in frame["effect"]]
    low = [
        _percent(value, middle) for value, middle in zip(frame["effect_low"], percent, strict=True)
    ]
    high = [
        _percent(value, middle) for value, middle in zip(frame["effect_high"], percent, strict=True)
    ]
    hover = [_change_hover(row) for row in frame.to_dict("records")]
    colors = [theme.verdict_color(name, dark) for name in frame["verdict"]]
    figure = go.Figure(
        go.Scatter(
            x=percent,
            y=labels,
            mode="markers",
            marker={
                "size": 10,
                "color": colors,
                "symbol": [theme.verdict(name).symbol for name in frame["verdict"]],
            },
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [b - a for a, b in zip(percent, high, strict=True)],
                "arrayminus": [a - b for a, b in zip(percent, low, strict=True)],
                "color": theme.ink(dark).muted,
                "thickness": 1.5,
                "width": 4,
            },
            hovertext=hover,
            hoverinfo="text",
        )
    )
    figure.add_vline(x=0, line={"color": theme.ink(dark).muted, "width": 1})
    figure.update_layout(
        template=theme.template(dark),
        height=60 + 40 * len(frame),
        xaxis={"title": {"text": "Change (%)"}, "ticksuffix": f"{format.THIN}%"},
        margin_t=8,
    )
    return figure


def workload_names(frame: pd.DataFrame) -> list[str]:
    """``softmax forward bfloat16 32768x4096 · membound`` for each row, as plain text."""
    names = []
    for row in frame.to_dict("records"):
        keys = ("op", "direction", "dtype", "shape", "options")
        workload = " ".join(filter(None, (format.clean(row[key]) for key in keys)))
        names.append(format.join(workload, format.clean(row["provider"])))
    return names


class _LineStyle:
    """What the traces of one line have in common."""

    def __init__(self, line: str, color: str, named: bool, metric: Metric, dates: bool) -> None:
        self.color = color
        self.dash = theme.dash(line)
        self.metric = metric
        self.dates = dates
        self.common = {"name": format.html(line), "legendgroup": format.html(line)}
        self.named = named


def _line_traces(points: pd.DataFrame, style: _LineStyle) -> list[go.Scatter]:
    valid = points[points["verdict"] == "valid"]
    invalid = points[points["verdict"] != "valid"]
    traces = []
    runs = _runs(valid)
    if band := _band(runs, style):
        traces.append(band)
    if len(runs) > 1:
        traces.append(
            go.Scatter(
                x=_x(valid, style.dates),
                y=valid["value"] * style.metric.scale,
                mode="lines",
                line={"color": style.color, "width": 1, "dash": "dot"},
                opacity=0.5,
                hoverinfo="skip",
                showlegend=False,
                **style.common,
            )
        )
    x, y, hover = [], [], []
    for run in runs:
        if x:
            x.append(x[-1])
            y.append(None)
            hover.append("")
        x += _x(run, style.dates)
        y += list(run["value"] * style.metric.scale)
        hover += [_point_hover(row, style.metric) for row in run.to_dict("records")]
    traces.append(
        go.Scatter(
            x=x,
            y=y,
            mode="lines+markers",
            line={"color": style.color, "width": 2, "dash": style.dash},
            marker={"size": 6 if len(valid) <= _CROWD else 3, "color": style.color},
            hovertext=hover,
            hoverinfo="text",
            showlegend=style.named,
            **style.common,
        )
    )
    if not invalid.empty:
        traces.append(
            go.Scatter(
                x=_x(invalid, style.dates),
                y=invalid["value"] * style.metric.scale,
                mode="markers",
                marker={
                    "size": 9,
                    "symbol": "circle-open",
                    "color": style.color,
                    "line_width": 1.5,
                },
                hovertext=[_point_hover(row, style.metric) for row in invalid.to_dict("records")],
                hoverinfo="text",
                showlegend=False,
                **style.common,
            )
        )
    return traces


def _runs(points: pd.DataFrame) -> list[pd.DataFrame]:
    """The points split wherever a commit between two of them has none."""
    group = (points["position"].diff() > 1).cumsum()
    return [run for _, run in points.groupby(group, sort=False)]


def _band(runs: Sequence[pd.DataFrame], style: _LineStyle) -> go.Scatter | None:
    x: list = []
    y: list = []
    for run in runs:
        known = run.dropna(subset=["low", "high"])
        if known.empty:
            continue
        if x:
            x.append(None)
            y.append(None)
        across = _x(known, style.dates)
        x += across + across[::-1]
        y += list(known["low"] * style.metric.scale)
        y += list(known["high"] * style.metric.scale)[::-1]
    if not x:
        return None
    return go.Scatter(
        x=x,
        y=y,
        fill="toself",
        mode="lines",
        line={"color": theme.translucent(style.color, 0.25), "width": 1},
        fillcolor=theme.translucent(style.color, 0.18),
        hoverinfo="skip",
        showlegend=False,
        **style.common,
    )


def _change_traces(
    inside: pd.DataFrame, changes: pd.DataFrame, metric: Metric, dates: bool, dark: bool
) -> list[go.Scatter]:
    """A marker at the first bad commit of each change, on a line down from the last good level."""
    traces = []
    for row in changes.to_dict("records"):
        series = inside[inside["series"] == row["series"]]
        bad = series[series["position"] == row["bad_position"]]
        if bad.empty:
            continue
        good = series[series["position"] == row["good_position"]]
        ends = pd.concat([bad.iloc[:1], good.iloc[:1]])
        x = _x(ends.iloc[:1], dates)[0]
        look = theme.verdict(row["verdict"])
        traces.append(
            go.Scatter(
                x=[x] * len(ends),
                y=ends["value"] * metric.scale,
                mode="lines+markers",
                line={"color": look.colors[dark], "width": 1.5},
                marker={
                    "size": [13, 0][: len(ends)],
                    "symbol": look.symbol,
                    "color": look.colors[dark],
                    "line": {
                        "width": 2 if "thin" in look.symbol else 0,
                        "color": look.colors[dark],
                    },
                },
                hovertext=[_change_hover(row)] * len(ends),
                hoverinfo="text",
                name=format.html(row["verdict"]),
                showlegend=False,
            )
        )
    return traces


def _commit_axis(
    figure: go.Figure, lines: pd.DataFrame, commits: pd.DataFrame, *, ticks: int, dates: bool
) -> None:
    if dates:
        figure.update_xaxes(title_text=None, type="date")
        return
    drawn = lines["position"]
    if drawn.empty:
        return
    first, last = int(drawn.min()), int(drawn.max())
    shown = commits[commits["position"].between(first, last)].sort_values("position")
    step = max(1, math.ceil(len(shown) / ticks))
    labelled = shown.iloc[::-step]  # from the newest, which always has its label
    figure.update_xaxes(
        range=[first - 0.6, last + 0.6],
        tickmode="array",
        tickvals=list(labelled["position"]),
        ticktext=[format.short(commit) for commit in labelled["commit"]],
        autotickangles=[0, 90],  # upright where the page is narrow
    )


def _x(points: pd.DataFrame, dates: bool) -> list:
    return list(points["committed_at"] if dates else points["position"].astype(int))


def _percent(effect: float, otherwise: float) -> float:
    return math.expm1(effect) * 100 if effect == effect else otherwise


def _conditions(row: Mapping) -> str:
    """Clock, temperature and sample count of a point, as far as they are known."""
    return format.join(
        row["sm_clock_mhz"] == row["sm_clock_mhz"]
        and f"SM clock {format.number(row['sm_clock_mhz'], 0)} MHz",
        row["temperature_c"] == row["temperature_c"]
        and f"{format.number(row['temperature_c'], 0)}{format.THIN}°C",
        row["samples"] == row["samples"] and format.plural(int(row["samples"]), "sample"),
    )


def _point_hover(row: Mapping, metric: Metric) -> str:
    interval = metric.interval(row["low"], row["high"])
    lines = [
        f"<b>{format.html(row['line'])}: {metric.text(row['value'])}</b>"
        + (f" ({interval})" if interval else ""),
    ]
    if row["verdict"] != "valid":
        reason = format.html(row["reason"])
        lines.append(
            f"Not compared: {format.html(row['verdict'])}" + (f", {reason}" if reason else "")
        )
    lines.append(_commit_lines(row))
    if row["note"]:
        lines.append(row["note"])
    return "<br>".join(lines)


def _commit_hover(commit: Mapping, value: str) -> str:
    return f"<b>{value}</b><br>{_commit_lines(commit)}"


def _commit_lines(row: Mapping) -> str:
    about = format.join(
        format.short(row["commit"]), format.html(row["author"]), format.when(row["committed_at"])
    )
    return f"{about}<br>{format.html(row['subject'], 80)}"


def _change_hover(row: Mapping) -> str:
    metric = format.metric(row["metric"])
    interval = format.change_interval(row["effect_low"], row["effect_high"])
    span = f"after {format.short(row['good_commit'])}, up to {format.short(row['bad_commit'])}"
    lines = [
        f"<b>{format.html(row['verdict'])}: {format.change(row['effect'])}</b>"
        + (f" ({interval})" if interval else ""),
        f"{metric.label} {metric.text(row['before'])} → {metric.text(row['after'])}",
        span,
    ]
    return "<br>".join([*lines, *filter(None, [format.html(row["reason"])])])
