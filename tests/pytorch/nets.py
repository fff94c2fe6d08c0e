"""Small models for the loops, one for each thing that a model may do."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 5


class Net(nn.Module):
    def __init__(self, out: int = 1) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 7), nn.Linear(7, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Tied(Net):
    """One matrix in two layers, and an output in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.mid, self.also = nn.Linear(7, 7), nn.Linear(7, 7)
        self.also.weight = self.mid.weight

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = torch.tanh(self.also(torch.tanh(self.mid(torch.tanh(self.first(x))))))
        return {"y": self.last(hidden), "more": [hidden]}


class Heads(nn.Module):
    """Uses one of two heads, the other stays without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(WIDTH, 7), nn.ModuleList([nn.Linear(7, 1), nn.Linear(7, 1)])

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](torch.tanh(self.body(x)))


class Checkpointed(Net):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = nn.Linear(7, 7), reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = checkpoint(lambda h: torch.tanh(self.inner(h)), hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


class Words(nn.Module):
    """Sparse gradients of an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(11, 6, sparse=True), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.table((x.abs() * 10).long() % 11).mean(1)))


def mse(output: Tensor, y: Tensor) -> Tensor:
    return ((output - y) ** 2).mean()
