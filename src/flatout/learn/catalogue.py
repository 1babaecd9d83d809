"""Every lesson, in the order to take them: a plain list. A new one is a file and a line here."""

from flatout.learn.lesson import Lesson
from flatout.learn.lessons import bound, kill, launch, memory, parallel, precision, training
from flatout.records.errors import UnknownName
from flatout.records.learn import LessonEntry

LESSONS: tuple[Lesson, ...] = (
    memory.LESSON,
    bound.LESSON,
    launch.LESSON,
    precision.LESSON,
    training.LESSON,
    parallel.LESSON,
    kill.LESSON,
)
BY_ID = {lesson.id: lesson for lesson in LESSONS}


def chosen(names: tuple[str, ...]) -> tuple[Lesson, ...]:
    """The lessons of these names, each once; a wrong one is answered with the nearest."""
    for name in names:
        if name.lower() not in BY_ID:
            raise UnknownName("lesson", name, BY_ID)
    return tuple(BY_ID[name] for name in dict.fromkeys(name.lower() for name in names))


def entries() -> tuple[LessonEntry, ...]:
    """The lessons as a list to choose from; the first is the one to start with."""
    return tuple(
        LessonEntry(
            id=lesson.id,
            title=lesson.title,
            question=lesson.question,
            seconds=lesson.seconds,
            is_first=place == 0,
        )
        for place, lesson in enumerate(LESSONS)
    )
