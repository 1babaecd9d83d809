"""The skills that come with Flatout, and how they get into a folder of the user's."""

import dataclasses
import re
from pathlib import Path

from flatout.records.atomic import write_atomically
from flatout.records.errors import CallerMistake, EnvironmentProblem

_EXECUTABLE = 0o111


@dataclasses.dataclass(frozen=True)
class Skill:
    """A folder with a SKILL.md."""

    name: str
    description: str
    folder: Path


def shipped_skills() -> list[Skill]:
    """By name. In a clone they lie beside the sources, else in the package."""
    package = Path(__file__).parents[1]
    for root in (package.parents[1] / "skills", package.parent / "flatout_skills"):
        files = sorted(root.glob("*/SKILL.md"))
        if files:
            return [_read(file) for file in files]
    raise EnvironmentProblem(
        f"there are no skills in {package}",
        expected="the folder `flatout_skills` beside the package",
        remedy="install Flatout again",
    )


def install_skills(to: Path, *, force: bool) -> list[Path]:
    """Copy all files. One that differs stops it before the first, unless forced; each is written whole."""
    files = {
        to / skill.name / path.relative_to(skill.folder): path
        for skill in shipped_skills()
        for path in sorted(skill.folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    changed = [target for target, source in files.items() if _differs(target, source)]
    if changed and not force:
        raise CallerMistake(
            f"{len(changed)} files in {to} are not as they come with Flatout: "
            + ", ".join(str(path.relative_to(to)) for path in changed[:4]),
            expected="a folder without them, or with the same ones",
            remedy="name another folder with --to, or overwrite them with --force",
        )
    for target, source in files.items():
        write_atomically(target, source.read_bytes())
        target.chmod(target.stat().st_mode | (source.stat().st_mode & _EXECUTABLE))
    return list(files)


def _differs(target: Path, source: Path) -> bool:
    try:
        return target.read_bytes() != source.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:  # a folder, or nothing that we may read: not ours
        return True


def _read(file: Path) -> Skill:
    head = file.read_text(encoding="utf-8").split("---\n")[1]
    values = dict(re.findall(r"^(\w+): (.*)$", head, re.MULTILINE))
    return Skill(values["name"], values["description"], file.parent)
