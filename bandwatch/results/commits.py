"""The order of commits, read from git: the first-parent line of the default branch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

#: What a terminal or a browser could take for a command: C0, DEL and C1.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class HistoryError(Exception):
    """The order of commits cannot be known; the message says why and what to do."""


@dataclass(frozen=True)
class Commit:
    """One commit of the main line; ``position`` counts first parents from the root, from 0.

    Control characters in ``subject`` and ``author`` are replaced by U+FFFD.
    """

    hash: str
    position: int
    subject: str
    author: str
    authored_at: datetime
    committed_at: datetime


@dataclass(frozen=True)
class Placement:
    """Where a commit stands towards the main line.

    ``kind`` is "main", "merged" (came in by the merge at ``position``), "off-branch" (known to the
    repository, never merged) or "unknown".
    """

    kind: str
    position: int | None


@dataclass(frozen=True)
class History:
    """The main line, oldest first, and the position at which each merged commit came in."""

    repo: Path
    branch: str
    commits: tuple[Commit, ...]
    merged: Mapping[str, int]

    def place(self, hashes: Iterable[str]) -> dict[str, Placement]:
        """The placement of each of ``hashes`` (40 hex digits)."""
        main = {c.hash: c.position for c in self.commits}
        places: dict[str, Placement] = {}
        others = []
        for name in hashes:
            if name in main:
                places[name] = Placement("main", main[name])
            elif name in self.merged:
                places[name] = Placement("merged", self.merged[name])
            else:
                others.append(name)
        known = _known(self.repo, others)
        for name in others:
            places[name] = Placement("off-branch" if name in known else "unknown", None)
        return places


def head(repo: Path | str) -> tuple[str, str]:
    """Name and commit of the default branch.

    That is the branch the remote calls its default, else main, else master, else what is checked
    out; a local branch goes before the remote's copy of it. Raises :class:`HistoryError`.
    """
    repo = Path(repo)
    _git(repo, "rev-parse", "--git-dir")
    remote = _try(repo, "symbolic-ref", "--short", "refs/remotes/origin/HEAD")
    names = dict.fromkeys([remote.removeprefix("origin/")] if remote else [])
    names |= dict.fromkeys(["main", "master"])
    for name in names:
        # In full, because git takes a tag before a branch of the same name.
        for ref, place in ((name, "refs/heads"), (f"origin/{name}", "refs/remotes")):
            if commit := _commit(repo, f"{place}/{ref}"):
                return ref, commit
    if commit := _commit(repo, "HEAD"):
        return "HEAD", commit
    raise HistoryError(f"{repo}: the repository has no commits yet; commit something first")


def read_history(repo: Path | str) -> History:
    """The history of the default branch of the repository at ``repo``.

    Raises :class:`HistoryError` where git is not installed, ``repo`` is not in a repository, has no
    commits, or is a shallow clone.
    """
    repo = Path(repo)
    branch, commit = head(repo)
    if _git(repo, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise HistoryError(
            f"{repo}: a shallow clone, so the order of older commits is not known; "
            "run `git fetch --unshallow` first"
        )
    commits = _main_line(repo, commit)
    return History(repo, branch, commits, _merged(repo, commit, commits))


def _main_line(repo: Path, commit: str) -> tuple[Commit, ...]:
    # Neither a subject nor a name can hold a line feed; anything else they can.
    fields = "%H%n%s%n%an%n%at%n%ct"
    log = _git(
        repo, "log", "-z", "--first-parent", "--reverse", "--no-show-signature",
        "--encoding=UTF-8", f"--format={fields}", commit,
    )  # fmt: skip
    commits = []
    for position, record in enumerate(log.rstrip("\0").split("\0")):
        name, subject, author, *times = record.split("\n")
        subject, author = (_CONTROL.sub("\ufffd", text) for text in (subject, author))
        commits.append(Commit(name, position, subject, author, *map(_time, times)))
    return tuple(commits)


def _time(seconds: str) -> datetime:
    """The nearest time that a datetime can hold: git keeps whatever a broken clock says."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(microsecond=0, tzinfo=UTC)


def _merged(repo: Path, commit: str, main_line: tuple[Commit, ...]) -> dict[str, int]:
    """Side-branch commits and the position of the first merge that brought them in."""
    parents = {}
    for line in _git(repo, "rev-list", "--parents", commit).splitlines():
        name, *rest = line.split()
        parents[name] = rest
    seen = {c.hash for c in main_line}
    merged: dict[str, int] = {}
    for merge in main_line:
        todo = parents[merge.hash][1:]
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                merged[name] = merge.position
                todo.extend(parents[name])
    return merged


def _known(repo: Path, hashes: list[str]) -> set[str]:
    if not hashes:
        return set()
    answer = _git(repo, "cat-file", "--batch-check", stdin="\n".join(hashes) + "\n")
    lines = (line.split() for line in answer.splitlines())
    return {fields[0] for fields in lines if fields[1] == "commit"}


def _commit(repo: Path, ref: str) -> str:
    return _try(repo, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")


def _try(repo: Path, *args: str) -> str:
    try:
        return _git(repo, *args).strip()
    except HistoryError:
        return ""


def _git(repo: Path, *args: str, stdin: str | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(repo), *args],
            input=None if stdin is None else stdin.encode(),
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},  # its messages are read below
        )
    except FileNotFoundError:
        raise HistoryError(
            "git is not installed, so the order of commits is not known; install git"
        ) from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        if "not a git repository" in message:
            message = "not a git repository; name the checkout of the suite with --repo"
        raise HistoryError(f"{repo}: {message or f'git {args[0]} failed'}")
    # Not text mode, which would turn a carriage return in a subject into a line feed.
    return done.stdout.decode(errors="replace")
