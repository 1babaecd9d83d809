"""The line that asked for a tensor's memory, where torch's allocator keeps a history of that."""

from typing import Any

from flatout.levers.places import is_users_file


def lines_that_made(torch: Any, tensors: list[Any]) -> dict[int, str]:
    """By address of the tensor; nothing where no history is kept, which is the rule."""
    is_kept = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # noqa: SLF001
    if is_kept is None or not tensors or not tensors[0].is_cuda or not is_kept():
        return {}
    wanted = {one.untyped_storage().data_ptr(): id(one) for one in tensors}
    found = {}
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if address in wanted:
                found[wanted[address]] = _users_line(block.get("frames", ()))
            address += block["size"]
    return found


def _users_line(frames: Any) -> str:
    """The innermost line of the user's own code."""
    for frame in frames:
        if is_users_file(frame["filename"]):
            return f"{frame['filename']}:{frame['line']} in {frame['name']}"
    return ""
