"""An incident in words, the same on every page."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from . import format, markup
from .navigation import link


def show_row(incident: Mapping, commits: pd.DataFrame) -> None:
    """Kind, size, whose commits, since when and likely cause, with a link to the detail."""
    with st.container(border=True):
        words, button = st.columns([6, 1], vertical_alignment="center")
        with words:
            summary(incident, commits)
        with button:
            link("incident", "Details", ":material/arrow_forward:", id=incident["incident"])


def summary(incident: Mapping, commits: pd.DataFrame) -> None:
    """What :func:`show_row` says, without the link."""
    cause = format.clean(incident["cause"], 160)
    ops = format.clean(incident["ops"]).replace(",", ", ")
    size = format.join(
        incident["status"] == "recovered" and "recovered",
        format.plural(int(incident["workloads"]), "workload"),
        f"largest {format.change(incident['worst_effect'])}",
        f"median {format.change(incident['median_effect'])}",
        format.gpu(incident["gpu"]),
    )
    markup.lines(
        f"{markup.badge(incident['verdict'])} {markup.strong(ops)} {format.html(size)}",
        origin(incident, commits),
        f"Likely cause: {cause}" if cause else "",
    )


def origin(incident: Mapping, commits: pd.DataFrame) -> str:
    """Whose commit, since when: one commit in full, or the range with its authors."""
    after = commits["position"] > incident["good_position"]
    between = commits[after & (commits["position"] <= incident["bad_position"])]
    bad = format.short(incident["bad_commit"])
    if between.empty:
        return f"since {bad}"
    last = between.iloc[-1]
    since = f"{format.when(last['committed_at'])} ({format.age(last['committed_at'])})"
    if len(between) == 1:
        author = format.clean(last["author"], 40)
        return f"since {bad} by {author}, {since}: {format.clean(last['subject'], 80)}"
    authors = ", ".join(format.clean(name, 40) for name in between["author"].unique()[:3])
    more = between["author"].nunique() - 3
    return (
        f"in one of {len(between)} commits up to {bad} by {authors}"
        f"{f' and {more} more' if more > 0 else ''}, {since}"
    )
