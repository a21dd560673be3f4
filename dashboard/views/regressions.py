"""Regressions: all incidents, newest first."""

from __future__ import annotations

import streamlit as st

from bandwatch import history
from bandwatch.results.dataset import Dataset

from .. import data, filters, format, incidents

_SHOWN = 50
_ANY = "any"


def page(dataset: Dataset) -> None:
    """Draw the page."""
    commits = data.ask(history.commits, dataset)
    every = data.ask(history.incidents, dataset)
    ops = sorted({op for ops in every["ops"] for op in ops.split(",") if op})
    kinds = sorted(every["verdict"].unique())
    with st.container(horizontal=True, vertical_alignment="bottom"):
        status = filters.switch(
            "status", "Status", {"Open": "open", "Recovered": "recovered", "All": _ANY}
        )
        kind = filters.one("kind", "Kind", [_ANY, *kinds])
        op = filters.one("touching", "Operation", [_ANY, *ops])
    kept = every
    if status != _ANY:
        kept = kept[kept["status"] == status]
    if kind != _ANY:
        kept = kept[kept["verdict"] == kind]
    if op != _ANY:
        kept = kept[[op in names.split(",") for names in kept["ops"]]]
    kept = kept.sort_values("bad_position", ascending=False, kind="stable")
    st.caption(f"{format.plural(len(kept), 'incident')} of {len(every):,}, newest first")
    if kept.empty:
        if every.empty:
            st.success("No incident yet.", icon=":material/check_circle:")
        elif status == _ANY:
            st.info("No incident matches the filters.", icon=":material/filter_alt_off:")
        else:
            st.success(
                f"No {status} incident here. Status All shows the others.",
                icon=":material/check_circle:",
            )
    for row in kept.head(_SHOWN).to_dict("records"):
        incidents.show_row(row, commits)
    if len(kept) > _SHOWN:
        st.caption(f"The {_SHOWN} newest are shown; narrow the filters to see the others.")
