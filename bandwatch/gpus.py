"""Datasheet facts of GPU models, by the name NVML gives them. Models are never pooled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """Peak device-memory bandwidth in bytes per second, from NVIDIA's datasheet."""

    memory: str
    peak_bytes_per_second: float


GPUS = {
    "NVIDIA H100 80GB HBM3": Gpu("HBM3", 3350e9),  # SXM5
    "NVIDIA H100 NVL": Gpu("HBM3", 3900e9),
    "NVIDIA H100 PCIe": Gpu("HBM2e", 2000e9),
    "NVIDIA H200": Gpu("HBM3e", 4800e9),
    "NVIDIA H200 NVL": Gpu("HBM3e", 4800e9),
}


def peak_bytes_per_second(name: str) -> float | None:
    """Datasheet peak of the GPU model NVML calls ``name``; None for a model not in the table."""
    gpu = GPUS.get(name)
    return gpu.peak_bytes_per_second if gpu else None
