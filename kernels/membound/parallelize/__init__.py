"""Run torch code with this suite's kernels: ``parallelize``, and the backend of torch.compile."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .explanation import Entry, Explanation, table

__all__ = ["Entry", "Explanation", "backend", "parallelize"]

_numbers = itertools.count()


def parallelize(
    fn_or_module: Callable[..., Any] | torch.nn.Module,
    *,
    explain: bool | Explanation = False,
    rest: str | Callable[..., Any] = "eager",
    dynamic: bool | None = None,
    fullgraph: bool = False,
) -> Any:
    """``fn_or_module`` with the ops for which there are kernels here replaced, the rest as it was.

    Replaced are, forward and backward: rms_norm and layer_norm, also together with the residual
    addition before them; softmax and log_softmax; cross_entropy; silu, gelu and relu times another
    tensor; gelu of a sum with a bias. Llama's and others' ways to write an rms_norm out are
    recognised. An op on inputs that no kernel takes stays torch's.

    ``explanation`` of the result tells what was replaced, where in the code, and why the other ops
    were kept::

        model = membound.parallelize(model)
        model(x)
        print(model.explanation)

    Args:
        fn_or_module: function, method or module. A module's parameters, buffers, submodules,
            hooks and attributes are shared with the result, whose class derives from the module's.
        explain: True prints, to stderr, what was found in each graph when it is captured; an
            :class:`Explanation` is the one to use.
        rest: what runs the graph after the replacements: "eager", or "inductor" or any other
            backend of torch.compile.
        dynamic: as of torch.compile.
        fullgraph: as of torch.compile: an error where the code cannot be captured as a whole.

    Returns:
        A function, or a module. Within another torch.compile it leaves the replaced graph to that.

    Raises:
        TypeError: fn_or_module cannot be called, is a class, or is a module whose forward was
            replaced on the instance.
    """
    options = {"explain": explain, "rest": rest, "dynamic": dynamic, "fullgraph": fullgraph}
    if isinstance(fn_or_module, torch.nn.Module):
        if "forward" in vars(fn_or_module):
            raise TypeError(
                "parallelize: fn_or_module is a module whose forward was replaced on the instance; "
                "parallelize the module before that"
            )
        parallel = _new(type(fn_or_module), options)
        parallel.__dict__ = fn_or_module.__dict__
        return parallel
    if not callable(fn_or_module) or isinstance(fn_or_module, type):
        raise TypeError(
            "parallelize: fn_or_module must be a function or a torch.nn.Module, "
            f"got {fn_or_module!r}"
        )
    return _function(fn_or_module, **options)


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """``torch.compile(..., backend="membound", options={"rest": "inductor", "explain": True})``.

    The options are those of :func:`parallelize`.

    Raises:
        TypeError: an option is not known.
    """
    return _backend(**(options or {}))(module, inputs)


def _backend(
    *, explain: bool | Explanation = False, rest: str | Callable[..., Any] = "eager"
) -> Callable[..., Any]:
    return _compiler(rest, _listeners(explain))


_Listener = Callable[[object, list[Entry]], None]


def _listeners(*explain: bool | Explanation) -> list[_Listener]:
    return [
        one.add if isinstance(one, Explanation) else _print for one in explain if one is not False
    ]


def _print(graph: object, entries: list[Entry]) -> None:
    print(f"membound: {table(entries)}", file=sys.stderr)


def _compiler(rest: str | Callable[..., Any], listeners: list[_Listener]) -> Callable[..., Any]:
    from torch._dynamo import lookup_backend

    from .rewrite import rewrite

    compile_rest = lookup_backend(rest)

    def compile(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        entries = rewrite(module.graph, lambda name: getattr(module, name, None))
        module.recompile()
        number = next(_numbers)
        for listener in listeners:
            listener(number, entries)
        return compile_rest(module, inputs)

    return compile


def _function(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    from torch._dynamo.comptime import comptime
    from torch.autograd import forward_ad

    from .rewrite import rewrite

    explain = options["explain"]
    explanation = explain if isinstance(explain, Explanation) else Explanation()
    listeners = _listeners(explanation, explain is True)
    compiled = torch.compile(
        function,
        backend=_compiler(options["rest"], listeners),
        dynamic=options["dynamic"],
        fullgraph=options["fullgraph"],
    )
    before: list[int] = []

    def enter(context: Any) -> None:
        before.append(_computed(context.graph()))

    def leave(context: Any) -> None:
        outer = context._i_will_not_complain_if_bc_breaks_InstructionTranslator().output
        skip = before.pop() if before else _computed(context.graph())
        # torch may still hold results, so that unused ones are left to it
        entries = rewrite(context.graph(), outer.nn_modules.get, skip=skip, remove=False)
        # a capture that begins again comes here again
        graph = (str(torch._guards.CompileContext.current_compile_id()), skip)
        for listener in listeners:
            listener(graph, entries)

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            comptime(enter)
            result = function(*args, **kwargs)
            comptime(leave)
            return result
        if forward_ad._current_level >= 0:  # which captures do not guard against
            return function(*args, **kwargs)
        return compiled(*args, **kwargs)

    call.explanation = explanation
    return call


def _computed(graph: torch.fx.Graph) -> int:
    return sum(node.op != "placeholder" for node in graph.nodes)


def _new(kind: type[torch.nn.Module], options: dict[str, Any]) -> torch.nn.Module:
    """A module without state of a class like ``kind`` whose forward is parallelized."""
    forward = _function(kind.forward, **options)
    body = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__reduce_ex__": lambda self, _: (_new, (kind, options), self.__dict__),
        "explanation": forward.explanation,
        "forward": forward,
    }
    return object.__new__(type(kind.__name__, (kind,), body))
