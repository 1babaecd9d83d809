"""Sentences of unequal length: a sampler that groups them, a batch sampler, a collate function and a generator."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler


class Sentences(Dataset):
    def __init__(self, count):
        self.lengths = [3 + (7 * number) % 10 for number in range(count)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        tokens = torch.randint(1, 30, (self.lengths[index],))
        return tokens, (tokens > 15).float().mean()


class ByLength(Sampler):
    """Shuffles, then sorts within windows, so that a batch holds neighbours in length."""

    def __init__(self, lengths, window, generator):
        self.lengths, self.window, self.generator = lengths, window, generator

    def __iter__(self):
        order = torch.randperm(len(self.lengths), generator=self.generator).tolist()
        for start in range(0, len(order), self.window):
            yield from sorted(order[start : start + self.window], key=self.lengths.__getitem__)

    def __len__(self):
        return len(self.lengths)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8, padding_idx=0)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][-1]).squeeze(1)


def collate(pairs):
    tokens, targets = zip(*pairs)
    lengths = torch.tensor([len(sentence) for sentence in tokens])
    return pad_sequence(tokens, batch_first=True), lengths, torch.stack(targets)


def start_worker(worker_id):
    torch.manual_seed(1000 + worker_id)


if __name__ == "__main__":
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(42)
    sentences = Sentences(26)
    batches = BatchSampler(ByLength(sentences.lengths, 8, generator), batch_size=4, drop_last=True)
    loader = DataLoader(
        sentences,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=1,
        worker_init_fn=start_worker,
        generator=generator,
    )
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for tokens, lengths, target in loader:
        loss = nn.functional.mse_loss(model(tokens, lengths), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex(), flush=True)
    print("batches", len(loader), "generator", generator.get_state().sum().item())
