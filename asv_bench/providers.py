"""The baselines beside eager: torch.compile, QuACK and Liger, each where it has the operation.

To add one, write a class with ``name`` and ``bind`` and list it in ``BASELINES``. Every result is
checked before it is timed, like the suite's own. Libraries are imported when they are first run,
and are not available where they are not installed.

What they compile at their first calls is kept in their own caches (``TORCHINDUCTOR_CACHE_DIR`` and
the like). ``python -m asv_bench.providers [PROCESSES]`` fills those for the whole grid in parallel.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# Settles which kernels eager uses, so before anything that imports torch.
from bandwatch.measure import backward, environment, shards
from bandwatch.measure.workload import BACKWARD, DTYPE_BYTES, Op, Tensors, Workload

from . import workloads
from .workloads.cross_entropy import IGNORED
from .workloads.norms import EPS

Run = Callable[[Tensors, Workload], Any]


class Baseline(Protocol):
    """Something else than the suite that can do some of its operations."""

    name: str

    def bind(self, op: Op) -> Run | None:
        """What does ``op`` in place of the suite; None where it has nothing of the kind.

        Raises NotImplementedError, when it is called, for a workload that it cannot do.
        """


class Compiled:
    """torch.compile of the eager provider, in its default mode: what users get without tuning.

    A fresh function a workload and nothing dynamic, because the ninth shape of one function would
    silently run in eager mode. It fails where anything falls back.
    """

    name = "compile"

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._function: Callable[..., Any] | None = None

    def bind(self, op: Op) -> Run:
        """Any operation can be compiled."""
        return functools.partial(self._run, op)

    def _run(self, op: Op, inputs: Tensors, workload: Workload) -> Any:
        import torch
        from torch._functorch import config as functorch

        if self._workload != workload:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            eager = op.providers["eager"]

            def fresh(inputs: Tensors) -> Any:
                return eager(inputs, workload)

            self._function = torch.compile(fresh, dynamic=False, fullgraph=True)
            self._workload = workload
        # A gradient is timed by computing it again and again: what was saved must stay.
        with (
            functorch.patch(donated_buffer=False),
            torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
        ):
            result = self._function(dict(inputs))
        if not torch._dynamo.utils.counters["stats"]["unique_graphs"]:
            raise RuntimeError("torch.compile compiled nothing: this would be eager's time")
        return result


class Library:
    """A package's functions by the operation, each with the options that it takes besides defaults.

    ``forward_only`` names operations whose gradient cannot be timed by repetition, and why.
    ``unable`` says why the library cannot do a workload, or nothing.
    """

    def __init__(
        self,
        name: str,
        package: str,
        functions: Mapping[str, tuple[Run, Mapping[str, tuple[str, ...]]]],
        forward_only: Mapping[str, str],
        unable: Callable[[Workload], str] = lambda workload: "",
    ) -> None:
        self.name, self.package = name, package
        self.functions, self._forward_only, self._unable = functions, forward_only, unable

    def bind(self, op: Op) -> Run | None:
        """The function of that operation, if the library has one."""
        found = self.functions.get(op.name)
        return None if found is None else functools.partial(self._run, op, *found)

    def _run(
        self,
        op: Op,
        function: Run,
        takes: Mapping[str, tuple[str, ...]],
        inputs: Tensors,
        workload: Workload,
    ) -> Any:
        for option, value in workload.options:
            if value not in takes.get(option, ()):
                raise NotImplementedError(f"{self.name} has no {op.name} with {option}={value}")
        if workload.direction == BACKWARD and op.name in self._forward_only:
            raise NotImplementedError(f"{self.name}: {self._forward_only[op.name]}")
        if reason := self._unable(workload):
            raise NotImplementedError(f"{self.name}: {reason}")
        try:
            return function(inputs, workload)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != self.package:
                raise
            raise NotImplementedError(f"{self.package} is not installed") from error


def _quack(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"quack.{module}"), name)


def _quack_unable(workload: Workload) -> str:
    columns = workload.shape[-1]
    if columns * DTYPE_BYTES[workload.dtype] % 16:
        return "rows must be whole vectors of 16 bytes"
    if workload.op == "topk" and (columns > 4096 or columns & (columns - 1)):
        return "topk takes powers of two up to 4096"
    return ""


def _quack_softmax(inputs: Tensors, workload: Workload) -> Any:
    return _quack("softmax", "softmax")(inputs["input"])


def _quack_rms_norm(inputs: Tensors, workload: Workload) -> Any:
    residual = inputs.get("residual")
    return _quack("rmsnorm", "rmsnorm")(
        inputs["input"],
        inputs.get("weight"),
        residual=residual,
        eps=EPS,
        prenorm=residual is not None,
    )


def _quack_layer_norm(inputs: Tensors, workload: Workload) -> Any:
    # it takes the weight in float32 only
    weight, bias = inputs.get("weight"), inputs.get("bias")
    return _quack("rmsnorm", "layernorm_fwd")(
        inputs["input"],
        None if weight is None else weight.float(),
        None if bias is None else bias.float(),
        EPS,
    )


def _quack_cross_entropy(inputs: Tensors, workload: Workload) -> Any:
    return _quack("cross_entropy", "cross_entropy")(
        inputs["input"],
        inputs["target"],
        ignore_index=IGNORED,
        reduction=_reduction(workload),
    )


def _quack_rotary(inputs: Tensors, workload: Workload) -> Any:
    interleaved = dict(workload.options).get("interleaved") == "yes"
    return _quack("rotary", "apply_rotary_emb")(
        inputs["input"], inputs["cos"], inputs["sin"], interleaved=interleaved
    )


def _quack_topk(inputs: Tensors, workload: Workload) -> Any:
    options = dict(workload.options)
    values, indices = _quack("topk", "topk")(
        inputs["input"], int(options.get("k", _DEFAULT_K)), softmax=options.get("softmax") == "yes"
    )
    return values, indices


def _liger(name: str) -> Any:
    return getattr(importlib.import_module("liger_kernel.ops"), name).apply


def _liger_softmax(inputs: Tensors, workload: Workload) -> Any:
    return _liger("LigerSoftmaxFunction")(inputs["input"])


def _liger_rms_norm(inputs: Tensors, workload: Workload) -> Any:
    # in place it would write its gradient over the one it is given
    x, weight = inputs["input"], inputs.get("weight")
    if "residual" in inputs:
        function = _liger("LigerFusedAddRMSNormFunction")
        return function(x, inputs["residual"], weight, EPS, 0.0, "llama", False)
    return _liger("LigerRMSNormFunction")(x, weight, EPS, 0.0, "llama", False)


def _liger_layer_norm(inputs: Tensors, workload: Workload) -> Any:
    return _liger("LigerLayerNormFunction")(
        inputs["input"], inputs.get("weight"), inputs.get("bias"), EPS
    )


def _liger_cross_entropy(inputs: Tensors, workload: Workload) -> Any:
    reduction = _reduction(workload)
    arguments = (inputs["input"], inputs["target"], None, IGNORED, 0.0, 0.0, reduction)
    return _liger("LigerCrossEntropyFunction")(*arguments)[0]


def _liger_swiglu(inputs: Tensors, workload: Workload) -> Any:
    if "up" not in inputs:
        return _liger("LigerFusedGateUpSiLUMulFunction")(inputs["gate"])
    return _liger("LigerSiLUMulFunction")(inputs["gate"], inputs["up"])


def _liger_geglu(inputs: Tensors, workload: Workload) -> Any:
    if dict(workload.options).get("approximate") != "tanh":
        raise NotImplementedError("liger approximates gelu by tanh")
    return _liger("LigerGELUMulFunction")(inputs["gate"], inputs["up"])


def _liger_bias_act(inputs: Tensors, workload: Workload) -> Any:
    if dict(workload.options) != {"activation": "relu2", "bias": "none"}:
        raise NotImplementedError("liger has relu2 without a bias alone")
    return _liger("LigerReLUSquaredFunction")(inputs["input"])


def _reduction(workload: Workload) -> str:
    return dict(workload.options).get("reduction", "mean")


_DEFAULT_K = "8"
_REDUCTIONS = {"reduction": ("sum", "none")}
_OVERWRITES = "its backward overwrites what the forward saved, so it cannot be repeated"

QUACK = Library(
    "quack",
    "quack",
    {
        "softmax": (_quack_softmax, {}),
        "rms_norm": (_quack_rms_norm, {"residual": ("same",), "weight": ("none",)}),
        "layer_norm": (_quack_layer_norm, {"bias": ("none",)}),
        "cross_entropy": (_quack_cross_entropy, _REDUCTIONS),
        "rotary": (_quack_rotary, {"interleaved": ("yes",)}),
        "topk": (_quack_topk, {"k": ("16", "32", "64", "128"), "softmax": ("yes",)}),
    },
    forward_only={"layer_norm": "its layer_norm has no gradient"},
    unable=_quack_unable,
)

LIGER = Library(
    "liger",
    "liger_kernel",
    {
        "softmax": (_liger_softmax, {}),
        "rms_norm": (_liger_rms_norm, {"residual": ("same",)}),
        "layer_norm": (_liger_layer_norm, {}),
        "cross_entropy": (_liger_cross_entropy, _REDUCTIONS),
        "swiglu": (_liger_swiglu, {"halves": ("packed",)}),
        "geglu": (_liger_geglu, {"approximate": ("tanh",)}),
        "bias_act": (_liger_bias_act, {"activation": ("relu2",), "bias": ("none",)}),
    },
    forward_only={
        "cross_entropy": "it computes the gradient in the forward, over the logits",
        "swiglu": _OVERWRITES,
        "geglu": _OVERWRITES,
    },
)

#: In the order of their rows, after the suite and eager.
BASELINES: tuple[Baseline, ...] = (Compiled(), QUACK, LIGER)


def bound(op: Op) -> dict[str, Run]:
    """The baselines that have the operation, by name."""
    found = {baseline.name: baseline.bind(op) for baseline in BASELINES}
    return {name: run for name, run in found.items() if run is not None}


#: Of a benchmark row, in their order.
PROVIDERS = ("membound", "eager", *(baseline.name for baseline in BASELINES), "control")


def compile_part(part: shards.Shard) -> None:
    """Run every baseline once on the workloads of one part of the grid."""
    import torch

    generator = torch.Generator("cuda")
    for workload in filter(lambda one: part.takes(one.key), workloads.grid()):
        op = workloads.describe(workload.op)
        inputs = op.make_inputs(workload, "cuda", generator)
        for name, run in bound(op).items():
            try:
                if workload.direction == BACKWARD:
                    prepared = backward.prepare(run, op, workload, inputs, generator)
                    backward.gradients(prepared)
                else:
                    with torch.no_grad():
                        run(inputs, workload)
            except NotImplementedError:
                continue
            except Exception as error:  # fails again, and is reported, when it is measured
                print(f"{workload.key} {name}: {type(error).__name__}: {str(error)[:200]}")
        torch.cuda.empty_cache()


def main() -> None:
    """See the module's docstring."""
    if reason := environment.unavailable():
        sys.exit(f"nothing can be compiled here: {reason}")
    if len(sys.argv) > 2:
        compile_part(shards.parse(sys.argv[2]))
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else min(8, os.cpu_count() or 1)
    command = [sys.executable, "-m", "asv_bench.providers", str(count)]
    parts = [subprocess.Popen([*command, f"{i + 1}/{count}"]) for i in range(count)]
    sys.exit(max(part.wait() for part in parts))


if __name__ == "__main__":
    main()
