"""A LightningModule under a Trainer, with and without our callback; LIGHTNING names the package.

lightning_job.py tour                    # several trainings in this process; what they showed, as JSON
lightning_job.py life [UPDATE [SIGNAL]]  # one, which a signal meets in that update; goes on where it was
lightning_job.py ranks [UPDATE]          # one on two ranks, of which the first is met by a SIGTERM
"""

import csv
import importlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.runtime.stopping import current

HOME = os.environ.get("LIGHTNING", "lightning.pytorch")
L = importlib.import_module(HOME)
from flatout.integrations.lightning import FlatoutCallback, newest_checkpoint, resumable, trainer_settings  # noqa: E402

EXACT = Plan(
    job=Fingerprint(script="train.py", script_sha256=""),
    levers=(Choice(id="garbage-collector"), Choice(id="loader", settings={"num_workers": 2})),
    samples_per_s=100.0,
    mfu=0.25,
)


class Fit(L.LightningModule):
    def __init__(self, terminated_in, number):
        super().__init__()
        # Not called by way of the module itself: what trains is found by what is called.
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 1))
        self.terminated_in, self.number = terminated_in, number
        self.losses = []

    def training_step(self, batch, index):
        is_told = self.trainer.global_step + 1 == self.terminated_in and index % 2 == 0
        if is_told and self.trainer.global_rank == 0:
            os.kill(os.getpid(), self.number)
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.losses.append(loss.item().hex())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("score", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def trained(folder, *callbacks, terminated_in=0, number=signal.SIGTERM, **settings):
    L.seed_everything(61, verbose=False)
    x = torch.randn(64, 6)
    y = x.prod(1, keepdim=True)
    data, rank = TensorDataset(x[:48], y[:48]), int(os.environ.get("LOCAL_RANK", "0"))
    ranks = settings.get("devices", 1)
    sampler = DistributedSampler(data, ranks, rank) if ranks > 1 else None
    loader = resumable(DataLoader(data, batch_size=4, shuffle=sampler is None, sampler=sampler))
    validation = DataLoader(TensorDataset(x[48:], y[48:]), batch_size=4)
    logger = importlib.import_module(f"{HOME}.loggers").CSVLogger(folder, name="", version="log")
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=1,
        callbacks=list(callbacks),
        default_root_dir=folder,
        accumulate_grad_batches=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    module = Fit(terminated_in, number)
    try:
        trainer.fit(module, loader, validation, ckpt_path=newest_checkpoint(folder))
    finally:
        kept = Path(folder, f"losses-{rank}.json" if ranks > 1 else "losses.json")
        before = json.loads(kept.read_text()) if kept.exists() else []
        kept.write_text(json.dumps(before + module.losses))
    return module


def losses(folder):
    return json.loads(Path(folder, "losses.json").read_text())


def tour():
    trained("plain")
    seen = {"plain": losses("plain")}
    found = signal.getsignal(signal.SIGTERM)

    callback = FlatoutCallback(EXACT)
    module = trained("planned", callback, **trainer_settings(EXACT))
    seen["planned"] = losses("planned")
    seen["levers"], seen["dropped"] = callback.levers, callback.dropped
    with Path("planned/log/metrics.csv").open() as file:
        seen["figures"] = [row for row in csv.DictReader(file) if row.get("flatout/step_s")]
    seen["is_as_found"] = not any("_compiled_call_impl" in vars(one) for one in module.modules())
    seen["is_as_found"] &= torch.nn.Module.__call__.__module__.startswith("torch")
    seen["is_as_found"] &= signal.getsignal(signal.SIGTERM) is found

    unwell = FlatoutCallback(EXACT)
    unwell._companion = None  # whatever it does now fails
    trained("unwell", unwell)
    seen["unwell"] = losses("unwell")

    trained("stopped", FlatoutCallback(leave=False), terminated_in=8, number=signal.SIGUSR1)
    seen["checkpoints"] = sorted(path.name for path in Path("stopped").rglob("*.ckpt"))
    current().leave()  # a process that was asked to stop would stop again
    trained("stopped", FlatoutCallback())
    seen["resumed"] = losses("stopped")
    return seen


if sys.argv[1] == "tour":
    Path("seen.json").write_text(json.dumps(tour()))
elif sys.argv[1] == "ranks":
    trained(".", FlatoutCallback(), terminated_in=int((*sys.argv, 0)[2]), devices=2, strategy="ddp")
else:
    update = int((*sys.argv, 0)[2])
    number = getattr(signal, sys.argv[3]) if len(sys.argv) > 3 else signal.SIGTERM
    trained(".", FlatoutCallback(), terminated_in=update, number=number)
