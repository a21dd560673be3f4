"""Today: is main fine, whose commit is it if not, and where does each operation stand."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bandwatch import history
from bandwatch.results.dataset import Dataset

from .. import charts, data, format, incidents, markup, notice, theme
from ..navigation import link

_SHOWN = 5


def page(dataset: Dataset) -> None:
    """Draw the page."""
    now = data.ask(history.today, dataset)
    commits = data.ask(history.commits, dataset)
    _first_line(now)
    if now.newest is None or now.gpu is None:
        notice.no_measurements()
        return
    every = data.ask(history.incidents, dataset, status="open")
    mine = every[(every["gpu"] == now.gpu) & (every["verdict"] == "regression")]
    for incident in mine.head(_SHOWN).to_dict("records"):
        incidents.show_row(incident, commits)
    if len(mine) > _SHOWN:
        link("regressions", f"All {len(mine)} open regressions", status="Open")
    _newest(now)
    colors = theme.line_colors(data.ask(history.choices, dataset)["providers"], markup.is_dark())
    for op in now.ops:
        _op_line(op, commits, colors[op.provider], alone=len({o.provider for o in now.ops}) == 1)
    if not now.ops:
        st.info("No utilisation: these results were measured without a control.")
        link("history", "Times over the commits", metric="Time")
        return
    st.caption(
        "Utilisation is the time of a copy kernel that moves the same bytes over the time of the "
        "operation, measured in the same session: the geometric mean over the workloads that are "
        "valid at every commit of the line. Intervals are 95 %."
    )


def _first_line(now: history.Today) -> None:
    if now.state == "no data":
        st.info("**main**: no data yet", icon=":material/hourglass_empty:")
    elif now.open_regressions:
        count = format.plural(now.open_regressions, "open regression")
        st.error(f"**main has {count}**{_suspicion(now)}", icon=":material/error:")
    elif now.suspected:
        st.warning(f"**main has no confirmed regression**{_suspicion(now)}", icon=":material/help:")
    else:
        st.success("**main is fine**: no open regression", icon=":material/check_circle:")


def _suspicion(now: history.Today) -> str:
    if not now.suspected:
        return ""
    verb = "looks" if now.suspected == 1 else "look"
    return (
        f"; {format.plural(now.suspected, 'workload')} {verb} slower from the newest point alone: "
        "measure that commit again to know"
    )


def _newest(now: history.Today) -> None:
    newest = now.newest
    behind = (
        f"{format.plural(now.behind, 'commit')} of main since then not measured"
        if now.behind
        else ""
    )
    markup.lines(
        f"Newest measured commit {markup.strong(format.short(newest['commit']))}",
        f"{format.clean(newest['subject'])} · {format.clean(newest['author'], 40)}",
        format.join(
            format.gpu(now.gpu),
            f"{format.when(newest['committed_at'])} ({format.age(newest['committed_at'])})",
            behind,
        ),
    )


def _op_line(op: history.OpLine, commits: pd.DataFrame, color: str, *, alone: bool) -> None:
    utilisation, speedup = format.TIMED["utilisation"], format.TIMED["speedup"]
    with st.container(border=True):
        numbers, line = st.columns([3, 2], vertical_alignment="center")
        with numbers:
            name = op.op if alone else f"{op.op} ({op.provider})"
            markup.row(
                [
                    markup.figure("Operation", name, _members(op)),
                    markup.figure(
                        "Utilisation",
                        utilisation.text(op.utilisation),
                        utilisation.interval(op.utilisation_low, op.utilisation_high),
                    ),
                    markup.figure(
                        "Speed-up over eager",
                        speedup.text(op.speedup),
                        speedup.interval(op.speedup_low, op.speedup_high),
                    ),
                    markup.figure(
                        "Worst workload", utilisation.text(op.worst_utilisation), op.worst or ""
                    ),
                ]
            )
        with line:
            figure = charts.sparkline(
                op.positions, op.values, commits, utilisation, color, dark=markup.is_dark()
            )
            markup.plot(figure, f"line {op.op} {op.provider}", "Utilisation of late", bar=False)
            link("history", "History", op=op.op, gpu=op.gpu)


def _members(op: history.OpLine) -> str:
    if op.workloads == op.available:
        return f"n = {format.plural(op.workloads, 'workload')}"
    return f"n = {op.workloads} of {format.plural(op.available, 'workload')}"
