"""Clocks, temperature, power and throttle reasons of the GPU, read through NVML while measuring."""

from __future__ import annotations

import functools
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: Seconds between readings. A workload takes about half a second, so some 25 readings; one costs
#: well below a millisecond of a host thread that otherwise waits for the GPU.
PERIOD = 0.02

#: Bits of nvmlClocksEventReasons (nvml.h).
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


@dataclass(frozen=True)
class Reading:
    """One look at the GPU: MHz, MHz, °C, W, and the bits of the throttle reasons."""

    sm_clock: float
    memory_clock: float
    temperature: float
    power: float
    reasons: int

    @property
    def idle(self) -> bool:
        return bool(self.reasons & 0x001)


@dataclass(frozen=True)
class Telemetry:
    """The readings of one workload. Empty where there is no NVML, which is not an error.

    Idle readings fall into the pauses between placements and say nothing about the measurement:
    they count only where there are no others.
    """

    readings: Sequence[Reading] = ()
    max_sm_clock: float | None = None

    @property
    def reasons(self) -> list[str]:
        """Names of all reasons seen, sorted, without ``gpu_idle``."""
        seen = functools.reduce(lambda bits, r: bits | r.reasons, self.readings, 0)
        return sorted(name for bit, name in REASONS.items() if seen & bit and bit != 0x001)

    @property
    def sm_clock_share(self) -> float | None:
        """Median SM clock over the card's maximum; None where either is unknown."""
        if not self._counted or not self.max_sm_clock:
            return None
        return statistics.median(r.sm_clock for r in self._counted) / self.max_sm_clock

    def record(self) -> dict[str, Any]:
        """The ``telemetry`` object of a sidecar line: [minimum, median, maximum] each."""
        if not self.readings:
            return {}
        return {
            "sm_clock_mhz": _range([r.sm_clock for r in self._counted]),
            "memory_clock_mhz": _range([r.memory_clock for r in self._counted]),
            "temperature_c": _range([r.temperature for r in self._counted]),
            "power_w": _range([r.power for r in self._counted]),
            "throttle_reasons": self.reasons,
        }

    @property
    def _counted(self) -> Sequence[Reading]:
        return [r for r in self.readings if not r.idle] or self.readings


class Source(Protocol):
    """What readings are taken from."""

    max_sm_clock: float

    def read(self) -> Reading: ...


class Watch:
    """Takes readings in a background thread: ``with Watch(source) as watch: ...``."""

    def __init__(self, source: Source | None, period: float = PERIOD) -> None:
        self._source = source
        self._period = period
        self._readings: list[Reading] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        if self._source is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._source is not None:
            self._thread.join()

    def read(self) -> None:
        """Take a reading now, besides those of the thread."""
        if self._source is not None:
            self._readings.append(self._source.read())

    def telemetry(self) -> Telemetry:
        """What was read so far."""
        if self._source is None:
            return Telemetry()
        return Telemetry(tuple(self._readings), self._source.max_sm_clock)

    def _run(self) -> None:
        while True:
            self._readings.append(self._source.read())
            if self._done.wait(self._period):
                return


class Nvml:
    """One GPU seen through NVML, by UUID, because CUDA_VISIBLE_DEVICES renumbers indices."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.name: str = _text(pynvml.nvmlDeviceGetName(self._handle))
        self.driver: str = _text(pynvml.nvmlSystemGetDriverVersion())
        self.max_sm_clock = float(
            pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
        )

    def read(self) -> Reading:
        nvml, handle = self._nvml, self._handle
        return Reading(
            sm_clock=float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock=float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            temperature=float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power=nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            reasons=int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )


@functools.cache
def connect(uuid: str) -> Nvml | None:
    """The GPU with that UUID, or None where NVML, its Python binding or a permission is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        gpu = Nvml(uuid)
        gpu.read()  # a virtual or restricted GPU may have a name and yet refuse readings
    except pynvml.NVMLError:
        return None
    return gpu


def _range(values: Sequence[float]) -> list[float]:
    return [min(values), statistics.median(values), max(values)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
