"""Lines of Python that load a model's files, ready to paste."""

from collections.abc import Sequence

from flatout.memory.pieces import ModelFile, Piece

_LOAD_FILE = "from safetensors.torch import load_file"
# A model that was saved whole, not by its state dict.
_PARTS_OF_MODULES = ("_modules", "_parameters", "_buffers")


def loading(file: ModelFile) -> str:
    """The line that reads a file of torch's."""
    mapped = "mmap=True, " if file.format == "torch" else ""
    alone, mind = _weights_only([file])
    return f'state = torch.load({str(file.path)!r}, {mapped}map_location="cpu", {alone}){mind}'


def _weights_only(files: Sequence[ModelFile]) -> tuple[str, str]:
    """torch.load refuses classes that it does not know, and runs their code where it is told not to."""
    if any(file.unfamiliar for file in files):
        return "weights_only=False", "  # runs code of the file: where you trust it"
    return "weights_only=True", ""


def filling(files: Sequence[ModelFile], weights: Sequence[Piece]) -> tuple[str, ...]:
    """Lines that give a model its tensors."""
    first, *more = files
    name = str(first.path)
    if not more and first.format != "safetensors":
        return (loading(first), f"model.load_state_dict({model_in_state(weights)}, assign=True)")
    if not more:
        return (_LOAD_FILE, f'model.load_state_dict(load_file({name!r}, device="cuda"), assign=True)')
    load, mind = 'load_file(shard, device="cuda")', ""
    if first.format != "safetensors":
        alone, mind = _weights_only(files)
        load = f'torch.load(shard, mmap=True, map_location="cpu", {alone})'
    return (
        *((_LOAD_FILE,) if first.format == "safetensors" else ()),
        f"for shard in sorted(Path({str(first.path.parent)!r}).glob({f'*{first.path.suffix}'!r})):",
        f"    model.load_state_dict({load}, strict=False, assign=True){mind}",
    )


def model_in_state(weights: Sequence[Piece]) -> str:
    """The part of a checkpoint that is the model: what lies under the key that holds most of it."""
    nested: dict[str, int] = {}
    for piece in weights:
        key = piece.path[0] if len(piece.path) > 1 else ""
        nested[key] = nested.get(key, 0) + piece.stored_bytes
    most = max(nested, key=lambda key: nested[key])
    if most in _PARTS_OF_MODULES:
        return "state.state_dict()"
    return f"state[{most!r}]" if most else "state"
