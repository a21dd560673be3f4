"""The pages, in the order of the menu, and links between them.

A page is a module of ``views`` with a function ``page(dataset)``; a new one needs a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import streamlit as st

from bandwatch.results.dataset import Dataset

from . import data, notice

# name: title, icon, whether the menu shows it
_PAGES = {
    "today": ("Today", ":material/today:", True),
    "regressions": ("Regressions", ":material/trending_down:", True),
    "history": ("History", ":material/show_chart:", True),
    "incident": ("Incident", ":material/trending_down:", False),
}


def pages() -> list[st.Page]:
    """All pages; the first is the start page."""
    return [_page(name) for name in _PAGES]


def link(name: str, label: str, icon: str | None = None, **params: str) -> None:
    """A link to a page with the query parameters that restore a view of it."""
    st.page_link(_page(name), label=label, icon=icon, query_params=params or None)


def _page(name: str) -> st.Page:
    title, icon, listed = _PAGES[name]
    return st.Page(
        partial(_run, name),
        title=title,
        icon=icon,
        url_path=name,
        default=name == next(iter(_PAGES)),
        visibility="visible" if listed else "hidden",
    )


def _run(name: str) -> None:
    dataset = data.pin()
    if dataset is None:
        notice.no_dataset(data.dataset_dir())
        return
    page: Callable[[Dataset], None] = import_module(f".views.{name}", __package__).page
    page(dataset)
