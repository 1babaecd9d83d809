"""Plain tensors, picked by a random permutation; no DataLoader and no main()."""

import torch
import torch.nn.functional as F

torch.manual_seed(1234)
x = torch.linspace(-3, 3, 40).unsqueeze(1)
y = torch.sin(x)
model = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
opt = torch.optim.Adam(model.parameters(), 3e-3)

for epoch in range(3):
    order = torch.randperm(len(x))
    for i in range(0, len(x), 10):
        pick = order[i : i + 10]
        opt.zero_grad()
        loss = F.mse_loss(model(x[pick]), y[pick])
        loss.backward()
        opt.step()
        print("loss", loss.item().hex())
