"""EMA by deepcopy, state_dict, pickle and inspect: none of them may see that somebody watches."""

import copy
import inspect
import pickle

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
average = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(torch.randn(20, 8)), batch_size=4)
for (x,) in loader:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.1)
    print("loss", loss.item().hex())
again = pickle.loads(pickle.dumps(model))
twin = copy.deepcopy(model)
print(sorted(model.state_dict()), sorted(vars(again)) == sorted(vars(average)), sorted(vars(twin)))
print(again(torch.ones(1, 8)).item() == model(torch.ones(1, 8)).item())
print("fused" in inspect.signature(torch.optim.AdamW).parameters, type(iter(loader)).__name__)
print(inspect.signature(torch.autograd.backward), torch.autograd.backward.__name__)
print(nn.Module.__call__ is nn.Linear.__call__, callable(iter(loader).__next__))
