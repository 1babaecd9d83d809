"""One model, two optimizers: a lazy one for the sparse embedding, another for the rest."""

import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(500, 8, sparse=True)
        self.rest = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 20))

    def forward(self, words):
        return self.rest(self.embed(words))


torch.manual_seed(13)
model = Bag()
for_words = torch.optim.SparseAdam(list(model.embed.parameters()), lr=1e-2)
for_rest = torch.optim.AdamW(model.rest.parameters(), lr=1e-3, weight_decay=0.01)
for _ in range(7):
    words, topic = torch.randint(500, (5, 6)), torch.randint(20, (5,))
    loss = nn.functional.cross_entropy(model(words), topic)
    for_words.zero_grad()
    for_rest.zero_grad()
    loss.backward()
    for_words.step()
    for_rest.step()
    print("loss", loss.item().hex())
