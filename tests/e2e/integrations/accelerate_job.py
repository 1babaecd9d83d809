"""A loop with an Accelerator, with and without Flatout around it.

accelerate_job.py tour            # several trainings in this process; what they showed, as JSON
accelerate_job.py life [UPDATE]   # one, which a SIGTERM meets in that update; goes on where it was
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flatout.integrations.accelerate import Flatout, accelerator_settings
from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.runtime.stopping import current

EXACT = Plan(
    job=Fingerprint(script="train.py", script_sha256=""),
    levers=(
        Choice(id="garbage-collector"),
        Choice(id="loader", settings={"num_workers": 1}),
    ),
    samples_per_s=100.0,
    mfu=0.25,
)


class Kept(GeneralTracker):
    name, requires_logging_directory = "kept", False

    def __init__(self):
        super().__init__()
        self.rows = []

    @property
    def tracker(self):
        return self.rows

    def store_init_configuration(self, values):
        pass

    @on_main_process
    def log(self, values, step=None, **kwargs):
        self.rows.append({**values, "step": step})


def trained(losses, plan=None, *, terminated_in=0, bare=False, unwell=False, **options):
    """One training; losses are added to a list, which lives on where this ends early."""
    tracker = Kept()
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, log_with=tracker, **accelerator_settings(plan or EXACT)
    )
    accelerator.init_trackers("test")
    set_seed(71)
    x = torch.randn(48, 5)
    data = TensorDataset(x, x.square().sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Dropout(0.2), nn.Linear(10, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)
    with Flatout(accelerator, plan, log_every=1, **options) as flat:
        if unwell:
            flat._companion = None  # whatever it does now fails
        prepare = accelerator.prepare if bare else flat.prepare
        model, optimizer, loader, scheduler = prepare(model, optimizer, loader, scheduler)
        flat.resume()
        for _ in range(3) if bare else flat.epochs(3):
            for x, y in loader if bare else flat.batches(loader):
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(x), y)
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                losses.append(loss.item().hex())
                is_told = accelerator.sync_gradients and accelerator.is_local_main_process
                if flat.updates + 1 == terminated_in and is_told:
                    os.kill(os.getpid(), signal.SIGTERM)
                if not bare and flat.step():
                    break
    accelerator.end_training()
    return flat, model, tracker.rows


def tour():
    seen = {name: [] for name in ("plain", "planned", "resumed", "unwell")}
    trained(seen["plain"], bare=True)
    found = signal.getsignal(signal.SIGTERM)

    flat, model, seen["figures"] = trained(seen["planned"], EXACT)
    seen["levers"], seen["dropped"] = flat.levers, flat.dropped
    seen["is_as_found"] = "_compiled_call_impl" not in vars(model)
    seen["is_as_found"] &= torch.nn.Module.__call__.__module__.startswith("torch")
    seen["is_as_found"] &= signal.getsignal(signal.SIGTERM) is found

    trained(seen["unwell"], EXACT, unwell=True)

    trained(seen["resumed"], checkpoints="stopped", terminated_in=8, leave=False)
    seen["checkpoints"] = sorted(path.name for path in Path("stopped").iterdir())
    current().leave()  # a process that was asked to stop would stop again
    trained(seen["resumed"], checkpoints="stopped")
    return seen


if sys.argv[1] == "tour":
    Path("seen.json").write_text(json.dumps(tour()))
else:
    rank = os.environ.get("RANK", "0")
    losses = []
    try:
        trained(losses, checkpoints="out", terminated_in=int((*sys.argv, 0)[2]))
    finally:
        kept = Path(f"losses-{rank}.json")
        before = json.loads(kept.read_text()) if kept.exists() else []
        kept.write_text(json.dumps(before + losses))
