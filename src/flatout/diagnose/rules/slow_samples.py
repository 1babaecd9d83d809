"""Making one sample takes long, in Python, one after another.

Decoding, augmenting and tokenizing item by item is what most data sets do, and what most loaders are slow
by. Seen by the time that a worker, or the loop itself, needs to load a batch, divided by its samples, while
the loop waits for data. What a batched or compiled version would give cannot be told, so no gain is
predicted beyond that of `the loop waits for data`. It can be wrong where the time goes into reading from a
slow disk.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """A sample that takes more than the policy's milliseconds."""
    if seen.share("input_wait") < policy.WAITS_FOR_DATA:
        return None
    for loader in seen.profile.loaders:
        size = loader.settings.get("batch_size")
        if loader.load_ms is None or not size or loader.load_ms / size < policy.SLOW_SAMPLE_MS:
            continue
        return RULE.finding(
            f"{loader.data_set} takes {loader.load_ms / size:.1f} ms for a sample, "
            f"{loader.load_ms:.0f} ms for a batch of {size}",
            "decode and augment whole batches (torchvision.transforms.v2 on the GPU, NVIDIA DALI), "
            "or store what was decoded",
        )
    return None


RULE = Rule("F105", "samples are made one by one, slowly", look)
