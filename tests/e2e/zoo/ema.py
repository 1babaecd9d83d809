"""A slow copy of the model, made in mid-training; saving, pickling and a look at the source."""

import copy
import hashlib
import inspect
import io
import pickle

import torch
from torch import nn


class Squeeze(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.down = nn.Linear(width, 3)
        self.up = nn.Linear(3, width)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return self.up(torch.tanh(self.down(x)))


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


torch.manual_seed(17)
model = Squeeze()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
ema = None
for step in range(6):
    x = torch.randn(4, 6)
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    if step == 1:
        ema = copy.deepcopy(model).eval().requires_grad_(False)
    elif ema is not None:
        with torch.no_grad():
            for slow, fast in zip(ema.parameters(), model.parameters()):
                slow.mul_(0.9).add_(fast, alpha=0.1)
            print("slow", nn.functional.mse_loss(ema(x), x).item().hex(), ema.calls.item())

file = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
file.seek(0)
kept = torch.load(file, weights_only=True)
fresh = Squeeze()
print(fresh.load_state_dict(kept["model"]), list(kept["model"]), sorted(kept["optimizer"]["state"]))
whole = pickle.dumps(model)
print("pickled", sorted(vars(pickle.loads(whole))), b"flatout" in whole)
print("vars", sorted(vars(ema)), sorted(vars(copy.deepcopy(model))))
with torch.no_grad():
    ones = torch.ones(1, 6)
    print("same", torch.equal(fresh(ones), model(ones)), torch.equal(pickle.loads(whole)(ones), model(ones)))
print(inspect.signature(torch.optim.AdamW))
print(inspect.signature(torch.optim.AdamW.step), torch.optim.AdamW.step.__qualname__)
print(inspect.signature(model), inspect.signature(model.forward), inspect.signature(nn.Module.__call__))
print(inspect.signature(torch.Tensor.backward), inspect.signature(torch.utils.data.DataLoader.__iter__))
print(inspect.getsource(model.forward))
print(
    digest(inspect.getsource(type(model)).encode()), digest(inspect.getsource(nn.Module._call_impl).encode())
)
print(repr(model), isinstance(ema, Squeeze), type(model).__mro__[1])
