import json
import socket
import subprocess

import pytest

from ci import watch


def git(folder, *args):
    result = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *args],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout.strip()


@pytest.fixture
def repo(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "asv.conf.json").write_text(
        '{"version": 1, "repo": ".", "benchmark_dir": "asv_bench", // where\n'
        ' "env_dir": ".asv/env", "results_dir": "results"}'
    )
    commit(tmp_path, "asv.conf.json")
    return tmp_path


def commit(folder, *names):
    git(folder, "add", *names)
    git(folder, "commit", "-qm", f"change {', '.join(names)}")
    return git(folder, "rev-parse", "HEAD")


def edit(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return commit(folder, name)


def test_only_commits_that_change_kernels_are_chosen_newest_first(repo):
    first = edit(repo, "kernels/op.py", "1")
    edit(repo, "README.md", "words")
    second = edit(repo, "kernels/op.py", "2")
    edit(repo, "asv_bench/bench.py", "1")
    third = edit(repo, "kernels/other.py", "1")
    assert watch.newest_commits(repo, 10) == [third, second, first]
    assert watch.newest_commits(repo, 2) == [third, second]
    assert watch.newest_commits(repo, 0) == []


def test_a_side_branch_counts_as_its_merge(repo):
    edit(repo, "kernels/op.py", "1")
    git(repo, "checkout", "-qb", "side")
    side = edit(repo, "kernels/other.py", "1")
    git(repo, "checkout", "-q", "main")
    edit(repo, "README.md", "words")
    git(repo, "merge", "-q", "--no-ff", "-m", "merge side", "side")
    chosen = watch.newest_commits(repo, 10)
    assert chosen[0] == git(repo, "rev-parse", "HEAD")
    assert side not in chosen


def test_outside_git_the_message_says_what_to_do(tmp_path):
    with pytest.raises(watch.WatchError, match="git clone"):
        watch.checkout(tmp_path)


def test_a_checkout_of_something_else_is_named(repo):
    git(repo, "rm", "-q", "asv.conf.json")
    with pytest.raises(watch.WatchError, match=r"no asv\.conf\.json"):
        watch.checkout(repo)


def test_without_a_commit_the_message_is_gits(tmp_path):
    git(tmp_path, "init", "-q")
    with pytest.raises(watch.WatchError, match="no commits to measure"):
        watch.newest_commits(tmp_path, 3)


def test_local_results_stay_out_of_the_recorded_history(repo):
    pytest.importorskip("asv")
    config = json.loads(watch.local_config(repo).read_text())
    assert config["results_dir"] == ".bandwatch/results"
    assert (config["repo"], config["benchmark_dir"]) == (".", "asv_bench")


def test_a_taken_port_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert watch.free_port(port) > port
        with pytest.raises(watch.WatchError, match="--port"):
            watch.free_port(port, tries=1)
