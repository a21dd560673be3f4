"""Filters whose values live in the address, so that a link restores the view.

The session keeps them too: they are still set when a reader comes back from another page. Values
that equal the default are left out of the address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

_KEPT = {"bind": "query-params", "persist_state": "session"}


def one(key: str, label: str, options: Sequence[str], start: str | None = None) -> str:
    """One of ``options``, at first ``start`` where it is among them, else the first."""
    index = options.index(start) if start in options else 0
    _heed_link(key, options[index])
    return st.selectbox(label, options, index=index, key=key, **_KEPT)


def some(key: str, label: str, options: Sequence[str], start: Sequence[str]) -> list[str]:
    """Any of ``options``, at first those of ``start``."""
    return st.multiselect(label, options, default=start, key=key, **_KEPT)


def switch(key: str, label: str, options: Mapping[str, str]) -> str:
    """One value of a few, ``{what the reader sees: value}``; the first at first.

    The address holds what the reader sees.
    """
    shown = list(options)
    _heed_link(key, shown[0])
    chosen = st.segmented_control(label, shown, default=shown[0], required=True, key=key, **_KEPT)
    return options[chosen]


def _heed_link(key: str, start: str) -> None:
    """Let a link that asks for the default win over the value that the session keeps.

    Streamlit drops a parameter that equals the default and then restores the kept value.
    """
    if st.query_params.get(key) == start and st.session_state.get(key, start) != start:
        st.session_state[key] = start
