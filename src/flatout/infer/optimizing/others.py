"""Other inputs like an example, to hold a module against itself; what it would not take is not among them."""

from collections.abc import Callable, Iterator

import torch

from flatout.infer.optimizing.calling import Arguments

_MOVED = 0.05

Order = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def others_like(example: Arguments, module: torch.nn.Module, seed: int) -> Iterator[Arguments]:
    """The boldest first: numbers moved a little, words in another order, masks as they are.

    Words may be numbers of classes, one kind a column, or places in another input: the next tries are for
    modules that refuse what came before. On a GPU an index that is too large ends all work of the process, so
    nothing is tried there that could make one.
    """
    on_gpu = any(one.device.type == "cuda" for one in example.tensors())
    orders: list[Order] = [_in_other_rows, _as_they_are]
    if not on_gpu or _every_table_has(module, _largest_integer(example)):
        orders.insert(0, _anywhere)
    for order in orders:
        yield _moved(example, order, seed)


def closer_together(example: Arguments) -> Arguments:
    """With numbers half as far from their mean: whatever is a property of a whole batch is another."""

    def closer(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor + tensor.mean()) / 2 if tensor.is_floating_point() and tensor.numel() else tensor

    return example.mapped(closer)


def _moved(example: Arguments, order: Order, seed: int) -> Arguments:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        if not tensor.numel():
            return tensor
        if tensor.is_floating_point():
            factors = 1 + _MOVED * torch.randn(tensor.shape, generator=generator, device="cpu")
            # Within what the example shows: a probability stays one.
            return (tensor * factors.to(tensor.device, tensor.dtype)).clamp(tensor.min(), tensor.max())
        if tensor.dtype == torch.bool or tensor.numel() < 2 or _is_a_mask(tensor):
            return tensor
        return order(tensor, generator)

    return example.mapped(moved)


def _anywhere(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    order = torch.randperm(tensor.numel(), generator=generator, device="cpu")
    return tensor.flatten()[order.to(tensor.device)].view(tensor.shape)


def _in_other_rows(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The same order for all that have as many rows. What has one dimension may be lengths or offsets."""
    if tensor.dim() < 2:
        return tensor
    return tensor[torch.randperm(len(tensor), generator=generator, device="cpu").to(tensor.device)]


def _as_they_are(tensor: torch.Tensor, _generator: torch.Generator) -> torch.Tensor:
    return tensor


def _is_a_mask(tensor: torch.Tensor) -> bool:
    return not tensor.is_complex() and int(tensor.max()) <= 1


def _largest_integer(example: Arguments) -> int:
    integers = [one for one in example.tensors() if not one.is_floating_point() and not one.is_complex()]
    return max((int(one.max()) for one in integers if one.numel()), default=0)


def _every_table_has(module: torch.nn.Module, number: int) -> bool:
    """Whether any integer of the example may be looked up anywhere."""
    tables = [one for one in module.modules() if isinstance(one, torch.nn.Embedding)]
    bags = any(isinstance(one, torch.nn.EmbeddingBag) for one in module.modules())
    return bool(tables) and not bags and all(one.num_embeddings > number for one in tables)
