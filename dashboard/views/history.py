"""History: one operation over the commits of main, a small chart for each shape or one large."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bandwatch import history
from bandwatch.results.dataset import Dataset

from .. import charts, data, filters, format, markup, notice, theme

_STATIC = "static"
_ALL = "all shapes"
_CONTROL = "control"  # at 100 % of itself it would flatten the others, so not shown at first
_METRICS = {metric.label: name for name, metric in format.TIMED.items()} | {"Static": _STATIC}


def page(dataset: Dataset) -> None:
    """Draw the page."""
    choices = data.ask(history.choices, dataset)
    compiled = data.ask(data.static_choices, dataset)
    top = st.container(horizontal=True, vertical_alignment="bottom")
    with top:
        wanted = filters.switch("metric", "Metric", _METRICS)
        over = filters.switch("over", "Over", {"Commits": "commits", "Dates": "dates"})
        scale = filters.switch("scale", "Scale", {"Fit": "fit", "From zero": "zero"})
    if wanted == _STATIC:
        _draw_static(dataset, compiled, over, scale)
    else:
        _draw_timed(dataset, choices, format.TIMED[wanted], over, scale, top)


def _draw_timed(
    dataset: Dataset,
    choices: dict[str, list[str]],
    metric: format.Metric,
    over: str,
    scale: str,
    top: st.container,
) -> None:
    if not choices["ops"]:
        notice.no_measurements()
        return
    place, rest = _workload_filters(choices)
    with rest:
        gpu = filters.one("gpu", "GPU", choices["gpus"])
    with top:
        known = choices["providers"]
        most = [name for name in known if name != _CONTROL] or known
        providers = filters.some("provider", "Providers", known, start=most)
    points = data.ask(history.series, dataset, **place, gpu=gpu)
    drawn = points[points["provider"].isin(providers)]
    lines = charts.timed_lines(drawn, metric)
    colors = theme.line_colors(choices["providers"], markup.is_dark())
    changes = data.ask(history.changes, dataset, **place, gpu=gpu)
    if metric.name == "call_seconds":
        changes = changes.iloc[:0]  # they are of GPU time
    _draw(dataset, lines, changes, metric, colors, choices["shapes"], over, scale)
    better = "Higher" if metric.higher_is_better else "Lower"
    st.caption(
        f"{better} is better. Bands are 95 % intervals. Hollow points are invalid measurements, "
        "kept but never compared. Dotted stretches cross commits without a valid measurement. "
        "▼ worse, ▲ better, ◆ other change."
    )
    elsewhere = int((drawn["placement"] != "main").sum())
    if elsewhere:
        st.caption(f"{format.plural(elsewhere, 'point')} off the main branch not drawn.")


def _draw_static(dataset: Dataset, choices: dict[str, list[str]], over: str, scale: str) -> None:
    if not choices["ops"]:
        st.info("No static facts yet.", icon=":material/hourglass_empty:")
        st.code("asv run --bench bench_static main~12..main\nbandwatch ingest", language="bash")
        return
    place, rest = _workload_filters(choices)
    with rest:
        name = filters.one("fact", "Static metric", choices["metrics"], start="registers")
    facts = data.ask(history.static, dataset, **place, metric=name)
    lines = charts.static_lines(facts)
    colors = theme.line_colors(facts["toolchain"], markup.is_dark())
    none = data.ask(history.changes, dataset).iloc[:0]
    _draw(dataset, lines, none, format.metric(name), colors, choices["shapes"], over, scale)
    st.caption(
        "Compiled for sm_90a; these facts need no GPU and have no noise. Spills, stack bytes and "
        "narrow accesses cost time; of the others a change is a hint, in either direction."
    )


def _workload_filters(choices: dict[str, list[str]]) -> tuple[dict[str, str | None], st.container]:
    """The chosen op, direction, dtype and shape, and the row for one more filter."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    with row:
        op = filters.one("op", "Operation", choices["ops"])
        direction = filters.one("direction", "Direction", choices["directions"], start="forward")
        dtype = filters.one("dtype", "Dtype", choices["dtypes"], start="bfloat16")
        shape = filters.one("shape", "Shape", [_ALL, *choices["shapes"]])
    place = {"op": op, "direction": direction, "dtype": dtype}
    return place | {"shape": None if shape == _ALL else shape}, row


def _draw(
    dataset: Dataset,
    lines: pd.DataFrame,
    changes: pd.DataFrame,
    metric: format.Metric,
    colors: dict[str, str],
    shapes: list[str],
    over: str,
    scale: str,
) -> None:
    present = set(lines["panel"])
    panels = [shape for shape in shapes if shape in present]
    if not panels:
        st.info("No measurement matches these filters.", icon=":material/filter_alt_off:")
        return
    figure = charts.history(
        lines,
        data.ask(history.commits, dataset),
        changes,
        metric,
        colors,
        panels=panels,
        dates=over == "dates",
        from_zero=scale == "zero",
        dark=markup.is_dark(),
        narrow=markup.is_narrow(),
    )
    markup.plot(figure, key="history", alt=f"{metric.axis} over the commits of main")
