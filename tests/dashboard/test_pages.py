"""Every page in every state, run by Streamlit's own test runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from dashboard import navigation

from .conftest import APP, GPU, HOSTILE, Synthetic, commit

START = "today"


def go(app: AppTest, page: str) -> AppTest:
    """Run ``app`` on a page, as a click on the menu does.

    ``AppTest.switch_page`` knows only pages that are script files.
    """
    app._page_hash = calc_hash("" if page == START else page)
    app.run()
    assert not app.exception, app.exception[0].stack_trace
    return app


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch):
    def open_page(dataset: Path, page: str = START, **params: str | list[str]) -> AppTest:
        monkeypatch.setenv("BANDWATCH_DATASET", str(dataset))
        app = AppTest.from_file(str(APP), default_timeout=30)
        for name, value in params.items():
            app.query_params[name] = value
        return go(app, page)

    return open_page


def html(app: AppTest) -> str:
    return "\n".join(element.proto.body for element in app.get("html"))


def select(app: AppTest, key: str):
    return app.selectbox(key=key)


def texts(app: AppTest) -> str:
    """All Markdown that the page renders: what untrusted text must stay out of."""
    kinds = (app.markdown, app.caption, app.error, app.warning, app.success, app.info)
    return "\n".join(element.value for kind in kinds for element in kind)


@pytest.fixture
def one_commit(tmp_path: Path) -> Path:
    return Synthetic(commits=1).write(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return Synthetic(commits=0).write(tmp_path)


@pytest.mark.parametrize("page", navigation._PAGES)
def test_without_a_dataset_every_page_says_what_to_do(open_page, tmp_path, page):
    app = open_page(tmp_path / "nowhere", page)
    assert "no dataset" in app.info[0].value
    assert "bandwatch ingest" in app.code[0].value


@pytest.mark.parametrize("page", ["today", "history"])
def test_an_empty_dataset_says_what_to_do(open_page, empty, page):
    app = open_page(empty, page)
    assert any("asv run" in code.value for code in app.code)
    assert not app.get("plotly_chart")


@pytest.mark.parametrize("page", ["regressions", "incident"])
def test_an_empty_dataset_has_no_incidents(open_page, empty, page):
    open_page(empty, page)


@pytest.mark.parametrize("page", ["today", "history", "regressions"])
def test_one_commit_is_enough_to_draw(open_page, one_commit, page):
    app = open_page(one_commit, page)
    charts = {"today": 2, "history": 1, "regressions": 0}[page]
    assert len(app.get("plotly_chart")) == charts


def test_today_says_what_is_wrong_whose_commit_and_since_when(open_page, dataset):
    app = open_page(dataset)
    assert app.error[0].value == "**main has 1 open regression**"
    page = html(app)
    assert f"since {commit(17)[:8]} by Bo Example, 2026-11-06 11:00 UTC" in page
    assert "Synthetic step 17" in page
    assert 'Newest measured commit <span style="font-weight:600;overflow-wrap:anywhere">' in page
    assert commit(19)[:8] in page
    assert page.count("n = 6 workloads") == 2
    assert "float32 32768x1001" in page  # the worst workload of rms_norm


def test_today_is_fine_without_an_open_regression(open_page, tmp_path):
    synthetic = Synthetic()
    synthetic.incidents = [row for row in synthetic.incidents if row["incident"] != "i-4"]
    app = open_page(synthetic.write(tmp_path))
    assert app.success[0].value == "**main is fine**: no open regression"
    assert not app.error


def test_today_names_a_suspicion_but_calls_it_no_regression(open_page, tmp_path):
    synthetic = Synthetic()
    synthetic.incidents = []
    synthetic.changes = [row for row in synthetic.changes if row["incident"] == "i-4"][:1]
    synthetic.changes[0] |= {"verdict": "suspected", "incident": None}
    app = open_page(synthetic.write(tmp_path))
    assert "no confirmed regression" in app.warning[0].value
    assert "; 1 workload looks slower from the newest point alone" in app.warning[0].value


def test_results_without_a_control_still_have_their_times(open_page, tmp_path):
    synthetic = Synthetic()
    for row in synthetic.points:
        row |= {"utilisation": None, "utilisation_low": None, "utilisation_high": None}
    app = open_page(synthetic.write(tmp_path))
    assert "measured without a control" in app.info[0].value
    app.query_params["metric"] = "Time"
    assert len(go(app, "history").get("plotly_chart")) == 1


def test_today_counts_the_commits_that_are_not_measured_yet(open_page, tmp_path):
    synthetic = Synthetic()
    for position in (18, 19):
        synthetic.commits[position]["measured"] = False
    synthetic.points = [row for row in synthetic.points if row["position"] < 18]
    assert "2 commits of main since then not measured" in html(open_page(synthetic.write(tmp_path)))


def test_regressions_are_listed_newest_first_and_filtered(open_page, dataset):
    app = open_page(dataset, "regressions", status="All")
    page = html(app)
    order = [page.index(commit(position)[:8]) for position in (17, 16, 10, 3)]
    assert order == sorted(order)
    select(app, "touching").set_value("softmax").run()
    assert "3 incidents of 4" in app.caption[0].value
    select(app, "kind").set_value("regression").run()
    assert "1 incident of 4" in app.caption[0].value


def test_where_nothing_is_open_the_page_says_how_to_see_the_rest(open_page, tmp_path):
    synthetic = Synthetic()
    synthetic.incidents = [row for row in synthetic.incidents if row["status"] != "open"]
    app = open_page(synthetic.write(tmp_path), "regressions", status="Open")
    assert app.success[0].value == "No open incident here. Status All shows the others."
    app = open_page(tmp_path, "regressions", status="All")
    assert not app.success
    assert app.caption[0].value.startswith("2 incidents of 2")


def test_an_incident_shows_effect_cause_commits_and_how_to_reproduce(open_page, dataset):
    app = open_page(dataset, "incident", id="i-4")
    workloads, static, commits = (table.value for table in app.dataframe)
    assert list(workloads["Change"]) == ["−10.0\u202f%"] * 3
    assert workloads["Before"][0] == "85.0\u202f%"
    assert workloads["History"][0].startswith("history?op=rms_norm&direction=forward&dtype=float32")
    assert set(static["Metric"]) == {"Registers", "Narrow access share"}
    assert list(commits["Subject"]) == ["Synthetic step 17"]
    command = app.code[0].value
    assert f"asv run '--bench=^bench_rms_norm\\.Rms_Norm\\.track_time' '{commit(16)}^!'" in command
    assert f'asv compare --machine "$(uname -n)" {commit(16)} {commit(17)}' in command


def test_an_unknown_incident_says_so(open_page, dataset):
    app = open_page(dataset, "incident", id=HOSTILE[1])
    assert "No incident" in app.warning[0].value
    assert app.text[0].value == HOSTILE[1]
    assert HOSTILE[1] not in texts(app)


def test_a_deep_link_restores_the_filters(open_page, dataset):
    app = open_page(
        dataset,
        "history",
        metric="Time",
        over="Dates",
        op="softmax",
        dtype="float32",
        shape="4096x4096",
        provider=["control", "membound"],
    )
    assert app.button_group(key="metric").value == "Time"
    assert app.button_group(key="over").value == "Dates"
    assert select(app, "op").value == "softmax"
    assert select(app, "dtype").value == "float32"
    assert select(app, "shape").value == "4096x4096"
    assert select(app, "gpu").value == GPU
    assert app.multiselect(key="provider").value == ["control", "membound"]


def test_a_deep_link_to_what_is_not_there_falls_back(open_page, dataset):
    app = open_page(dataset, "history", op="conv", shape="1x1", metric="Joules")
    assert select(app, "op").value == "rms_norm"
    assert len(app.get("plotly_chart")) == 1


def test_filters_stay_when_pages_change_and_a_link_wins_over_them(open_page, dataset):
    app = open_page(dataset, "history")
    select(app, "op").set_value("softmax").run()
    go(app, START)
    go(app, "history")
    assert select(app, "op").value == "softmax"
    go(app, START)
    app.query_params["op"] = "rms_norm"  # the default, which Streamlit leaves out of addresses
    go(app, "history")
    assert select(app, "op").value == "rms_norm"


def test_static_metrics_are_drawn_without_intervals(open_page, dataset):
    app = open_page(dataset, "history", metric="Static", fact="spills")
    assert select(app, "fact").value == "spills"
    assert len(app.get("plotly_chart")) == 1


def test_call_times_are_drawn_apart_from_gpu_times(open_page, dataset):
    app = open_page(dataset, "history", metric="Call time")
    (chart,) = app.get("plotly_chart")
    assert "Time of a call from Python, host and GPU" in chart.proto.alt
    assert "Time of a call" not in open_page(dataset, "history").get("plotly_chart")[0].proto.alt


@pytest.mark.parametrize(
    ("page", "params"),
    [
        ("today", {}),
        ("history", {}),
        ("history", {"metric": "Static"}),
        ("regressions", {"status": "All"}),
        ("incident", {"id": "i-4"}),
    ],
)
def test_hostile_names_reach_no_markup(open_page, hostile, page, params):
    app = open_page(hostile, page, **params)
    for name in HOSTILE:
        assert name not in texts(app)
    assert "<img" not in html(app)  # elsewhere st.html knows no markup but HTML
    for chart in app.get("plotly_chart"):
        assert "<img" not in json.dumps(json.loads(chart.proto.spec))
    for button in app.get("page_link"):
        assert button.proto.label in ("Details", "History", "All incidents")


def test_a_new_generation_is_seen_by_the_next_run(open_page, tmp_path):
    Synthetic(commits=1).write(tmp_path)
    app = open_page(tmp_path)
    shutil.rmtree(tmp_path / "generations")
    assert "main is fine" in app.success[0].value
    newer = Synthetic().write(tmp_path)
    (newer / "generations" / "synthetic").rename(newer / "generations" / "newer")
    (newer / "CURRENT").write_text("newer\n")
    go(app, START)
    assert "main has 1 open regression" in app.error[0].value


def test_it_runs_inside_bandwatch_as_in_a_wheel(tmp_path, dataset):
    checkout = APP.parents[1]
    shutil.copytree(checkout / "bandwatch", tmp_path / "bandwatch")
    shutil.copytree(checkout / "dashboard", tmp_path / "bandwatch" / "dashboard")
    script = f"""
import sys
from streamlit.testing.v1 import AppTest
app = AppTest.from_file({str(tmp_path / "bandwatch/dashboard/app.py")!r}, default_timeout=30).run()
assert not app.exception, app.exception
assert "open regression" in app.error[0].value
assert "dashboard" not in sys.modules
assert sys.modules["bandwatch"].__file__.startswith({str(tmp_path)!r})
"""
    environment = os.environ | {"BANDWATCH_DATASET": str(dataset)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
