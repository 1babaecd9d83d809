"""Finds attention that was written out by hand in a captured graph, and puts one fused call in its place.

Works on the graph as TorchDynamo captures it, before anything is decomposed: there the usual forms still look
like what was typed. Every rewrite is proven on the job's own tensors before it is used: the captured graph is
run as written, and what the fused call makes of the same queries, keys and values must agree.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from flatout.levers.attention_forms import (
    AS_GOOD_AS_NEVER,
    Written,
    in_order,
    match_attention,
    name_of,
    put_in_order,
)

# By how many roundings of the dtype the two may differ, relative to the size of the result.
_ROUNDINGS = 16
_AUGMENTED = {"iadd", "isub", "imul", "itruediv", "iand", "ior", "ixor"}


class Rewriter:
    """Rewrites every attention of a graph that is proven to be one; says what became of each."""

    def __init__(self, torch: Any, root: Any) -> None:
        self._torch = torch
        self._root = root
        self.rewritten = 0
        self.refused: list[str] = []
        # In guard runs: draws the same random numbers as dropout that was written out.
        self.same_random = False
        self._taken: list[Constant] = []

    def constants_changed(self) -> bool:
        """Whether a mask that was taken for constant has been written to or replaced since.

        What is written through `.data` counts no version, and is not noticed.
        """
        return any(constant.has_changed() for constant in self._taken)

    def rewrite(self, module: Any, inputs: Sequence[Any]) -> None:
        """Rewrite in place; a graph in which nothing is found, or nothing is proven, stays as it is."""
        found = [match for node in module.graph.nodes if (match := _match(node)) is not None]
        if not found:
            return
        ways = _Proof(self._torch, module, found, _Origins(module, inputs, self._root)).run(inputs)
        for match in found:
            way = ways[match.out]
            if isinstance(way, str):
                self.refused.append(way)
                continue
            self._put(module.graph, match, way)
            self._taken += way.taken
            self.rewritten += 1
        module.graph.lint()
        module.recompile()

    def _put(self, graph: Any, match: Written, way: "Way") -> None:
        functional = self._torch.nn.functional
        with graph.inserting_before(match.out):
            query, key, value = (put_in_order(graph, one) for one in (match.query, match.key, match.value))
            mask = None
            if not way.causal and (match.fills or match.bias is not None):
                masks = tuple(fill.mask for fill in match.fills)
                how = (masks, tuple(fill.where for fill in match.fills), match.fill_value)
                mask = graph.call_function(additive_mask, (query, *how, match.bias))
                query = graph.call_function(without_blind_rows, (query, *how))
            if way.single_head:
                query, key, value = (graph.call_method("unsqueeze", (one, -3)) for one in (query, key, value))
                if mask is not None:
                    mask = graph.call_method("unsqueeze", (mask, -3)) if way.mask_dimensions > 2 else mask
            new = graph.call_function(
                _math_attention
                if self.same_random and match.dropout
                else functional.scaled_dot_product_attention,
                (query, key, value),
                {
                    "attn_mask": mask,
                    "dropout_p": match.dropout,
                    "is_causal": way.causal,
                    "scale": match.scale,
                },
            )
            if way.single_head:
                new = graph.call_method("squeeze", (new, -3))
            if match.out_order is not None:
                new = graph.call_method("permute", (new, *match.out_order))
            if way.cast_to is not None:
                new = graph.call_method("to", (new, way.cast_to))
        new.meta.update({name: match.out.meta[name] for name in ("example_value",) if name in match.out.meta})
        match.out.replace_all_uses_with(new)
        # Not `eliminate_dead_code`: it takes writing to a buffer for dead.
        for node in match.chain:
            graph.erase_node(node)


def _math_attention(query: Any, key: Any, value: Any, **how: Any) -> Any:
    """The same by the kernel of separate operations, whose dropout draws as a written one does."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **how)


# Proof ------------------------------------------------------------------------------------------------------


def _match(node: Any) -> Written | None:
    try:
        return match_attention(node)
    except (AttributeError, IndexError, TypeError):  # written in a way that nobody has thought of
        return None


@dataclasses.dataclass(frozen=True)
class Constant:
    """A tensor that was taken for constant, where it lay, and its version then."""

    tensor: Any
    version: int
    # The buffers of the module that holds it, and its name there; none for a constant of the graph's own.
    owner: dict[str, Any] | None = None
    name: str = ""

    def has_changed(self) -> bool:
        """Whether it was written to, or another has taken its place."""
        if self.owner is not None and self.owner.get(self.name) is not self.tensor:
            return True
        return bool(self.tensor._version != self.version)  # noqa: SLF001


@dataclasses.dataclass(frozen=True)
class Way:
    """How to call the fused attention for one that was proven."""

    causal: bool
    single_head: bool
    mask_dimensions: int
    # What the result has to be cast to.
    cast_to: Any
    taken: tuple[Constant, ...]


class _Origins:
    """Which nodes of a graph come from what does not change from step to step."""

    def __init__(self, module: Any, inputs: Sequence[Any], root: Any) -> None:
        known = _buffers(root)
        self._constants: dict[Any, tuple[Constant, ...]] = {}
        given = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                value = next(given, None)
                if not hasattr(value, "untyped_storage"):
                    self._constants[node] = ()  # a size
                elif _place(value) in known:
                    self._constants[node] = (known[_place(value)],)
            elif node.op == "get_attr":
                value = _attribute(module, str(node.target))
                if hasattr(value, "untyped_storage"):
                    self._constants[node] = (Constant(value, value._version),)  # noqa: SLF001
            elif node.op in ("call_function", "call_method") and not _draws(node):
                sources = node.all_input_nodes
                if all(source in self._constants for source in sources):
                    self._constants[node] = tuple(c for source in sources for c in self._constants[source])
                elif _writes(node) and sources:
                    self._forget(sources[0])

    def of(self, node: Any) -> tuple[Constant, ...] | None:
        """The constant tensors from which it is made; None where it may be different next time."""
        return self._constants.get(node)

    def _forget(self, node: Any) -> None:
        """Something else was written into it: it, and all that may share its memory, is constant no more."""
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if self._constants.pop(one, None) is not None:
                waiting += [*one.all_input_nodes, *one.users]


class _Proof:
    """Runs the graph as written on the job's own tensors, and the fused call beside it."""

    def __init__(self, torch: Any, module: Any, matches: Sequence[Written], origins: _Origins) -> None:
        self._torch = torch
        self._module = module
        self._matches = {match.out: match for match in matches}
        self._origins = origins

    def run(self, inputs: Sequence[Any]) -> dict[Any, Way | str]:
        """By last node: how to call the fused one, or why not to."""
        torch, matches = self._torch, self._matches
        wanted = {node for match in matches.values() for node in _nodes_of(match)}
        ways: dict[Any, Way | str] = dict.fromkeys(matches, "the graph did not reach it")
        values: dict[Any, Any] = {}
        judge = self._judge
        # Layers may share a mask: a value is kept until the last that wants it.
        uses = Counter(node for match in matches.values() for node in set(_nodes_of(match)))

        class Watched(torch.fx.Interpreter):  # type: ignore[misc, name-defined]
            def run_node(self, node: Any) -> Any:
                result = super().run_node(node)
                if node in wanted:
                    values[node] = result
                if node in matches:
                    match = matches[node]
                    try:
                        ways[node] = judge(match, values)
                    except Exception as error:  # noqa: BLE001 - what the fused call refuses stays as written
                        ways[node] = f"{type(error).__name__}: {error}"
                    for one in set(_nodes_of(match)):
                        uses[one] -= 1
                        if not uses[one]:
                            values.pop(one, None)
                return result

        devices = [
            i for i in {t.device.index for t in inputs if getattr(t, "is_cuda", False)} if i is not None
        ]
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            Watched(self._module).run(*(_unowned(one) for one in inputs))
        return ways

    def _judge(self, match: Written, values: dict[Any, Any]) -> Way | str:
        torch = self._torch
        query, key, value = (in_order(one, values[one.node]) for one in (match.query, match.key, match.value))
        written = values[match.weights] @ value.to(values[match.weights].dtype)
        if not query.dim() == key.dim() == value.dim() or query.dim() < 3 or query.dtype != value.dtype:
            return "queries, keys and values are not of one kind"
        causal, taken = self._causality(match, values, query.shape[-2], key.shape[-2])
        mask = None
        if not causal and (match.fills or match.bias is not None):
            masks = [values[fill.mask] for fill in match.fills]
            how = (masks, [fill.where for fill in match.fills], match.fill_value)
            bias = values[match.bias] if match.bias is not None else None
            mask = additive_mask(query, *how, bias)
            query = without_blind_rows(query, *how)
        fused = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=match.scale
        )
        if match.out_order is not None and fused.permute(match.out_order).shape != values[match.out].shape:
            return "the result has another shape"
        if match.out_order is None and fused.shape != values[match.out].shape:
            return "the result has another shape"
        size = float(written.float().norm())
        off = float((fused.float() - written.float()).norm())
        coarsest = max(torch.finfo(one.dtype).eps for one in (fused, values[match.out]))
        if not math.isfinite(size) or not off <= _ROUNDINGS * coarsest * size:
            return f"on the job's own inputs the fused call is off by {off / size if size else off:.1e}"
        dtype = values[match.out].dtype
        return Way(
            causal=causal,
            single_head=query.dim() == 3,
            mask_dimensions=mask.dim() if mask is not None else 0,
            cast_to=dtype if fused.dtype != dtype else None,
            taken=taken,
        )

    def _causality(
        self, match: Written, values: dict[Any, Any], rows: int, columns: int
    ) -> tuple[bool, tuple[Constant, ...]]:
        """Whether everything that is masked is the future, and always will be."""
        torch = self._torch
        if rows != columns or len(match.fills) + (match.bias is not None) != 1:
            return False, ()
        node = match.fills[0].mask if match.fills else match.bias
        sources = self._origins.of(node)
        if sources is None:
            return False, ()
        mask = values[node]
        if match.fills:
            hidden = _hidden(mask, match.fills[0].where)
        else:
            hidden = mask <= AS_GOOD_AS_NEVER
            if bool((mask.masked_fill(hidden, 0.0) != 0).any()):
                return False, ()
        if tuple(hidden.shape[-2:]) != (rows, columns):
            return False, ()
        future = torch.ones(rows, columns, dtype=torch.bool, device=hidden.device).triu(1)
        causal = bool((hidden == future).all())
        return causal, sources if causal else ()


def additive_mask(query: Any, masks: Sequence[Any], wheres: Sequence[bool], value: float, bias: Any) -> Any:
    """Everything that is added to scores, in one tensor of what they are computed in."""
    import torch

    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    added = bias.to(dtype) if bias is not None else None
    if masks:
        hidden = _hidden_by_any(masks, wheres)
        if value != -math.inf:
            hidden = hidden & ~hidden.all(dim=-1, keepdim=True)
        seen = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        filled = seen.masked_fill(hidden, -math.inf)
        added = filled if added is None else added + filled
    return added


def without_blind_rows(query: Any, masks: Sequence[Any], wheres: Sequence[bool], value: float) -> Any:
    """Queries that see nothing, as zeros, to which everything is the same.

    Where a large number stands for infinity, such a row gets the mean of all values, and sends no gradient to
    queries and keys: `masked_fill` has cut it off. So does a query of zeros without a mask.
    """
    if not masks or value == -math.inf:
        return query
    return query.masked_fill(_hidden_by_any(masks, wheres).all(dim=-1, keepdim=True), 0.0)


def _hidden_by_any(masks: Sequence[Any], wheres: Sequence[bool]) -> Any:
    hidden = None
    for mask, where in zip(masks, wheres, strict=True):
        one = _hidden(mask, where)
        hidden = one if hidden is None else hidden | one
    return hidden


def _hidden(mask: Any, where: bool) -> Any:
    return mask.bool() if where else ~mask.bool()


def _nodes_of(match: Written) -> list[Any]:
    masks = [fill.mask for fill in match.fills]
    nodes = [match.query.node, match.key.node, match.value.node, match.weights, match.out, *masks]
    return [*nodes, match.bias] if match.bias is not None else nodes


def _draws(node: Any) -> bool:
    name = name_of(node)
    return (
        "rand" in name or "dropout" in name or name in ("bernoulli", "bernoulli_", "multinomial", "normal_")
    )


def _writes(node: Any) -> bool:
    """Whether it writes into its first argument."""
    name = name_of(node)
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "setitem" or name in _AUGMENTED or "out" in node.kwargs


def _buffers(root: Any) -> dict[Any, Constant]:
    """Every buffer of a module and of those in it, by where it lies."""
    return {
        _place(tensor): Constant(tensor, tensor._version, module._buffers, name)  # noqa: SLF001
        for module in root.modules()
        for name, tensor in module._buffers.items()  # noqa: SLF001
        if tensor is not None
    }


def _place(tensor: Any) -> tuple[int, Any]:
    return tensor.untyped_storage().data_ptr(), tensor.device


def _unowned(value: Any) -> Any:
    """A graph may write to what it is given (statistics of a normalisation, say); a proof must not."""
    if not hasattr(value, "untyped_storage") or (value.requires_grad and value.is_leaf):
        return value
    return value.detach().clone()


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
