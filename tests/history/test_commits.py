"""The order of commits, from git as people leave it."""

from __future__ import annotations

import subprocess

import pytest

from bandwatch.results.commits import HistoryError, head, read_history


def subjects(repository) -> list[str]:
    return [commit.subject for commit in read_history(repository.path).commits]


def test_control_characters_in_subjects_and_names_are_made_visible(repository):
    repository.git("config", "log.showSignature", "true")
    repository.git("config", "i18n.logOutputEncoding", "latin1")
    for subject in ("tab\tand\x1funit", "\x1b[2Jescape\x9b31m\rreturn", "Größe → ✓"):
        repository.commit(subject)
    repository.git("commit", "-q", "--allow-empty", "--author", "A\x1bB <a@b>", "-m", "last")
    assert subjects(repository) == [
        "tab\ufffdand\ufffdunit",
        "\ufffd[2Jescape\ufffd31m\ufffdreturn",
        "Größe → ✓",
        "last",
    ]
    assert read_history(repository.path).commits[-1].author == "A\ufffdB"


def test_an_empty_subject_is_a_commit_too(repository):
    repository.git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", "")
    repository.commit("Two")
    assert subjects(repository) == ["", "Two"]


def test_a_date_that_no_clock_shows_does_not_stop_the_reading(repository):
    repository.git("commit", "-q", "--allow-empty", "-m", "x", "--date", "@99999999999999 +0000")
    (commit,) = read_history(repository.path).commits
    assert commit.authored_at.year == 9999


def test_a_detached_head_does_not_hide_the_branch(repository):
    first = repository.commit("One")
    repository.commit("Two")
    repository.git("checkout", "-q", "--detach", first)
    assert subjects(repository) == ["One", "Two"]


def test_a_tag_named_main_is_not_the_branch(repository):
    repository.commit("One")
    repository.git("tag", "main")
    second = repository.commit("Two")
    assert head(repository.path) == ("main", second)


def test_a_default_branch_of_another_name(repository, tmp_path):
    repository.commit("One")
    repository.git("branch", "-m", "main", "trunk")
    second = repository.commit("Two")
    assert head(repository.path) == ("HEAD", second)
    clone = tmp_path / "clone"
    repository.git("clone", "-q", str(repository.path), str(clone))
    subprocess.run(["git", "-C", str(clone), "checkout", "-q", "-b", "feature"], check=True)
    assert head(clone) == ("trunk", second)


def test_messages_do_not_depend_on_the_language(tmp_path, monkeypatch):
    monkeypatch.setenv("LANGUAGE", "de")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    with pytest.raises(HistoryError, match="not a git repository; name the checkout"):
        read_history(tmp_path / "plain")
    with pytest.raises(HistoryError, match="No such file"):
        read_history(tmp_path / "nowhere")
