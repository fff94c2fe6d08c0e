"""A DistributedDataParallel job: torchrun --nproc-per-node 2 examples/pytorch_ddp.py (or pytorch_ddp_plain.py)."""

import os

import torch
import torch.distributed as dist
from lbbsp.adapters.pytorch import balance
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 32, generator=generator)
    teacher = torch.randn(32, 8, generator=generator)
    return TensorDataset(inputs, (inputs @ teacher).argmax(dim=1))


def main() -> None:
    dist.init_process_group()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 8)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model, loader = balance(model, loader)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                inputs, labels = (tensor.to(device) for tensor in data.tensors)
                loss = nn.functional.cross_entropy(model.module(inputs), labels)
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
