"""One name for a kernel, however the tool that saw it spells it.

Kineto writes `a_kernel<4, (anonymous namespace)::f(T&)::{lambda()#1}, std::array<char*, 2ul> >(int)`, Nsight
`a_kernel<(int)4, <unnamed>::f(T &)::[lambda() (instance 1)], std::array<char *, (unsigned long)2>>(int)`.
Arguments are left away: templates tell kernels apart, and arguments follow from them.
"""

import functools
import re

_REWRITES = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\(anonymous namespace\)|<unnamed>", "{anonymous}"),
        (r"\[lambda\([^\[\]]*?\) \(instance (\d+)\)\]", r"{lambda#\1}"),
        (r"\{lambda\([^{}]*?\)#(\d+)\}", r"{lambda#\1}"),
        (r"\(bool\)1\b", "true"),
        (r"\(bool\)0\b", "false"),
        (r"\bvoid (?=[\w{])", ""),
    )
)
_GROUP = re.compile(r"\([^()]*\)")
_SUFFIX = re.compile(r"\b(\d+)[uUlL]+\b")
_SPACE = re.compile(r"\s+")
# Deeper than any kernel's name; each level is a pass over the text.
_LEVELS = 40


@functools.cache
def same_name(name: str) -> str:
    """What all spellings of a kernel's name have in common."""
    for pattern, text in _REWRITES:
        name = pattern.sub(text, name)
    for _ in range(_LEVELS):  # arguments, casts, the signs of a call
        name, count = _GROUP.subn("", name)
        if not count:
            break
    return _SPACE.sub("", _SUFFIX.sub(r"\1", name))
