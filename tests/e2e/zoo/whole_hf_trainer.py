"""The Trainer of transformers as people use it: evaluation, checkpoints of which two stay, accumulation."""

import hashlib, os, signal, sys
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Texts(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 12) * (1 + index % 3) % 50
        return {"input_ids": tokens, "labels": tokens}


class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if os.environ.get("DIES_AT") == str(state.global_step):
            os.kill(os.getpid(), signal.SIGKILL)


set_seed(5)
small = GPT2Config(
    vocab_size=50, n_positions=12, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
args = TrainingArguments(
    output_dir="out",
    use_cpu=not torch.cuda.is_available(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=3,
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=5,
    save_steps=5,
    save_total_limit=2,
    report_to="none",
    disable_tqdm=True,
    seed=5,
)
trainer = Trainer(
    model=GPT2LMHeadModel(small),
    args=args,
    train_dataset=Texts(64),
    eval_dataset=Texts(16),
    callbacks=[Dies()],
)
trainer.train()
logged = [(row["step"], row.get("loss"), row.get("eval_loss")) for row in trainer.state.log_history]
bits = b"".join(one.detach().numpy().tobytes() for one in trainer.model.parameters())
print("end", hashlib.sha256(bits).hexdigest(), logged)
