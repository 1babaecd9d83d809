"""Answers signals itself, as a job on a cluster does: save now, pause, and stop after this step."""

import atexit
import faulthandler
import os
import signal
import sys

atexit.register(print, "at exit: registered before torch")

import torch
from torch import nn

faulthandler.enable()
before = {name: signal.getsignal(getattr(signal, name)) for name in ("SIGTERM", "SIGINT", "SIGUSR1")}
print("before", {name: getattr(handler, "__name__", str(handler)) for name, handler in before.items()})
step, stopping = 0, False


def answer(number, frame):
    global stopping
    print("signal", signal.Signals(number).name, "in step", step, "in", frame.f_code.co_name)
    stopping = stopping or number == signal.SIGTERM


for name in before:
    signal.signal(getattr(signal, name), answer)
atexit.register(print, "at exit: registered first")
atexit.register(lambda: print("at exit: registered second, after", step, "steps"))

torch.manual_seed(4)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
sends = {2: signal.SIGUSR1, 4: signal.SIGINT, 6: signal.SIGTERM}
while not stopping:
    step += 1
    loss = model(torch.randn(3, 6)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step in sends:
        os.kill(os.getpid(), sends[step])
    optimizer.step()
    print("loss", loss.item().hex())
print("handlers kept", all(signal.getsignal(getattr(signal, name)) is answer for name in before))
print("faulthandler", faulthandler.is_enabled(), "hooks", sys.excepthook is sys.__excepthook__)
