"""Chart builders as plain functions: frames in, figure out."""

from __future__ import annotations

import json
import math

import pandas as pd
import plotly.graph_objects as go
import pytest

from bandwatch import history
from bandwatch.results.dataset import open_dataset
from dashboard import charts, format, theme

from .conftest import HOSTILE, INVALID, PROVIDERS, SHAPES, UNMEASURED, commit

UTILISATION = format.TIMED["utilisation"]


@pytest.fixture(scope="module")
def opened(dataset):
    with open_dataset(dataset) as opened:
        yield opened


def draw(opened, providers=PROVIDERS, metric=UTILISATION, shape="4096x4096", **options):
    where = {"op": "softmax", "direction": "forward", "dtype": "bfloat16", "shape": shape}
    points = history.series(opened, **where)
    lines = charts.timed_lines(points[points["provider"].isin(providers)], metric)
    return charts.history(
        lines,
        history.commits(opened),
        history.changes(opened, **where),
        metric,
        theme.line_colors(PROVIDERS, options.get("dark", False)),
        panels=[shape] if shape else list(SHAPES),
        **options,
    )


def trace(figure: go.Figure, name: str, mode: str = "lines+markers") -> go.Scatter:
    found = [t for t in figure.data if t.name == name and t.mode == mode and t.fill is None]
    assert len(found) == 1
    return found[0]


def test_every_trace_is_svg(opened):
    figure = draw(opened, shape=None)
    assert {t.type for t in figure.data} == {"scatter"}
    assert len({t.xaxis for t in figure.data}) == len(SHAPES)


def test_on_a_phone_the_shapes_stand_below_each_other(opened):
    wide, narrow = draw(opened, shape=None), draw(opened, shape=None, narrow=True)
    assert wide.layout.xaxis.domain[1] < 0.5
    assert {axis.domain for axis in narrow.select_xaxes()} == {(0, 1)}
    assert narrow.layout.height > wide.layout.height


def test_one_legend_entry_a_provider(opened):
    shown = [t.name for t in draw(opened, shape=None).data if t.showlegend]
    assert sorted(shown) == sorted(PROVIDERS)


def test_unmeasured_and_invalid_commits_leave_gaps(opened):
    line = trace(draw(opened), "membound")
    drawn = {x for x, y in zip(line.x, line.y, strict=True) if y is not None}
    assert drawn == set(range(20)) - {*UNMEASURED, INVALID}
    breaks = [x for x, y in zip(line.x, line.y, strict=True) if y is None]
    assert breaks == [4, 6, 12]
    ticks = draw(opened).layout.xaxis
    assert max(ticks.tickvals) == 19
    assert ticks.ticktext[list(ticks.tickvals).index(19)] == commit(19)[:8]


def test_invalid_points_are_hollow_and_say_why(opened):
    hollow = trace(draw(opened), "membound", "markers")
    assert list(hollow.x) == [INVALID]
    assert hollow.marker.symbol == "circle-open"
    assert "Not compared: throttled, clock fell to 1,200 MHz" in hollow.hovertext[0]


def test_bands_span_the_interval(opened):
    figure = draw(opened)
    band = next(t for t in figure.data if t.fill == "toself" and t.name == "membound")
    line = trace(figure, "membound")
    at_zero = [y for x, y in zip(band.x, band.y, strict=True) if x == 0]
    assert min(at_zero) == pytest.approx(line.y[0] * 0.994)
    assert max(at_zero) == pytest.approx(line.y[0] * 1.006)


def test_the_hover_tells_commit_value_and_conditions(opened):
    hover = trace(draw(opened), "membound").hovertext[0]
    for part in (
        commit(0)[:8],
        "Synthetic step 0",
        "Ada Example",
        "2026-11-01 12:00 UTC",
        "SM clock 1,980 MHz",
        "41\u202f°C",
        "12 samples",
    ):
        assert part in hover
    assert "53." in hover and "–" in hover


def test_changes_are_marked_at_the_first_bad_commit(opened):
    figure = draw(opened)
    marks = {t.name: t for t in figure.data if t.name in theme.VERDICTS}
    assert set(marks) == {"improvement", "regression", "recovered"}
    assert set(marks["regression"].x) == {10}
    assert marks["regression"].marker.symbol == "triangle-down"
    assert "regression: −15.0\u202f%" in marks["regression"].hovertext[0]
    assert marks["regression"].line.color != marks["improvement"].line.color


def test_colours_stay_when_a_provider_is_hidden(opened):
    everything, some = draw(opened), draw(opened, providers=("membound",))
    assert trace(everything, "membound").line.color == trace(some, "membound").line.color
    assert not [t for t in some.data if t.name == "eager"]


def test_unknown_providers_get_colours_of_their_own():
    for dark in (False, True):
        colors = theme.line_colors([*PROVIDERS, "compile", "a", "b", "c", "d"], dark)
        assert len(set(colors.values())) == 8


@pytest.mark.parametrize("name", format.TIMED)
def test_every_metric_is_drawn_in_its_axis_unit(opened, name):
    metric = format.TIMED[name]
    line = trace(draw(opened, metric=metric), "control")
    expected = {
        "utilisation": 100,
        "bytes_per_second": 4200,
        "seconds": 2 * 4096 * 4096 * 2 / 4.2e12 * 1e6,
        "call_seconds": 2 * 4096 * 4096 * 2 / 4.2e12 * 1e6 + 6,
        "speedup": 1 / 0.55,
    }[name]
    assert line.y[0] == pytest.approx(expected, rel=0.01)
    assert metric.unit in draw(opened, metric=metric).layout.yaxis.title.text


def test_dates_place_points_at_their_commit_dates(opened):
    figure = draw(opened, dates=True)
    assert figure.layout.xaxis.type == "date"
    assert pd.Timestamp(trace(figure, "membound").x[0]) == pd.Timestamp("2026-11-01T12:00Z")


def test_the_template_is_ours_in_both_themes(opened):
    light, dark = draw(opened), draw(opened, dark=True)
    assert light.layout.template.layout.font.color != dark.layout.template.layout.font.color
    assert trace(light, "eager").line.color != trace(dark, "eager").line.color


def test_names_are_escaped_wherever_plotly_reads_markup(hostile):
    with open_dataset(hostile) as opened:
        op = HOSTILE[0]
        points = history.series(opened, op, "forward", dtype="bfloat16")
        points = points.assign(provider=HOSTILE[0], shape=HOSTILE[0])
        lines = charts.timed_lines(points, UTILISATION)
        figures = [
            charts.history(
                lines,
                history.commits(opened),
                history.changes(opened, op=op),
                UTILISATION,
                theme.line_colors([HOSTILE[0]], dark=False),
                panels=[HOSTILE[0], HOSTILE[1]],
            ),
            charts.effects(history.incident(opened, "i-4").workloads),
        ]
    for figure in figures:
        spec = json.loads(figure.to_json())
        assert "&lt;img src=x" in json.dumps(spec)
        assert "<img" not in json.dumps(spec)


def test_effects_run_from_the_largest_down(opened):
    figure = charts.effects(history.incident(opened, "i-2").workloads)
    points = figure.data[0]
    assert list(points.x) == pytest.approx([-15.0] * 3)
    assert points.error_x.array[0] == pytest.approx(100 * 0.85 * math.expm1(0.01), rel=0.01)


def test_an_effect_without_an_interval_has_no_whisker(opened):
    workloads = history.incident(opened, "i-2").workloads.assign(
        effect_low=math.nan, effect_high=math.nan
    )
    assert list(charts.effects(workloads).data[0].error_x.array) == [0, 0, 0]


def test_the_sparkline_breaks_at_unmeasured_commits(opened):
    figure = charts.sparkline(
        [0, 1, 3], [0.5, 0.6, 0.7], history.commits(opened), UTILISATION, "#000000"
    )
    line = figure.data[1]
    assert list(line.x) == [0, 1, 2, 3]
    assert list(line.y) == [50, 60, None, 70]
    assert "Synthetic step 3" in line.hovertext[-1]
