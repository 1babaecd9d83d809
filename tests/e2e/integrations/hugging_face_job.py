"""A small language model under the Trainer of transformers, with and without our callback.

hugging_face_job.py tour            # several trainings in this process; what they showed, as JSON
hugging_face_job.py life [UPDATE]   # one, which a SIGTERM meets in that update; goes on where it was
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging

from flatout.integrations.hugging_face import FlatoutCallback, newest_checkpoint, training_arguments
from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.runtime.stopping import current

EXACT = Plan(
    job=Fingerprint(script="train.py", script_sha256=""),
    levers=(
        Choice(id="garbage-collector"),
        Choice(id="loader", settings={"num_workers": 0, "pin_memory": False}),
        Choice(id="no-such-lever"),
    ),
    samples_per_s=100.0,
    mfu=0.25,
)


class Counting(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 12) % 50
        return {"input_ids": tokens, "labels": tokens}


class Terminated(TrainerCallback):
    """A scheduler that wants the machine back, in the middle of an update."""

    def __init__(self, update):
        self.update = update

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.update:
            os.kill(os.getpid(), signal.SIGTERM)


def trained(folder, *callbacks, steps=16, **arguments):
    set_seed(67)
    small = GPT2Config(
        vocab_size=50, n_positions=12, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    args = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=steps,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=67,
        **arguments,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(small), args=args, train_dataset=Counting(), callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
    return trainer


def losses(trainer):
    return [entry["loss"].hex() for entry in trainer.state.log_history if "loss" in entry]


def tour():
    seen = {"plain": losses(trained("plain"))}
    found = signal.getsignal(signal.SIGTERM)

    callback = FlatoutCallback(EXACT)
    trainer = trained("planned", callback, **training_arguments(EXACT))
    seen["planned"] = losses(trainer)
    seen["levers"], seen["dropped"] = callback.levers, callback.dropped
    seen["figures"] = [entry for entry in trainer.state.log_history if "flatout/step_s" in entry]
    seen["is_as_found"] = "_compiled_call_impl" not in vars(trainer.model)
    seen["is_as_found"] &= torch.nn.Module.__call__.__module__.startswith("torch")
    seen["is_as_found"] &= signal.getsignal(signal.SIGTERM) is found

    unwell = FlatoutCallback(EXACT)
    unwell._companion = None  # whatever it does now fails
    seen["unwell"] = losses(trained("unwell", unwell))

    trained("stopped", Terminated(7), FlatoutCallback(leave=False))
    seen["checkpoints"] = sorted(path.name for path in Path("stopped").iterdir())
    current().leave()  # a process that was asked to stop would stop again
    seen["resumed"] = losses(trained("stopped", FlatoutCallback()))
    return seen


logging.set_verbosity_error()
logging.disable_progress_bar()
if sys.argv[1] == "tour":
    Path("seen.json").write_text(json.dumps(tour()))
else:
    trainer = trained("out", Terminated(int((*sys.argv, 0)[2])), FlatoutCallback())
    Path("losses.json").write_text(json.dumps(losses(trainer)))
