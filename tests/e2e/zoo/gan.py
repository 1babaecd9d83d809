"""Two networks, two optimizers, one step each iteration."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for _ in range(5):
    real, noise = torch.randn(10, 8), torch.randn(10, 4)
    for_critic.zero_grad()
    critic_loss = critic(generator(noise).detach()).mean() - critic(real).mean()
    critic_loss.backward()
    for_critic.step()
    for_generator.zero_grad()
    generator_loss = -critic(generator(noise)).mean()
    generator_loss.backward()
    for_generator.step()
    print("loss", critic_loss.item().hex())
    print("loss", generator_loss.item().hex())
