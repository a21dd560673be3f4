"""From a kernel's name to a launch: compile, cache, load, record."""

from .cache import Artifact, Entry, artifact, build, cache_folder, entries, find
from .kernel import NAMESPACE, Kernel
from .launcher import Launch, launch, record_launches, recording
from .plan import Plan, record_plan
from .replay import Replay
from .resources import empty, multiprocessors
from .toolchain import ARCHITECTURE, MissingDependency, toolchain

__all__ = [
    "ARCHITECTURE",
    "Artifact",
    "Entry",
    "Kernel",
    "Launch",
    "MissingDependency",
    "NAMESPACE",
    "Plan",
    "Replay",
    "artifact",
    "build",
    "cache_folder",
    "empty",
    "entries",
    "find",
    "launch",
    "multiprocessors",
    "record_launches",
    "record_plan",
    "recording",
    "toolchain",
]
