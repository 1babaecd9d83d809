"""How many threads compute on the CPU."""

from typing import Any, ClassVar

from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Settings


class CpuThreads(Lever):
    """How many threads share one operation on the CPU.

    torch takes one for each core. Small operations cost more to share out than they take, and threads that
    share a core with another's hyper-thread or with a loader's worker slow each other down. Sums are added in
    another order. Only for jobs that train on the CPU; a number that the script sets itself stays.
    """

    id = "cpu-threads"
    title = "CPU threads"
    safety = "resampled"
    # As many as there were before the script said anything.
    _before: ClassVar[int | None] = None

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs a CPU job with threads to choose from."""
        if job.on_gpu:
            return "the job trains on a GPU"
        if job.habit("sets_threads"):
            return "their number is chosen already: by the script, or by OMP_NUM_THREADS"
        if not cls.variants(job):
            return "there is one core"
        return ""

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """One, half as many, and one for each core."""
        now, cores = int(job.habit("threads", 1)), int(job.habit("cores", 1))
        return tuple({"threads": n} for n in sorted({1, max(1, now // 2), cores}) if n != now)

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Nobody knows before it is tried."""
        return 1.05

    @classmethod
    def stand_by(cls, torch: Any) -> None:
        """By this it is seen later whether the script chose a number."""
        cls._before = torch.get_num_threads()

    def apply(self) -> None:
        """Set it."""
        torch = self.scene.torch
        self._found = torch.get_num_threads()
        if self._before not in (None, self._found):
            raise Refused(f"the script chooses their number itself: {self._found}")
        torch.set_num_threads(self.settings["threads"])

    def undo(self) -> None:
        """As it was."""
        self.scene.torch.set_num_threads(self._found)
