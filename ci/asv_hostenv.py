"""asv environment that borrows the host's packages and measures one commit at a time, offline.

A thin virtual environment runs on the interpreter that runs asv and sees its packages (torch,
CUDA, the DSL). "Installing" a commit is checking it out and pinning the suite's import to that
checkout. All benchmark jobs of a commit and round go to one worker process.

asv.conf.json (asv keeps keys that it does not know)::

    "plugins": [".ci.asv_hostenv"], "environment_type": "hostenv", "pythons": ["same"],
    "host_suite": {"membound": "kernels"}     package under test: its folder in the checkout
    "host_harness": ["bandwatch"]             packages taken from the folder of asv.conf.json
    "host_record": ["torch", ...]             distributions whose version names the environment
    "host_worker": "persistent" or "spawn"    one process a round, or one a benchmark row
    "host_rounds": 2                          rounds of benchmarks whose unit is seconds
    "host_start_timeout": 300                 seconds more for the first job of a worker
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from asv import environment, results, util
from asv.console import log

from bandwatch import sidecar

_SETTINGS = (
    "host_suite",
    "host_harness",
    "host_record",
    "host_worker",
    "host_rounds",
    "host_start_timeout",
)

#: Seconds to wait for a killed worker; one that hangs inside a driver call may never go.
KILL_SECONDS = 20.0

# What the environment runs when its interpreter starts, through a .pth file. Pinning beats any
# order of sys.path: neither the working tree nor an editable install on the host can stand in for
# a commit that lacks the suite. addsitedir, because the host's own .pth files must run too.
_STARTUP = '''\
"""Written by asv_hostenv: where this environment imports from."""
import site, sys
from importlib.machinery import PathFinder

for folder in {sites!r}:
    site.addsitedir(folder)


class Pinned:
    folders = {pinned!r}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.folders:
            return None
        spec = PathFinder.find_spec(name, [cls.folders[name]])
        if spec is None:
            raise ModuleNotFoundError(f"no {{name!r}} in {{cls.folders[name]}}", name=name)
        return spec


sys.meta_path.insert(0, Pinned)
'''


def setup() -> None:
    """asv's plugin hook: saving a result file also delivers the session that measured it."""
    save = results.Results.save
    if hasattr(save, "__wrapped__"):
        return

    @functools.wraps(save)
    def save_with_session(self: results.Results, result_dir: str) -> None:
        save(self, result_dir)
        host = HostEnvironment.measuring.pop(self.env_name, None)
        if host is not None:
            host.deliver_session(
                Path(result_dir)
                / results.get_filename(self.params["machine"], self.commit_hash, self.env_name)
            )

    results.Results.save = save_with_session


class HostEnvironment(environment.Environment):
    """The interpreter that runs asv, with one commit's suite pinned into it."""

    tool_name = "hostenv"
    #: Environments with an open session, by name; asv's results know only the name.
    measuring: dict[str, HostEnvironment] = {}

    def __init__(self, conf: Any, python: str, requirements: dict, tagged_env_vars: dict) -> None:
        if python != "same":
            raise environment.EnvironmentUnavailable(
                f"hostenv runs on the interpreter that runs asv, not on python {python!r}; "
                'say "pythons": ["same"]'
            )
        missing = [key for key in _SETTINGS if not hasattr(conf, key)]
        if missing:
            raise util.UserError(f"asv.conf.json lacks {missing}; ci/asv_hostenv.py explains them")
        if conf.host_worker not in ("persistent", "spawn"):
            raise util.UserError(
                f'asv.conf.json: "host_worker" is {conf.host_worker!r}; '
                'expected "persistent" or "spawn"'
            )
        if not isinstance(conf.host_rounds, int) or conf.host_rounds < 1:
            raise util.UserError(
                f'asv.conf.json: "host_rounds" is {conf.host_rounds!r}; expected 1, 2 or more'
            )
        self._rounds = conf.host_rounds
        self._persistent = conf.host_worker == "persistent"
        self._start_timeout = float(conf.host_start_timeout)
        self._suite = dict(conf.host_suite)
        self._harness = list(conf.host_harness)
        self._sessions = Path(conf.env_dir).absolute().parent / "sessions"
        self._results = Path(conf.results_dir).absolute()
        #: The commit whose session is open; what was said about each commit's session in this run
        #: of asv; and the sidecars that were delivered.
        self._open: str | None = None
        self._said: dict[str, dict[str, str]] = {}
        self._delivered: dict[str, Path] = {}
        self._worker: Worker | None = None
        self._asked: set[str] = set()
        # The base class names the environment's folder by these before it sets them.
        self._python = "{}.{}".format(*sys.version_info)
        self._requirements = {**requirements, **_versions(conf.host_record)}
        conf.build_command = conf.uninstall_command = []  # the default ones call pip
        super().__init__(conf, self._python, self._requirements, tagged_env_vars)
        self._base_requirements = {}  # whatever asv needs is on the host already
        atexit.register(self._stop_worker)

    @classmethod
    def matches(cls, python: str) -> bool:
        return python == "same"

    def check_presence(self) -> bool:
        try:
            info = self.load_info_file(self._path)
            self.find_executable("python")
        except (util.UserError, OSError):
            return False
        return info == {
            "tool_name": self.tool_name,
            "python": self._python,
            "requirements": self._requirements,
            "build_env_vars": self.build_env_vars,
        }

    def _setup(self) -> None:
        log.info(f"Creating {self.name} on top of {sys.executable}")
        util.check_call([sys.executable, "-m", "venv", "--without-pip", self._path])

    # One commit -------------------------------------------------------------------------------

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        self._stop_worker()  # it holds another commit's modules
        super().install_project(conf, repo, commit_hash)

    def _get_install_checksum(self) -> list:
        return [*super()._get_install_checksum(), self._startup()]

    def _install_project(self, repo: Any, commit_hash: str, build_dir: str) -> None:
        packages = Path(self._path, "lib", f"python{self._python}", "site-packages")
        (packages / "asv_hostenv_startup.py").write_text(self._startup())
        (packages / "asv_hostenv_startup.pth").write_text("import asv_hostenv_startup\n")

    def _startup(self) -> str:
        sites = site.getsitepackages()
        if site.ENABLE_USER_SITE:
            sites.append(site.getusersitepackages())
        checkout = Path(self._build_root, self._repo_subdir)
        pinned = {name: os.path.abspath(".") for name in self._harness}
        pinned |= {name: str(checkout / folder) for name, folder in self._suite.items()}
        return _STARTUP.format(sites=sites, pinned=pinned)

    # Jobs -------------------------------------------------------------------------------------

    def run(self, args: list[str], **kwargs: Any) -> Any:
        if len(args) < 2 or args[1] != "run":
            done = self.run_executable("python", args, **kwargs)
            if args[1:2] == ["discover"]:
                _set_rounds(Path(args[-1]), self._rounds)
            return done
        _, _, _, benchmark, params, *_ = args
        self._begin_session()
        # asv tells these apart only by its overrides, which benchmarks cannot see.
        overrides = json.loads(params)
        self._global_env_vars["ASV_QUICK"] = str(int(overrides.get("repeat") == 1))
        self._global_env_vars["ASV_ROUNDS"] = str(overrides.get("rounds", self._rounds))
        if not self._persistent:
            self._count("ASV_PROCESS")
            return self.run_executable("python", args, **kwargs)
        output, status = self._run_in_worker(benchmark, args[2:], **kwargs)
        return output, None, status

    def _run_in_worker(
        self, benchmark: str, args: list[str], *, cwd: str, timeout: float, env: dict, **_: Any
    ) -> tuple[str, int]:
        if benchmark in self._asked:  # another round
            self._stop_worker()
            self._count("ASV_ROUND")
        if self._worker is None:
            timeout += self._start_timeout
            self._count("ASV_PROCESS")
            self._worker = Worker(self.find_executable("python"), self._worker_environ(env))
        self._asked.add(benchmark)
        output, status = self._worker.run({"args": args, "cwd": cwd}, timeout)
        if status == util.TIMEOUT_RETCODE or not self._worker.alive():
            self._drop_worker()
        return output, status

    def _worker_environ(self, env: dict) -> dict:
        environ = {**env, **self._global_env_vars}
        environ.pop("PYTHONPATH", None)  # could hold another copy of the suite
        environ["PATH"] = os.pathsep.join([str(Path(self._path, "bin")), environ.get("PATH", "")])
        return environ

    def _drop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _stop_worker(self) -> None:
        self._drop_worker()
        self._asked.clear()

    # The session sidecar ----------------------------------------------------------------------

    def _begin_session(self) -> None:
        """Tell the benchmarks where to write the sidecar, and its identity, once a commit.

        asv may go through all commits once a round: the session of a commit then goes on.
        """
        commit = self._global_env_vars["ASV_COMMIT"]
        if self._open == commit:
            return
        spool = self._spool(commit)
        if spool.exists():
            kept = spool.with_name(f"{spool.name}.{time.time_ns()}.unsaved")
            spool.rename(kept)
            log.warning(
                f"An earlier session of {commit[:8]} was measured but not saved (interrupted, or "
                f"a dry run); it stays in {os.path.relpath(kept)}, this run starts a new one"
            )
        self._open = commit
        self.measuring[self.name] = self
        if commit in self._said:
            if commit in self._delivered:
                shutil.copyfile(self._delivered[commit], spool)
            self._global_env_vars |= self._said[commit]
            self._count("ASV_ROUND")
            return
        _unfinished(spool).unlink(missing_ok=True)
        started = datetime.now(UTC)
        self._global_env_vars |= {
            "ASV_SESSION": f"{started:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}",
            "ASV_SESSION_STARTED": started.isoformat(timespec="seconds"),
            "ASV_SESSION_FILE": str(spool),
            "ASV_RESULTS": str(self._results),
            "ASV_PROCESS": "-1",
            "ASV_ROUND": "0",
        }

    def _count(self, name: str) -> None:
        """Number the processes of a session, whose samples share no allocator, and its rounds."""
        self._global_env_vars[name] = str(int(self._global_env_vars[name]) + 1)

    def _spool(self, commit: str) -> Path:
        return self._sessions / (_stem(commit, self.name) + sidecar.SUFFIX)

    def deliver_session(self, result: Path) -> None:
        """End the worker, and :func:`deliver` the sidecar of the session beside ``result``."""
        self._stop_worker()
        commit, self._open = self._open, None
        self._said[commit] = {
            name: value
            for name, value in self._global_env_vars.items()
            if name.startswith("ASV_SESSION") or name in ("ASV_RESULTS", "ASV_PROCESS", "ASV_ROUND")
        }
        spool = self._spool(commit)
        if not spool.exists():
            return  # nothing could be measured here
        self._delivered[commit] = deliver(spool, result)
        _unfinished(spool).unlink(missing_ok=True)


def deliver(spool: Path, result: Path) -> Path:
    """Move a session's sidecar beside asv's ``result``; returns where it is.

    An older session beside it stays, under its own name, where it measured something that this
    one did not.
    """
    target = result.with_suffix(sidecar.SUFFIX)  # result ends in .json
    if target.exists():
        _keep_older(target, sidecar.read(spool))
    # Copied beside it first: .asv and results may lie on two file systems.
    partial = target.with_name(f".{target.name}.partial")
    shutil.copyfile(spool, partial)
    os.replace(partial, target)
    spool.unlink()
    return target


class Worker:
    """One interpreter of the environment that runs benchmark jobs, one after the other."""

    def __init__(self, python: str, environ: dict[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._reply, reply = os.pipe()
        script = str(Path(__file__).with_name("asv_worker.py"))
        # A session of its own, so that its compiler processes can be killed with it.
        self._process = subprocess.Popen(
            [python, "-P", "-u", script, str(reply)],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env=environ,
            pass_fds=[reply],
            start_new_session=True,
        )
        os.close(reply)

    def run(self, job: dict[str, Any], timeout: float) -> tuple[str, int]:
        """What ``job`` printed and its exit status; asv's TIMEOUT_RETCODE after ``timeout`` s.

        A worker that died or timed out is not :meth:`alive` afterwards.
        """
        before = os.fstat(self._output.fileno()).st_size
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        status = self._wait(time.monotonic() + timeout)
        size = os.fstat(self._output.fileno()).st_size - before
        output = os.pread(self._output.fileno(), size, before).decode(errors="replace")
        return output, status

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Kill the worker and its children; gives up after :data:`KILL_SECONDS`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning(
                f"benchmark worker {self._process.pid} cannot be killed (stuck in a driver call?); "
                "it is left behind and may still hold the GPU"
            )
        os.close(self._reply)
        self._output.close()

    def _wait(self, deadline: float) -> int:
        while time.monotonic() < deadline:
            # Read before looking at the process: a reply may precede its end.
            dead = not self.alive()
            if select.select([self._reply], [], [], 0 if dead else 0.5)[0]:
                reply = os.read(self._reply, 64)
                if reply:
                    return int(reply)
                time.sleep(0.05)  # end of file: the process is on its way out
            if dead:
                return self._process.returncode or 1
            log.dot()
        return util.TIMEOUT_RETCODE


def _versions(distributions: list[str]) -> dict[str, str]:
    """Installed versions by distribution, "absent" where there is none."""
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def _set_rounds(discovered: Path, rounds: int) -> None:
    """Let asv repeat the benchmarks of times: of ``track_`` ones it hands no rounds on."""
    text = discovered.read_text()
    if not text:
        return  # discovery failed, which asv tells
    benchmarks = json.loads(text)
    for benchmark in benchmarks:
        if benchmark.get("unit") == "seconds":
            benchmark["rounds"] = rounds
    discovered.write_text(json.dumps(benchmarks))


def _stem(commit: str, env_name: str) -> str:
    """asv's own name for the result file of a commit, without its suffix."""
    return Path(results.get_filename("", commit, env_name)).stem


def _unfinished(spool: Path) -> Path:
    """Where the benchmarks note what they are measuring, for the worker after a crash."""
    return spool.with_name(spool.name + ".unfinished")


def _keep_older(target: Path, new: sidecar.Sidecar) -> None:
    """Rename the sidecar at ``target`` by its session unless ``new`` measured all of it again."""
    try:
        old = sidecar.read(target)
    except sidecar.SidecarError as error:
        kept = target.with_name(target.name + ".damaged")
        log.warning(f"{error}. It stays in {kept}")
    else:
        if old.session["session"] == new.session["session"]:
            return  # an earlier round of it
        if {line["key"] for line in old.workloads} <= {line["key"] for line in new.workloads}:
            return
        stem = target.name.removesuffix(sidecar.SUFFIX)
        kept = target.with_name(f"{stem}.{old.session['session']}{sidecar.SUFFIX}")
    target.rename(kept)
