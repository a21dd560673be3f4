"""The dashboard in a real browser: what only rendering can show."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from .conftest import HOSTILE, chromium, serve

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        shutil.which("chromium") is None,
        reason="no `chromium` on the path (Debian: apt-get install chromium)",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
]


def test_history_draws_its_points_and_keeps_its_filters(dataset):
    with serve(dataset) as address, chromium() as page:
        page.goto(f"{address}/history?op=softmax")
        page.wait_for_selector(".scatterlayer .point")
        assert page.locator(".main-svg .subplot").count() == 3
        # 18 measured commits for each of two providers and three shapes, and changes beside them
        assert page.locator(".scatterlayer .point").count() >= 18 * 2 * 3
        page.get_by_role("link", name="Today").click()
        page.get_by_text("main has 1 open regression").wait_for()
        page.get_by_role("link", name="History").first.click()
        page.wait_for_url("**/history?*op=softmax*")


def test_an_open_regression_is_one_click_from_today(dataset):
    with serve(dataset) as address, chromium(width=390, height=844) as page:
        page.goto(address)
        page.get_by_text("Details").click()
        page.get_by_text("Affected workloads").wait_for()
        assert page.url.endswith("/incident?id=i-4")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_back_finds_the_page_as_it_was_in_one_step(dataset):
    with serve(dataset) as address, chromium() as page:
        page.goto(f"{address}/regressions?status=All")
        page.get_by_text("Details").last.click()
        page.get_by_text("Affected workloads").wait_for()
        page.go_back()
        page.get_by_text("4 incidents of 4").wait_for()
        assert page.url.endswith("/regressions?status=All")
        page.get_by_role("link", name="History").click()
        page.get_by_text("Time", exact=True).click()
        page.wait_for_url("**/history?metric=Time")
        page.get_by_role("link", name="Today").click()
        page.get_by_text("main has 1 open regression").wait_for()
        page.go_back()
        page.wait_for_url("**/history?metric=Time")


def test_the_dashboard_asks_nothing_of_other_hosts(dataset):
    with serve(dataset) as address, chromium() as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.get_by_text("main has 1 open regression").wait_for()
        page.wait_for_load_state("networkidle")
        assert asked
        assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]


def test_hostile_names_are_shown_as_they_are(hostile):
    with serve(hostile) as address, chromium() as page:
        alerts = []
        page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
        page.goto(f"{address}/regressions?status=All")
        page.get_by_text(HOSTILE[0]).first.wait_for()
        page.goto(f"{address}/history")
        page.wait_for_selector(".scatterlayer .point")
        page.locator(".scatterlayer .point").first.hover(force=True)
        assert not page.locator("img[src=x]").count()
        assert not alerts
