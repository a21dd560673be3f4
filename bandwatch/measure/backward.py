"""The backward direction as something to run: the forward is done once, its gradients repeatedly.

torch is imported inside the functions, like everywhere that a machine without it must import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .workload import Op, Tensors, Workload

_OUTPUT, _GRAD = "output ", "grad "


def flat(result: Any) -> tuple[Any, ...]:
    """The tensors of a provider's result: a tensor, or a sequence of tensors and Nones."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(one for one in results if one is not None)


def leaves(op: Op, inputs: Tensors) -> dict[str, Any]:
    """Those of ``inputs`` that can require a gradient, detached."""
    return {
        name: inputs[name].detach()
        for name in op.differentiable
        if name in inputs and inputs[name].is_floating_point()
    }


def prepare(
    provider: Callable[[Tensors, Workload], Any],
    op: Op,
    workload: Workload,
    inputs: Tensors,
    generator: Any,
) -> Tensors:
    """Run the forward on ``inputs`` and return a set of tensors for :func:`gradients`.

    The set holds the inputs, those that are differentiable as leaves of their own, the results
    with their graph, and a random gradient of each result that has one, under
    ``"output i"`` and ``"grad i"`` with the result's position i. Raises NotImplementedError where
    no result has one.
    """
    import torch

    needing = {name: leaf.requires_grad_() for name, leaf in leaves(op, inputs).items()}
    prepared = {**inputs, **needing}
    with torch.enable_grad():
        outputs = flat(provider({**prepared}, workload))
    if not any(output.requires_grad for output in outputs):
        raise NotImplementedError(f"{op.name}: no result has a gradient")
    for i, output in enumerate(outputs):
        if output.requires_grad:
            prepared[f"{_OUTPUT}{i}"] = output
            prepared[f"{_GRAD}{i}"] = torch.randn(
                output.shape, dtype=output.dtype, device=output.device, generator=generator
            )
    return prepared


def gradients(prepared: Tensors) -> tuple[Any, ...]:
    """Gradients of the leaves in a prepared set, in its order; can be called repeatedly.

    Raises RuntimeError where a leaf has none.
    """
    import torch

    return torch.autograd.grad(
        [tensor for name, tensor in prepared.items() if name.startswith(_OUTPUT)],
        [tensor for tensor in prepared.values() if tensor.is_leaf and tensor.requires_grad],
        [tensor for name, tensor in prepared.items() if name.startswith(_GRAD)],
        retain_graph=True,
    )


def output_gradients(prepared: Tensors) -> dict[int, Any]:
    """The gradients of a prepared set's results, by the results' position."""
    return {
        int(name.removeprefix(_GRAD)): tensor
        for name, tensor in prepared.items()
        if name.startswith(_GRAD)
    }
