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
    silently run in eager mode. It fails where anything falls back, and where another set of the
    same workload compiles anew, which could happen while a graph is captured.
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

        graphs = torch._dynamo.utils.counters["stats"]
        before = graphs["unique_graphs"]
        if self._workload == workload:
            result = self._function(dict(inputs))
            if graphs["unique_graphs"] != before:
                raise RuntimeError(f"torch.compile compiled {workload.key} anew for other tensors")
            return result

        torch._dynamo.reset()
        self._workload, eager = None, op.providers["eager"]

        def fresh(inputs: Tensors) -> Any:
            return eager(inputs, workload)

        self._function = torch.compile(fresh, dynamic=False, fullgraph=True)
        # A gradient is timed by computing it again and again: what was saved must stay. Set for
        # this call alone: it would take as long as a small call itself, whose time is recorded.
        with functorch.patch(donated_buffer=False):
            result = self._function(dict(inputs))
        if graphs["unique_graphs"] == before:
            raise RuntimeError("torch.compile compiled nothing: this would be eager's time")
        self._workload = workload
        return result


class Library:
    """A package's functions by the operation, each with the options that it takes besides defaults.

    ``unable`` says why the library cannot do a workload, or nothing: all providers are run on the
    same inputs, and gradients repeatedly, so it must not write over what it is given or has saved.
    """

    def __init__(
        self,
        name: str,
        package: str,
        functions: Mapping[str, tuple[Run, Mapping[str, tuple[str, ...]]]],
        unable: Callable[[Workload], str],
    ) -> None:
        self.name, self.package = name, package
        self.functions, self._unable = functions, unable

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
    if workload.direction == BACKWARD and dict(workload.options).get("in_place") == "yes":
        return "its backward in place turns the gradient that it is given"
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
    # it takes vectors in float32 only; making them so is timed
    weight, bias = (inputs[name].float() if name in inputs else None for name in ("weight", "bias"))
    if workload.direction == BACKWARD:
        return _quack_layer_norm_function().apply(inputs["input"], weight, bias)
    return _quack("rmsnorm", "layernorm_fwd")(inputs["input"], weight, bias, EPS)


@functools.cache
def _quack_layer_norm_function() -> Any:
    """QuACK's two halves of layer_norm as one function of autograd, which it lacks."""
    import torch

    forward_half = _quack("rmsnorm", "layernorm_fwd")
    backward_half = _quack("rmsnorm", "layernorm_bwd")

    class LayerNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
            out, rstd, mean = forward_half(x, weight, bias, EPS, True, True)
            ctx.save_for_backward(x, weight, rstd, mean)
            ctx.has_bias = bias is not None
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, weight, rstd, mean = ctx.saved_tensors
            return backward_half(x, weight, grad, rstd, mean, ctx.has_bias)

    return LayerNorm


def _quack_cross_entropy(inputs: Tensors, workload: Workload) -> Any:
    loss = _quack("cross_entropy", "cross_entropy")(
        inputs["input"],
        inputs["target"],
        ignore_index=IGNORED,
        reduction=_reduction(workload),
    )
    # its losses are float32; making them the input's dtype, as torch does, is timed
    return loss.to(inputs["input"].dtype)


def _quack_rotary(inputs: Tensors, workload: Workload) -> Any:
    options = dict(workload.options)
    in_place = options.get("in_place") == "yes"
    # of a copy, which is timed, like the suite's own
    x = inputs["input"].clone() if in_place else inputs["input"]
    return _quack("rotary", "apply_rotary_emb")(
        x,
        inputs["cos"],
        inputs["sin"],
        interleaved=options.get("interleaved") == "yes",
        inplace=in_place,
    )


def _quack_topk(inputs: Tensors, workload: Workload) -> Any:
    options = dict(workload.options)
    values, indices = _quack("topk", "topk")(
        inputs["input"], int(options.get("k", _DEFAULT_K)), softmax=options.get("softmax") == "yes"
    )
    # its indices are int32; making them int64, as torch's are, is timed
    return values, indices.long()


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


def _liger_embedding(inputs: Tensors, workload: Workload) -> Any:
    return _liger("LigerEmbeddingFunction")(inputs["weight"], inputs["input"])


def _liger_cross_entropy(inputs: Tensors, workload: Workload) -> Any:
    raise NotImplementedError(
        "liger: its cross_entropy writes over the logits, of ignored rows in the forward too"
    )


def _liger_rotary(inputs: Tensors, workload: Workload) -> Any:
    raise NotImplementedError("liger: its rope turns queries and keys together, in place")


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


def _liger_unable(workload: Workload) -> str:
    separate = dict(workload.options).get("halves") != "packed"
    if workload.direction == BACKWARD and workload.op in ("swiglu", "geglu") and separate:
        return "its backward overwrites what the forward saved, so it cannot be repeated"
    return ""


def _reduction(workload: Workload) -> str:
    return dict(workload.options).get("reduction", "mean")


_DEFAULT_K = "8"
_REDUCTIONS = {"reduction": ("sum", "none")}
_ROTARY = {"interleaved": ("yes",), "in_place": ("yes",)}

QUACK = Library(
    "quack",
    "quack",
    {
        "softmax": (_quack_softmax, {}),
        "rms_norm": (_quack_rms_norm, {"residual": ("same",), "weight": ("none",)}),
        "layer_norm": (_quack_layer_norm, {"bias": ("none",)}),
        "cross_entropy": (_quack_cross_entropy, _REDUCTIONS),
        "rotary": (_quack_rotary, _ROTARY),
        "topk": (_quack_topk, {"k": ("16", "32", "64", "128"), "softmax": ("yes",)}),
    },
    unable=_quack_unable,
)

LIGER = Library(
    "liger",
    "liger_kernel",
    {
        "softmax": (_liger_softmax, {}),
        "rms_norm": (_liger_rms_norm, {"residual": ("same",)}),
        "layer_norm": (_liger_layer_norm, {}),
        "embedding": (_liger_embedding, {"picks": ("one often",)}),
        "cross_entropy": (_liger_cross_entropy, _REDUCTIONS),
        "rotary": (_liger_rotary, _ROTARY),
        "swiglu": (_liger_swiglu, {"halves": ("packed",)}),
        "geglu": (_liger_geglu, {"approximate": ("tanh",)}),
        "bias_act": (_liger_bias_act, {"activation": ("relu2",), "bias": ("none",)}),
    },
    unable=_liger_unable,
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
