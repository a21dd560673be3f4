"""From a kernel's name to a launch: compile, cache, load, record."""

from .cache import Artifact, artifact, build, cache_folder
from .kernel import NAMESPACE, Kernel
from .launcher import Launch, launch, record_launches, recording
from .plan import Plan, record_plan
from .resources import empty, multiprocessors
from .toolchain import ARCHITECTURE, MissingDependency, toolchain

__all__ = [
    "ARCHITECTURE",
    "Artifact",
    "Kernel",
    "Launch",
    "MissingDependency",
    "NAMESPACE",
    "Plan",
    "artifact",
    "build",
    "cache_folder",
    "empty",
    "launch",
    "multiprocessors",
    "record_launches",
    "record_plan",
    "recording",
    "toolchain",
]
