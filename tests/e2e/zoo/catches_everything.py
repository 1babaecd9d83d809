"""Trusts nothing: catches whatever comes, tidies up, and leaves with a code of its own."""

import torch
from torch import nn

torch.manual_seed(6)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(number):
    if number == 2:
        raise MemoryError("a made up one")
    if number == 5:
        raise KeyboardInterrupt
    loss = model(torch.randn(5, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())


done = 0
try:
    for number in range(100):
        try:
            step(number)
            done += 1
        except Exception as error:
            print("goes on after", repr(error))
        except:  # noqa
            print("interrupted in", number)
            raise
        finally:
            print("end of", number)
except BaseException as error:
    print("caught", type(error).__name__, "after", done)
    raise SystemExit(7)
finally:
    print("tidied up")
