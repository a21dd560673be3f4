"""Rewrite a captured graph in place."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .calls import call, value
from .explanation import Entry, where
from .graph import COLUMNS, Kept, Replacement, View
from .rules import RULES


def rewrite(
    graph: Graph,
    module: Callable[[str], Any],
    *,
    skip: int = 0,
    remove: bool = True,
    refusal: str = "",
) -> list[Entry]:
    """Replace what the rules find, and tell of each op that they know.

    Nodes that hold a result are changed, never exchanged, since torch may know them already.

    Args:
        graph: of torch's calls, with examples of their results as dynamo notes them.
        module: the submodule of a name, for the graphs of checkpointed parts.
        skip: how many of the first nodes, inputs not counted, are left alone.
        remove: remove nodes whose results are no longer used.
        refusal: a reason to replace nothing.
    """
    view = View(graph, refusal)
    told: list[tuple[Node, list[Entry]]] = []
    computed = [node for node in view.nodes if node.op != "placeholder"]
    for node in computed[skip:]:
        if node in view.taken:
            continue
        if node.op == "get_attr":
            told.append((node, _inside(view, node, module)))
            continue
        told.append(_try(graph, view, node))
    if remove:
        for node in reversed(view.nodes):
            if node in view.taken and not node.users:
                graph.erase_node(node)
    return [entry for node, entries in told for entry in entries if _stands(view, node, entry)]


def _try(graph: Graph, view: View, node: Node) -> tuple[Node, list[Entry]]:
    """Apply the first rule that knows ``node``."""
    for label, rule in RULES:
        try:
            found = rule(view, node)
            if found is None:
                continue
            view.check(found)
        except Kept as kept:
            reason = str(kept)
        except GuardOnDataDependentSymNode:
            reason = "a size or number depends on data"
        else:
            entry = Entry(found.op, where(found.node), True, found.description)
            _apply(graph, view, found)
            return found.node, [entry]
        return node, [Entry(label or call(node)[0], where(node), False, reason)]
    return node, []


def _stands(view: View, node: Node, entry: Entry) -> bool:
    """Whether no other entry is for more than ``node``."""
    return entry.replaced or node not in view.taken | view.parts


def _apply(graph: Graph, view: View, found: Replacement) -> None:
    node, total, args = found.node, found.total, found.args
    place = node
    if total is not None and view.may_move((args, found.kwargs), total):
        place = total
    if found.in_float:
        with graph.inserting_before(place):
            source = graph.call_method("float", args[:1])
        source.meta = {**args[0].meta, "example_value": value(args[0]).float()}
        view.insert(source, place)
        args = (source, *args[1:])
    if len(args) > 1 and args[1] is COLUMNS:
        with graph.inserting_before(place):
            columns = graph.call_method("size", (args[0], -1))
        columns.meta = {**args[0].meta, "example_value": value(args[0]).shape[-1]}
        view.insert(columns, place)
        args = (args[0], (columns,), *args[2:])
    view.taken.update((*found.inner, node))
    if total is None:
        _become(node, found.function, args, found.kwargs)
        return
    with graph.inserting_before(place):
        both = graph.call_function(found.function, args, found.kwargs)
    both.meta = {**node.meta, "example_value": (value(node), value(total))}
    view.insert(both, place)
    _become(node, operator.getitem, (both, 0), {})
    _become(total, operator.getitem, (both, 1), {})


def _become(
    node: Node, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    node.op, node.target = "call_function", function
    node.args, node.kwargs = args, kwargs


def _inside(view: View, node: Node, module: Callable[[str], Any]) -> list[Entry]:
    """Rewrite the graph that ``node`` hands to a higher-order operator."""
    inner = module(node.target)
    if not isinstance(inner, GraphModule):
        return []
    users = list(node.users)
    refusal = view.refusal
    if view.is_transformed(node):
        refusal = "it is under a transform of torch.func"
    elif not all(user.target is torch.ops.higher_order.tag_activation_checkpoint for user in users):
        names = {getattr(user.target, "__name__", str(user.target)) for user in users}
        refusal = f"it is inside of {', '.join(sorted(names))}"
    entries = rewrite(
        inner.graph, lambda name: getattr(inner, name, None), refusal=refusal, remove=True
    )
    inner.recompile()
    return entries
