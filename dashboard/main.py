"""The frame around the pages: title, menu, page width."""

from __future__ import annotations

import streamlit as st

from . import navigation

# Streamlit tells the browser's history of more than the pages that a reader opens. Before a link's
# page it enters the page that is left once more, without its filters or with the link's, so that
# Back finds another view; and after it the page that was opened, with the filters it is given back.
_ONE_STEP_BACK = """
<script>
if (!window.oneStepBack) {
  window.oneStepBack = true;
  const push = history.pushState;
  let leaving = false;
  addEventListener("click", () => { leaving = true; }, true);
  history.pushState = (state, title, url) => {
    if (new URL(url, location.href).pathname !== location.pathname) {
      leaving = false;
      push.call(history, state, title, url);
    } else if (!leaving) history.replaceState(state, title, url);
  };
}
</script>
"""


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="bandwatch", page_icon="📈", layout="wide")
    st.html("<style>.stMainBlockContainer { padding-top: 4.5rem }</style>")  # below the menu
    st.html(_ONE_STEP_BACK, unsafe_allow_javascript=True)
    st.navigation(navigation.pages(), position="top").run()
