"""A checksum over all bits of a tensor, on the device where it lies, and the same on every device."""

import hashlib

import torch

# Words at a time: what is made of them on the way shall stay in a CPU's cache, and keep a GPU busy.
_AT_A_TIME = {"cpu": 1 << 17, "cuda": 1 << 24}
# Of splitmix64, as signed numbers: they spread each bit over the whole word.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


@torch.no_grad()
def checksum(tensor: torch.Tensor) -> str:
    """Of its dtype, shape and numbers; other numbers at any place give another one."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    for part in _parts(tensor.detach()):
        _add(digest, part)
    return digest.hexdigest()


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that are nothing but memory: some are made of others."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name).detach())]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.layout != torch.strided:
        return [tensor.to_dense()]
    return [tensor.resolve_conj().resolve_neg()]


def _add(digest: "hashlib._Hash", tensor: torch.Tensor) -> None:
    flat = tensor.contiguous().view(-1)
    if flat.stride() != (1,):  # a single number is called contiguous however it lies
        flat = flat.clone(memory_format=torch.contiguous_format)
    data = flat.view(torch.uint8)
    whole = data.numel() // 8 * 8
    digest.update(bytes(data[whole:].tolist()))
    data = data[:whole]
    if data.storage_offset() % 8:
        data = data.clone()
    words = data.view(torch.int64)
    size = _AT_A_TIME.get(words.device.type, _AT_A_TIME["cuda"])
    found = torch.zeros((), dtype=torch.int64, device=words.device)
    for first in range(0, words.numel(), size):
        found += _mixed(words[first : first + size], first).sum()
    digest.update(str(int(found)).encode())


def _mixed(words: torch.Tensor, first: int) -> torch.Tensor:
    """Each word with its place: two that change places give another sum."""
    mixed = torch.arange(first, first + words.numel(), device=words.device, dtype=torch.int64)
    mixed.mul_(_STEP).add_(words)
    for bits, factor in ((30, _FIRST), (27, _SECOND)):
        mixed.bitwise_xor_(mixed >> bits).mul_(factor)
    return mixed.bitwise_xor_(mixed >> 31)
