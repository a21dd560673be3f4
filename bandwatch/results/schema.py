"""The tables of the dataset: the contract between ingest, detection and whoever draws them.

One row per table is described by a pyarrow schema; every generation holds exactly these tables,
each as ``<table>.parquet``. Times are seconds, rates bytes per second, intervals 95 %.
"""

from __future__ import annotations

import pyarrow as pa

#: Providers measured for comparison. Every other provider is the suite under watch.
REFERENCES = frozenset({"control", "anchor", "eager", "compile", "quack", "liger"})

#: One measured (or tried) point: a workload by one provider at one commit on one machine.
#: Sorted by (series, position). ``position`` is the first-parent index, null off the branch.
POINTS = pa.schema(
    [
        ("series", pa.string()),  # "<workload key>|<provider>|<gpu>": what one line in a plot is
        ("op", pa.string()),
        ("direction", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.string()),
        ("options", pa.string()),
        ("provider", pa.string()),  # membound, eager, compile, ..., or "control"
        ("gpu", pa.string()),  # NVML name of the GPU model, "unknown" without a sidecar
        ("machine", pa.string()),
        ("env", pa.string()),
        ("commit", pa.string()),  # 40 hex digits
        ("position", pa.int64()),
        (
            "placement",
            pa.string(),
        ),  # "main", "merged" (attached to its merge), "off-branch", "unknown"
        ("benchmark", pa.string()),
        ("seconds", pa.float64()),
        ("seconds_low", pa.float64()),
        ("seconds_high", pa.float64()),
        ("bytes", pa.int64()),
        ("bytes_per_second", pa.float64()),
        ("utilisation", pa.float64()),  # time of the control / time of the provider, same session
        ("utilisation_low", pa.float64()),
        ("utilisation_high", pa.float64()),
        ("speedup", pa.float64()),  # time of eager / time of the provider, same session
        ("speedup_low", pa.float64()),
        ("speedup_high", pa.float64()),
        ("peak_share", pa.float64()),  # bytes_per_second / datasheet peak of the GPU
        ("samples", pa.int64()),
        ("call_seconds", pa.float64()),  # of a call from Python, host and GPU
        ("verdict", pa.string()),  # valid, throttled, not steady, above physical peak, ...
        ("reason", pa.string()),
        ("card", pa.string()),  # short digest that tells one card of a model from another
        ("sm_clock_mhz", pa.float64()),
        ("memory_clock_mhz", pa.float64()),
        ("temperature_c", pa.float64()),
        ("power_w", pa.float64()),
        ("toolchain", pa.string()),  # "torch 2.11.0+cu130, nvidia-cutlass-dsl 4.8.1, ..."
        ("driver", pa.string()),
        ("kernels", pa.string()),  # JSON object: kernel name -> digest
        ("session", pa.string()),
        ("started_at", pa.timestamp("ms", tz="UTC")),
    ]
)

#: Static facts of compiled kernels, long form: one row per workload, metric and commit.
STATIC = pa.schema(
    [
        ("series", pa.string()),  # "<workload key>|<metric>|<toolchain>"
        ("op", pa.string()),
        ("direction", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.string()),
        ("metric", pa.string()),  # registers, spills, narrow_access_share, ...; lower is better
        ("unit", pa.string()),
        ("toolchain", pa.string()),
        ("machine", pa.string()),
        ("commit", pa.string()),
        ("position", pa.int64()),
        ("value", pa.float64()),
    ]
)

#: The commits of the main branch, first parents only, oldest first, measured or not.
COMMITS = pa.schema(
    [
        ("commit", pa.string()),
        ("position", pa.int64()),
        ("subject", pa.string()),
        ("author", pa.string()),
        ("authored_at", pa.timestamp("ms", tz="UTC")),
        ("committed_at", pa.timestamp("ms", tz="UTC")),
        ("measured", pa.bool_()),
    ]
)

#: Every verdict of detection on a series; (good, bad] is the range that holds the change.
CHANGES = pa.schema(
    [
        ("change", pa.string()),  # stable id
        ("incident", pa.string()),  # null where the change belongs to none
        ("series", pa.string()),
        ("metric", pa.string()),
        ("verdict", pa.string()),  # regression, improvement, recovered, drift, outlier, ...
        ("good_commit", pa.string()),
        ("bad_commit", pa.string()),
        ("good_position", pa.int64()),
        ("bad_position", pa.int64()),
        ("before", pa.float64()),
        ("after", pa.float64()),
        (
            "effect",
            pa.float64(),
        ),  # log(after / before); its sign is the metric's, not the verdict's
        ("effect_low", pa.float64()),
        ("effect_high", pa.float64()),
        ("reason", pa.string()),
    ]
)

#: Changes with overlapping commit ranges and one direction, taken together.
INCIDENTS = pa.schema(
    [
        ("incident", pa.string()),
        ("verdict", pa.string()),
        ("status", pa.string()),  # regression: "open" or "recovered"; improvement: "closed"
        ("good_commit", pa.string()),
        ("bad_commit", pa.string()),
        ("good_position", pa.int64()),
        ("bad_position", pa.int64()),
        ("gpu", pa.string()),
        ("ops", pa.string()),  # comma-separated
        ("workloads", pa.int64()),
        ("worst_effect", pa.float64()),
        ("median_effect", pa.float64()),
        ("cause", pa.string()),  # likely cause from static facts or toolchain, "" if none is known
    ]
)

#: What reading met: damaged files, unknown commits, sidecars without a result.
WARNINGS = pa.schema([("source", pa.string()), ("message", pa.string())])

TABLES = {
    "points": POINTS,
    "static": STATIC,
    "commits": COMMITS,
    "changes": CHANGES,
    "incidents": INCIDENTS,
    "warnings": WARNINGS,
}
