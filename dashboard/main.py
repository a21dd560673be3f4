"""The frame around the pages: title, menu, page width."""

from __future__ import annotations

import streamlit as st

from . import navigation


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="bandwatch", page_icon=":material/speed:", layout="wide")
    st.html("<style>.stMainBlockContainer { padding-top: 4.5rem }</style>")  # below the menu
    st.navigation(navigation.pages(), position="top").run()
