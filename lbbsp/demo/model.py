"""The demo's model and data as torch objects.

No BatchNorm and no dropout, so that every split gives the same gradient.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from lbbsp.demo.records import Optimizer


def cnn(seed: int, side: int) -> nn.Module:
    """Three convolutions for images of side x side, alike for one seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 28, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(28, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(48, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (side // 4) ** 2, 10),
    )


def optimizer(name: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with steps small enough for any seed."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def dataset(path: Path, dtype: torch.dtype) -> TensorDataset:
    """What digits.save() wrote."""
    with np.load(path) as arrays:
        return TensorDataset(torch.from_numpy(arrays["images"]).to(dtype), torch.from_numpy(arrays["labels"]))
