"""Small pieces of HTML that Streamlit has no element for. Every text in them is escaped here."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from . import format, theme


def is_dark() -> bool:
    """Whether the reader's page is dark."""
    return st.context.theme.type == "dark"


def is_narrow() -> bool:
    """Whether the reader holds a phone, as far as the browser says so."""
    return "Mobi" in (st.context.headers.get("User-Agent") or "")


def badge(verdict: str) -> str:
    """A verdict as a coloured word with its sign."""
    color = theme.verdict_color(verdict, is_dark())
    return (
        f'<span style="color:{color};background:{theme.translucent(color, 0.13)};border-radius:4px;'
        f'padding:2px 8px;font-weight:600;white-space:nowrap">'
        f"{theme.verdict(verdict).sign} {format.html(verdict)}</span>"
    )


def figure(label: str, value: str, below: str = "") -> str:
    """A number with what it is above and its interval below."""
    small = "font-size:0.8rem;opacity:0.75"
    large = "font-size:1.45rem;font-weight:600;line-height:1.35;overflow-wrap:anywhere"
    return (
        f'<div style="min-width:8.2rem"><div style="{small}">{format.html(label)}</div>'
        f'<div style="{large}">{format.html(value)}</div>'
        f'<div style="{small}">{format.html(below) or "&nbsp;"}</div></div>'
    )


def row(parts: Sequence[str]) -> None:
    """Pieces side by side, wrapping where the page is narrow."""
    st.html(
        '<div style="display:flex;flex-wrap:wrap;gap:0.4rem 1.6rem;align-items:flex-start">'
        f"{''.join(parts)}</div>"
    )


def lines(first: str, *more: str) -> None:
    """A strong first line (made by the functions here), then plain texts, muted."""
    below = "".join(
        f'<div style="font-size:0.9rem;opacity:0.8;overflow-wrap:anywhere">{format.html(text, 200)}'
        "</div>"
        for text in more
        if text
    )
    st.html(f'<div style="line-height:1.6">{first}</div>{below}')


def strong(text: str) -> str:
    """Text in bold."""
    return f'<span style="font-weight:600;overflow-wrap:anywhere">{format.html(text)}</span>'


def plot(figure: go.Figure, key: str, alt: str, *, bar: bool = True) -> None:
    """A figure in our template, as wide as its place; ``bar`` keeps Plotly's tool bar."""
    config = {
        "displaylogo": False,
        # on a phone it would always be there, over the legend
        "displayModeBar": "hover" if bar and not is_narrow() else False,
        "modeBarButtonsToRemove": ["zoomIn2d", "zoomOut2d", "autoScale2d"],  # drag and double click
    }
    st.plotly_chart(figure, theme=None, config=config, key=key, alt=alt)
