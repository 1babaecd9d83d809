"""A LightningModule under a Trainer, with validation; with `--keep`, checkpoints and gradient accumulation too."""

import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

keep = "--keep" in sys.argv


class Fit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 1))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        print("loss", (loss.item() / self.trainer.accumulate_grad_batches).hex())
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("score", nn.functional.mse_loss(self(x), y))

    def on_validation_epoch_end(self):
        print("score", self.trainer.callback_metrics["score"].item().hex())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


L.seed_everything(61, verbose=False)
x = torch.randn(48, 6)
y = x.prod(1, keepdim=True)
training = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=8, shuffle=True)
validation = DataLoader(TensorDataset(x[32:], y[32:]), batch_size=4)
trainer = L.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=keep,
    callbacks=[ModelCheckpoint(dirpath="kept", filename="best", monitor="score", save_last=True)]
    if keep
    else [],
    accumulate_grad_batches=2 if keep else 1,
    gradient_clip_val=1.0,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Fit(), training, validation)
print("steps", trainer.global_step)
