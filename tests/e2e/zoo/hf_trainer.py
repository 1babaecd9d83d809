"""A small language model, with random weights, under the Trainer of transformers; two micro-batches an update."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed


class Counting(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 12) % 50
        return {"input_ids": tokens, "labels": tokens}


class Talking(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print("loss", loss.item().hex())
        return loss


set_seed(67)
small = GPT2Config(
    vocab_size=50, n_positions=12, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(small)
arguments = TrainingArguments(
    output_dir="out",
    use_cpu=True,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=6,
    gradient_accumulation_steps=2,
    max_steps=5,
    learning_rate=1e-3,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    seed=67,
)
held_out = torch.utils.data.Subset(Counting(), range(12))
trainer = Talking(model=model, args=arguments, train_dataset=Counting(), eval_dataset=held_out)
trainer.remove_callback(PrinterCallback)  # it prints how long everything took
result = trainer.train()
print("scores", [entry["eval_loss"].hex() for entry in trainer.state.log_history if "eval_loss" in entry])
print("steps", result.global_step, "average", result.training_loss.hex())
