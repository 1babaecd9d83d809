"""Every command line that the skills name, as words."""

import re
import shlex
from pathlib import Path

SKILLS = Path(__file__).parents[1] / "skills"


def command_lines() -> list[str]:
    """In fenced blocks and in backticks, each once, without `sudo`."""
    found: dict[str, None] = {}
    for page in sorted(SKILLS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            for line in block.splitlines():
                assert line.removeprefix("sudo ").startswith("flatout "), f"{page.name}: {line}"
                found[line.removeprefix("sudo ")] = None
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for words in re.findall(r"`(?:sudo )?(flatout [^`]+)`", prose):
            found[words] = None
    return list(found)


def words_of(line: str) -> list[str]:
    """Without `flatout` itself."""
    return shlex.split(line)[1:]
