"""Small real trainings under a session, as the guard sees them; and twenty-two ways to spoil one."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout.inside.session import Session
from flatout.records.session import Order
from flatout.tune.guard_runs import GuardRun

STEPS = 30


@dataclasses.dataclass
class Job:
    """One training, with hooks at the places where something can go wrong."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    batches: list[tuple[torch.Tensor, torch.Tensor]]
    clip: float | None = 1.0


def attention_job(seed: int = 0) -> Job:
    """A small transformer that classifies tokens."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [(x := torch.randint(50, (8, 12)), (x + 1) % 50) for _ in range(STEPS)]
    return Job(
        model, optimizer, lambda out, y: nn.functional.cross_entropy(out.flatten(0, 1), y.flatten()), batches
    )


def image_job(seed: int = 0) -> Job:
    """A small convolutional network."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 6 * 6, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    batches = [(torch.randn(16, 3, 8, 8), torch.randint(10, (16,))) for _ in range(STEPS)]
    return Job(model, optimizer, nn.functional.cross_entropy, batches, clip=0.1)


def regression_job(seed: int = 0) -> Job:
    """A multilayer perceptron."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = [(x := torch.randn(32, 16), x[:, :1] * x[:, 1:2]) for _ in range(STEPS)]
    return Job(model, optimizer, nn.functional.mse_loss, batches, clip=None)


JOBS = {"attention": attention_job, "images": image_job, "regression": regression_job}


def train(
    folder: Path,
    make: Callable[[int], Job],
    spoil: "Callable[[Job], Any] | None" = None,
    *,
    seed: int = 0,
    levers: tuple[dict[str, Any], ...] = (),
    perturb: float = 0.0,
    which: int = 0,
    same_random: bool = False,
) -> GuardRun:
    """Train with a session that sketches, and read what it left."""
    order = Order(
        folder=str(folder),
        guard_updates=3,
        pair_updates=3,
        perturb=perturb,
        perturbation=which,
        levers=levers,
        same_random=same_random,
    )
    session = Session(torch, order)
    session.arm()
    try:
        job = make(seed)
        spoiler = spoil(job) if spoil is not None else None
        torch.manual_seed(seed + 1)
        job.model.train()
        for number, (x, y) in enumerate(job.batches):
            batch = spoiler.batch(number, x, y) if hasattr(spoiler, "batch") else (x, y)
            loss = job.loss(job.model(batch[0]), batch[1])
            if hasattr(spoiler, "loss"):
                loss = spoiler.loss(number, loss)
            job.optimizer.zero_grad()
            loss.backward()
            if hasattr(spoiler, "gradients"):
                spoiler.gradients(number, job)
            if job.clip is not None:
                nn.utils.clip_grad_norm_(job.model.parameters(), job.clip)
            job.optimizer.step()
            if hasattr(spoiler, "stepped"):
                spoiler.stepped(number, job)
    finally:
        session.finish()
        session.disarm()
    assert not session.failed, session.failed
    return GuardRun.read(folder)


class Spoiler:
    """Does nothing; each corruption overrides one moment of the step."""

    def __init__(self, job: Job) -> None:
        self.job = job


def _gradients(change: Callable[[str, torch.Tensor], torch.Tensor]) -> type[Spoiler]:
    class Changed(Spoiler):
        def gradients(self, _number: int, job: Job) -> None:
            for name, parameter in job.model.named_parameters():
                if parameter.grad is not None:
                    parameter.grad = change(name, parameter.grad)

    return Changed


class Frozen(Spoiler):
    """One bias learns nothing."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.bias = [p for name, p in job.model.named_parameters() if name.endswith("bias")][-1]

    def gradients(self, _number: int, _job: Job) -> None:
        self.bias.grad = None


class NoDropout(Spoiler):
    """The model trains in evaluation mode where dropout is concerned."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        for module in job.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0


class DoubleStep(Spoiler):
    """Each update is made twice."""

    def stepped(self, _number: int, job: Job) -> None:
        job.optimizer.step()


class StaleBatch(Spoiler):
    """Every second batch is the one before."""

    def batch(self, number: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.job.batches[number - number % 2]


class ShiftedLabels(Spoiler):
    """Labels belong to their neighbours."""

    def batch(self, _number: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y.roll(1, 0)


class LossScale(Spoiler):
    """The loss is scaled and never unscaled."""

    def loss(self, _number: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * 8.0


class Nan(Spoiler):
    """A loss that is not a number, late."""

    def loss(self, number: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if number == 20 else loss


class OtherRate(Spoiler):
    """Another learning rate."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        for group in job.optimizer.param_groups:
            group["lr"] *= 2.0


class SlightlyOtherRate(Spoiler):
    """A slightly higher learning rate."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        for group in job.optimizer.param_groups:
            group["lr"] *= 1.3


class LostClipping(Spoiler):
    """Gradients are clipped no longer."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        job.clip = 1e9


class KeptGradients(Spoiler):
    """Gradients are never zeroed."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        job.optimizer.zero_grad = lambda *_args, **_kwargs: None  # type: ignore[method-assign]


class HalfBatch(Spoiler):
    """Half of each batch is lost."""

    def batch(self, _number: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[: len(x) // 2], y[: len(y) // 2]


class SwappedParameters(Spoiler):
    """The first layer is not among the optimizer's parameters."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        first = next(iter(job.model.parameters()))
        for group in job.optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter is not first]


class SkippedUpdates(Spoiler):
    """Every third update is lost."""

    def gradients(self, number: int, job: Job) -> None:
        if number % 3 == 0:
            for parameter in job.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()


class Drift(Spoiler):
    """Parameters are pulled towards zero after each step."""

    def stepped(self, _number: int, job: Job) -> None:
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.mul_(0.97)


class MeanForSum(Spoiler):
    """The loss is a mean over twice as many."""

    def loss(self, _number: int, loss: torch.Tensor) -> torch.Tensor:
        return loss / 2


def _waves(gradient: torch.Tensor) -> torch.Tensor:
    """Something that looks like noise, a third as large as the gradient."""
    places = torch.arange(gradient.numel(), dtype=torch.float32).view_as(gradient)
    return 0.3 * gradient.abs().mean() * torch.sin(7 * places + 1)


def _coarse(gradient: torch.Tensor) -> torch.Tensor:
    """In steps of a quarter of the largest."""
    largest = gradient.abs().max()
    return (gradient / largest * 4).round() / 4 * largest


# What a job has nothing of cannot be spoilt; and what is rescaled is clipped back to what it was.
MEANINGLESS = {
    ("regression", "dropout off"),
    ("regression", "clipping lost"),
    ("attention", "clipping lost"),
    ("images", "gradients halved"),
    # What is kept was clipped to a twentieth of what comes: less than bf16's rounding.
    ("images", "gradients kept"),
}


CORRUPTIONS: dict[str, type[Spoiler]] = {
    "gradients halved": _gradients(lambda _name, gradient: gradient / 2),
    "gradients flipped": _gradients(lambda _name, gradient: -gradient),
    "one layer's gradient flipped": _gradients(
        lambda name, gradient: -gradient if name.endswith("weight") and name.startswith("0") else gradient
    ),
    "gradients with noise": _gradients(lambda _name, gradient: gradient + _waves(gradient)),
    "biases' gradients lost": _gradients(
        lambda name, gradient: gradient * 0 if name.endswith("bias") else gradient
    ),
    "gradients in three bits": _gradients(lambda _name, gradient: _coarse(gradient)),
    "one bias frozen": Frozen,
    "dropout off": NoDropout,
    "double step": DoubleStep,
    "stale batch": StaleBatch,
    "labels shifted": ShiftedLabels,
    "loss scaled": LossScale,
    "loss halved": MeanForSum,
    "not a number": Nan,
    "learning rate doubled": OtherRate,
    "learning rate 1.3 times": SlightlyOtherRate,
    "clipping lost": LostClipping,
    "gradients kept": KeptGradients,
    "half of each batch": HalfBatch,
    "a layer forgotten": SwappedParameters,
    "every third update lost": SkippedUpdates,
    "parameters drift": Drift,
}  # fmt: skip
