"""One incident in full: what got slower by how much, why, since which commits, how to see it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from bandwatch import history
from bandwatch.results.dataset import Dataset

from .. import charts, data, format, incidents, markup, reproduce
from ..navigation import link

_WORKLOAD = ["op", "direction", "dtype", "shape"]


def page(dataset: Dataset) -> None:
    """Draw the incident that ``?id=`` names."""
    link("regressions", "All incidents", ":material/arrow_back:")
    name = st.query_params.get("id", "")
    try:
        found = data.ask(history.incident, dataset, name)
    except history.NotFound:
        st.warning("No incident of that name in this dataset.", icon=":material/search_off:")
        st.text(format.clean(name))
        return
    commits = data.ask(history.commits, dataset)
    incidents.summary(found.facts, commits)
    st.markdown("##### Affected workloads")
    markup.plot(
        charts.effects(found.workloads, dark=markup.is_dark()),
        key="effects",
        alt="Change of each affected workload with its 95 % interval",
        bar=False,
    )
    st.dataframe(
        _workload_table(found.workloads),
        hide_index=True,
        column_config={
            "History": st.column_config.LinkColumn(display_text="open", width="small"),
        },
    )
    _static(dataset, found)
    st.markdown("##### Commits")
    good = format.short(found.facts["good_commit"])
    st.caption(f"After the last good commit {good}; the change is in one of these.")
    st.dataframe(_commit_table(found.commits), hide_index=True)
    st.markdown("##### Measure it again")
    st.caption("On a machine with this GPU, in a checkout of the suite, with asv on the path:")
    names = data.benchmarks(dataset, tuple(found.workloads["series"]))
    good, bad = found.facts["good_commit"], found.facts["bad_commit"]
    st.code(reproduce.command(good, bad, names), language="bash", wrap_lines=True)


def _workload_table(workloads: pd.DataFrame) -> pd.DataFrame:
    rows = workloads.to_dict("records")
    metrics = [format.metric(row["metric"]) for row in rows]
    return pd.DataFrame(
        {
            "Workload": charts.workload_names(workloads),
            "Metric": [metric.label for metric in metrics],
            "Before": [m.text(row["before"]) for m, row in zip(metrics, rows, strict=True)],
            "After": [m.text(row["after"]) for m, row in zip(metrics, rows, strict=True)],
            "Change": [format.change(row["effect"]) for row in rows],
            "95 % interval": [
                format.change_interval(row["effect_low"], row["effect_high"]) for row in rows
            ],
            "History": [format.address("history", _place(row)) for row in rows],
        }
    )


def _place(row: Mapping) -> dict[str, str]:
    return {key: row[key] for key in (*_WORKLOAD, "gpu")}


def _commit_table(commits: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Commit": [format.short(commit) for commit in commits["commit"]],
            "Subject": [format.clean(subject) for subject in commits["subject"]],
            "Author": [format.clean(author, 40) for author in commits["author"]],
            "Date": [format.when(moment) for moment in commits["committed_at"]],
            "Measured": ["yes" if measured else "no" for measured in commits["measured"]],
        }
    )


def _static(dataset: Dataset, found: history.Incident) -> None:
    st.markdown("##### What changed in the compiled kernels")
    table = _static_differences(dataset, found)
    if table is None:
        st.caption("No static facts at both ends of this range.")
    elif table.empty:
        st.caption("Nothing: registers, spills, memory and instructions are the same at both ends.")
    else:
        st.dataframe(table, hide_index=True)


def _static_differences(dataset: Dataset, found: history.Incident) -> pd.DataFrame | None:
    """Static facts that differ between last good and first bad commit; None without both."""
    rows, known = [], False
    for workload in found.workloads[_WORKLOAD].drop_duplicates().to_dict("records"):
        facts = data.ask(history.static, dataset, **workload)
        ends = [
            facts[facts["commit"] == found.facts[end]].set_index(["metric", "toolchain"])["value"]
            for end in ("good_commit", "bad_commit")
        ]
        both = pd.concat(ends, axis=1, join="inner", keys=["before", "after"])
        known = known or not both.empty
        for (name, _), values in both[both["before"] != both["after"]].iterrows():
            metric = format.metric(name)
            rows.append(
                {
                    "Workload": " ".join(format.clean(part) for part in workload.values()),
                    "Metric": metric.label,
                    "Before": metric.text(values["before"]),
                    "After": metric.text(values["after"]),
                }
            )
    return pd.DataFrame(rows) if known else None
