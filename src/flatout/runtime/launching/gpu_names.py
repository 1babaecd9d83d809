"""How each target calls the GPUs of the catalogue."""

from collections.abc import Sequence

from flatout.hardware.catalogue import select
from flatout.records.errors import CallerMistake
from flatout.records.launch import Gpus
from flatout.records.rated import RatedGpu

_MEMORY_OR_SHAPE = ("sxm", "pcie", "nvl", "oam")

# SkyPilot's own names, as its catalogue of accelerators lists them; it does not tell PCIe cards from others.
_SKYPILOT = {
    "a10": "A10",
    "a100-40gb-pcie": "A100",
    "a100-40gb-sxm": "A100",
    "a100-80gb-pcie": "A100-80GB",
    "a100-80gb-sxm": "A100-80GB",
    "a10g": "A10G",
    "a30": "A30",
    "a40": "A40",
    "b200-sxm": "B200",
    "gh200-96gb": "GH200",
    "h100-80gb-pcie": "H100",
    "h100-80gb-sxm": "H100",
    "h100-94gb-nvl": "H100-NVL",
    "h200-sxm": "H200",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "mi300x": "MI300X",
    "quadro-rtx6000": "RTX6000",
    "rtx-a4000": "RTXA4000",
    "rtx-a4500": "RTXA4500",
    "rtx-a5000": "RTXA5000",
    "rtx-a6000": "RTXA6000",
    "rtx-pro-6000": "RTXPRO6000WS",
    "rtx-pro-6000-server": "RTXPRO6000S",
    "rtx3070": "RTX3070",
    "rtx3090": "RTX3090",
    "rtx4000-ada": "RTX4000-Ada",
    "rtx4090": "RTX4090",
    "rtx5060": "RTX5060",
    "rtx5090": "RTX5090",
    "rtx6000-ada": "RTX6000-Ada",
    "t4": "T4",
    "v100-16gb-pcie": "V100",
    "v100-16gb-sxm": "V100",
    "v100-32gb-pcie": "V100-32GB",
    "v100-32gb-sxm": "V100-32GB",
}
# The device plugins' resource, the label by which nodes tell what they have, and its stand-in for a blank.
_KUBERNETES = {
    "nvidia": ("nvidia.com/gpu", "nvidia.com/gpu.product", "-"),
    "amd": ("amd.com/gpu", "amd.com/gpu.product-name", "_"),
}


def resolve(name: str) -> tuple[str, ...]:
    """The ids of the catalogue that `name` is or begins: all of one vendor, or it is no answer."""
    found = select([name])
    if len({gpu.vendor for gpu in found}) > 1:
        raise _unclear(name, found, "GPUs of one vendor")
    return tuple(gpu.id for gpu in found)


def slurm_type(gpus: Gpus) -> str:
    """The type in `--gres=gpu:TYPE:N`: what most sites call it, without memory and shape; empty for any."""
    if gpus.name_there or not gpus.ids:
        return gpus.name_there
    types = sorted({_family(one) for one in gpus.ids})
    if len(types) > 1:
        raise CallerMistake(
            f"these GPUs have {len(types)} names on Slurm, among them {', '.join(types[:4])}",
            expected="GPUs that a cluster calls by one name",
            remedy=f"--gpu {gpus.ids[0]}, or --gpu-name TYPE as `sinfo -o %G` shows it",
        )
    return types[0]


def kubernetes_names(gpus: Gpus) -> tuple[str, str, list[str]]:
    """The resource, the nodes' label, and the values of it that will do; no values for any."""
    found = [gpu for gpu in select(()) if gpu.id in gpus.ids]
    vendor = found[0].vendor if found else "nvidia"
    if vendor not in _KUBERNETES:
        raise CallerMistake(
            f"no device plugin of Kubernetes is known for {found[0].name}",
            expected=f"GPUs of: {', '.join(_KUBERNETES)}",
            remedy="flatout gpus --vendor nvidia",
        )
    resource, label, blank = _KUBERNETES[vendor]
    names = sorted({name.replace(" ", blank) for gpu in found for name in gpu.matches if _is_label(name)})
    return resource, label, [gpus.name_there] if gpus.name_there else names


def skypilot_names(gpus: Gpus) -> list[str]:
    """Its accelerators, any of which will do."""
    if gpus.name_there:
        return [gpus.name_there]
    unknown = [one for one in gpus.ids if one not in _SKYPILOT]
    known = sorted({_SKYPILOT[one] for one in gpus.ids if one in _SKYPILOT})
    if not known:
        raise CallerMistake(
            f"it is not known what SkyPilot calls {', '.join(unknown) or 'the GPU: none was named'}",
            expected=f"one of: {', '.join(sorted(_SKYPILOT))}",
            remedy="--gpu h100-80gb, or --gpu-name NAME as `sky show-gpus --all` lists it; --gpus 0 for none",
        )
    return known


def _family(gpu: str) -> str:
    parts = gpu.split("-")
    kept = [part for part in parts if part not in _MEMORY_OR_SHAPE and not _is_memory(part)]
    return "_".join(kept or parts)


def _is_memory(part: str) -> bool:
    return part.endswith("gb") and part.removesuffix("gb").isdigit()


def _is_label(name: str) -> bool:
    """Whether a value of a label may be so: no slash, no bracket, 63 characters."""
    return len(name) <= 63 and all(letter.isalnum() or letter in " -_." for letter in name)


def _unclear(name: str, found: Sequence[RatedGpu], expected: str) -> CallerMistake:
    return CallerMistake(
        f"{name!r} may be any of: {', '.join(gpu.id for gpu in found[:8])}",
        expected=expected,
        remedy=f"--gpu {found[0].id}",
    )
