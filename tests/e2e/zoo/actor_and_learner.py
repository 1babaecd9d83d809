"""One thread plays with a copy of the model, without gradients, while the main thread trains."""

import copy
import threading
import time

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, pause):
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.pause = pause

    def forward(self, state):
        time.sleep(self.pause)  # as long as the game takes
        return self.net(state)


torch.manual_seed(89)
learner = Policy(0.001)
actor = copy.deepcopy(learner)
actor.pause = 0.02
optimizer = torch.optim.RMSprop(learner.parameters(), lr=1e-3)
under_way, over = threading.Event(), threading.Event()


@torch.no_grad()
def play():
    state = torch.ones(1, 4)
    while not over.is_set():
        under_way.set()
        state = state.roll(1) + actor(state).mean()


playing = threading.Thread(target=play)
playing.start()
under_way.wait()
time.sleep(0.005)  # the first move takes longer than that
for _ in range(12):
    states, returns = torch.randn(9, 4), torch.randn(9, 2)
    loss = nn.functional.mse_loss(learner(states), returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
over.set()
playing.join()
