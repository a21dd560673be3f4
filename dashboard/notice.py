"""What to do next, where there is nothing to show."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_FILL = """\
make watch                      # measure the newest commits here, then ingest everything
asv run main~12..main           # measure a range of commits on a machine with a GPU
bandwatch ingest                # read results/ into the dataset"""


def no_dataset(folder: Path) -> None:
    """Nothing was ingested at ``folder`` yet."""
    st.info("There is no dataset yet. Fill it with one of:", icon=":material/database_off:")
    st.code(_FILL, language="bash")
    st.text(f"Looked in {folder.resolve()}")
    st.caption("Reload this page afterwards.")


def no_measurements() -> None:
    """There is a dataset without one valid GPU measurement on the main branch."""
    st.info("Nothing is measured on the main branch yet.", icon=":material/hourglass_empty:")
    st.markdown("Measure some commits on a machine with a GPU, then ingest the results:")
    st.code("asv run main~12..main\nbandwatch ingest", language="bash")
