"""Long-lived benchmark worker: one asv job a line on stdin, its exit status a line on REPLY_FD.

Started by :mod:`asv_hostenv` with its output in a file; run by hand it does nothing useful.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback

#: Of Linux's prctl: the signal to get when the parent dies.
_PR_SET_PDEATHSIG = 1


def main(reply_fd: int) -> None:
    """Run jobs until stdin ends, or a job ends the process (SystemExit, a crash)."""
    # If asv is killed, the GPU must not stay busy with a job that nobody waits for.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from asv_runner.run import _run

    jobs = os.fdopen(os.dup(0))
    # Benchmarks and their children must not eat the job queue, nor hold the reply pipe open.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(reply_fd, False)
    for line in jobs:
        job = json.loads(line)
        cwd, path, finders = os.getcwd(), list(sys.path), list(sys.meta_path)
        status = 0
        try:
            os.chdir(job["cwd"])
            _run(tuple(job["args"]))
        except Exception:
            status = 1
            traceback.print_exc()
        # asv_runner prepends an importer for every job.
        os.chdir(cwd)
        sys.path[:], sys.meta_path[:] = path, finders
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(reply_fd, f"{status}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
