"""Errors after which a GPU does nothing more for this process: only a new one helps."""

# As CUDA says them; all that is asked of the device afterwards fails with the same words.
_LAST_WORDS = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "unrecoverable",
)


def lost_device(error: BaseException | None) -> str:
    """In words, where this is such an error; else nothing."""
    said = str(error).lower()
    found = next((words for words in _LAST_WORDS if words in said), "")
    is_device = "cuda" in said or "hip" in said
    return f"the device is lost to this process: {found}" if found and is_device else ""
