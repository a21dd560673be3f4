"""The backward direction as something to run: the forward is done once, its gradients repeatedly.

torch is imported inside the functions, like everywhere that a machine without it must import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .workload import Op, Tensors, Workload


@dataclass
class Prepared:
    """A forward that was run, and random gradients of its results.

    ``inputs`` holds all inputs by name, among them ``leaves``, those that require a gradient;
    ``grads`` the gradients of the results that have one, by the result's position.
    """

    inputs: Tensors
    leaves: dict[str, Any]
    outputs: tuple[Any, ...]
    grads: dict[int, Any]

    def values(self) -> Iterator[Any]:
        """Every tensor, like the values of a set of inputs."""
        yield from self.inputs.values()
        yield from self.outputs
        yield from self.grads.values()


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
) -> Prepared:
    """Run the forward on ``inputs``; raises NotImplementedError where no result has a gradient."""
    import torch

    needing = {name: leaf.requires_grad_() for name, leaf in leaves(op, inputs).items()}
    given = {**inputs, **needing}
    with torch.enable_grad():
        outputs = flat(provider(given, workload))
    grads = {
        i: torch.randn(output.shape, dtype=output.dtype, device=output.device, generator=generator)
        for i, output in enumerate(outputs)
        if output.requires_grad
    }
    if not grads:
        raise NotImplementedError(f"{op.name}: no result has a gradient")
    return Prepared(given, needing, outputs, grads)


def gradients(prepared: Prepared) -> tuple[Any, ...]:
    """Gradients of the leaves, in their order; can be called repeatedly.

    Raises RuntimeError where a leaf has none.
    """
    import torch

    return torch.autograd.grad(
        [prepared.outputs[i] for i in prepared.grads],
        list(prepared.leaves.values()),
        list(prepared.grads.values()),
        retain_graph=True,
    )
