"""Training loops as users write them, each run twice: by balanced ranks, and by one process fed whole global batches.

A loop sees a `Side` and cannot tell which of the two it is. What the optimizer sees is recorded at every step.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from nets import WIDTH, mse
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


@dataclass
class Side:
    """What a loop works with; the same names on both sides."""

    models: list[Any]
    raw: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    batches: Iterable[tuple[Tensor, ...]]
    weight: Callable[..., None]
    mean: Callable[[Any], Any]
    distributed: bool
    gradients: list[list[Tensor | None]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def model(self) -> Any:
        return self.models[0]

    def step(self, which: int = 0) -> None:
        """Record what the optimizer sees, step, clear."""
        self.gradients.append(
            [
                None if p.grad is None else (p.grad.to_dense() if p.grad.is_sparse else p.grad).clone()
                for p in self.raw[which].parameters()
            ]
        )
        self.optimizers[which].step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def unsynced(self, really: bool = True) -> contextlib.AbstractContextManager[Any]:
        if not (self.distributed and really):
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        for model in self.models:
            stack.enter_context(model.no_sync())
        return stack


class Whole:
    """Global batches of one epoch after another, for the process that stands alone."""

    def __init__(self, data: tuple[Tensor, Tensor], orders: list[list[int]], global_batch: int) -> None:
        self.data, self.orders, self.global_batch = data, orders, global_batch

    def __len__(self) -> int:
        return -(-len(self.orders[0]) // self.global_batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.orders.pop(0)
        for start in range(0, len(order), self.global_batch):
            at = order[start : start + self.global_batch]
            yield self.data[0][at], self.data[1][at]


# --- loops


def plain(side: Side) -> None:
    for x, y in side.batches:
        loss = mse(side.model(x), y)
        loss.backward()
        side.losses.append(float(side.mean(loss.detach())))
        side.step()


def summed(side: Side) -> None:
    for x, y in side.batches:
        ((side.model(x) - y) ** 2).sum().backward()
        side.step()


def dictionary(side: Side) -> None:
    for x, y in side.batches:
        mse(side.model(x)["y"], y).backward()
        side.step()


def accumulated(side: Side, window: int = 3) -> None:
    """no_sync on all draws of a window but the last; a window cut short by the epoch's end is stepped too."""
    count = len(side.batches)  # type: ignore[arg-type]
    for i, (x, y) in enumerate(side.batches):
        last = (i + 1) % window == 0 or i + 1 == count
        with side.unsynced(not last):
            (mse(side.model(x), y) / window).backward()
        if last:
            side.step()


def accumulated_synced(side: Side) -> None:
    """Reduces at each draw, steps at every second."""
    for i, (x, y) in enumerate(side.batches):
        (mse(side.model(x), y) / 2).backward()
        if i % 2:
            side.step()


def pieces(side: Side) -> None:
    """Each draw in micro-batches of four, as many as the rank's part makes; the last one unequal."""
    for x, y in side.batches:
        chunks = list(zip(x.split(4), y.split(4), strict=True))
        for k, (xs, ys) in enumerate(chunks):
            with side.unsynced(k + 1 < len(chunks)):
                (((side.model(xs) - ys) ** 2).sum() / max(1, len(x))).backward()
        side.step()


def scaled(side: Side) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for x, y in side.batches:
        scaler.scale(mse(side.model(x), y)).backward()
        scaler.unscale_(side.optimizers[0])
        side.gradients.append([p.grad.clone() for p in side.raw[0].parameters()])
        scaler.step(side.optimizers[0])
        scaler.update()
        side.optimizers[0].zero_grad()


def scaled_accumulated(side: Side) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=side.raw[0].first.weight.dtype is torch.float64)
    for i, (x, y) in enumerate(side.batches):
        with side.unsynced(i % 2 == 0):
            scaler.scale(mse(side.model(x), y)).backward()
        if i % 2:
            scaler.unscale_(side.optimizers[0])
            nn.utils.clip_grad_norm_(side.raw[0].parameters(), 0.1)
            side.gradients.append([p.grad.clone() for p in side.raw[0].parameters()])
            scaler.step(side.optimizers[0])
            scaler.update()
            side.optimizers[0].zero_grad()


def clipped(side: Side) -> None:
    for x, y in side.batches:
        mse(side.model(x), y).backward()
        nn.utils.clip_grad_norm_(side.raw[0].parameters(), 0.05)
        side.step()


def hooked(side: Side) -> None:
    if side.distributed and not side.gradients:
        side.model.register_comm_hook(None, allreduce_hook)
    plain(side)


def alternating(side: Side) -> None:
    for i, (x, y) in enumerate(side.batches):
        mse(side.model(x, i % 2), y).backward()
        side.step()


def gan(side: Side) -> None:
    """Discriminator, then generator through the discriminator; two reductions a draw."""
    generator, critic = side.models
    for x, y in side.batches:
        fake = generator(x)
        (mse(critic(fake.detach()), y) + mse(critic(x), y + 1)).backward()
        side.step(1)
        mse(critic(generator(x)), y - 1).backward()
        side.step(0)


def gan_frozen(side: Side) -> None:
    """The critic's parameters ask for no gradient in the generator's step."""
    generator, critic = side.models
    for x, y in side.batches:
        fake = generator(x)
        mse(critic(fake.detach()), y).backward()
        side.step(1)
        side.raw[1].requires_grad_(False)
        mse(critic(fake), y - 1).backward()
        side.step(0)
        side.raw[1].requires_grad_(True)


def chained(side: Side) -> None:
    first, second = side.models
    for x, y in side.batches:
        mse(second(first(x)), y).backward()
        side.step(0) if len(side.gradients) % 2 else side.step(1)


def two_views(side: Side) -> None:
    for x, y in side.batches:
        a, b = side.model(x), side.model(x.flip(1))
        (mse(a, y) + ((a - b) ** 2).mean()).backward()
        side.step()


def unrolled(side: Side) -> None:
    """The output feeds the same model again."""
    for x, y in side.batches:
        mse(side.model(side.model(x)).sum(1, keepdim=True), y).backward()
        side.step()


def regularised(side: Side) -> None:
    for x, y in side.batches:
        penalty = sum((p**2).sum() for p in side.raw[0].parameters())
        (mse(side.model(x), y) + 0.1 * penalty).backward()
        side.step()


def parameters_only(side: Side) -> None:
    """Every second loss knows nothing of the batch."""
    for i, (x, y) in enumerate(side.batches):
        output = side.model(x)
        loss = mse(output, y) if i % 2 else sum((p**2).sum() for p in side.raw[0].parameters())
        loss.backward()
        side.step()


def valid_items(side: Side) -> None:
    """The loss is a mean over some of the samples' items; on a rank without any it is NaN."""
    for x, y in side.batches:
        valid = y > 0.3
        side.weight(valid_items=int(valid.sum()))
        loss = ((side.model(x) - y) ** 2)[valid].mean()
        loss.backward()
        side.losses.append(float(side.mean(loss.detach())))
        side.step()


def valid_accumulated(side: Side) -> None:
    for i, (x, y) in enumerate(side.batches):
        valid = y > 0.3
        side.weight(valid_items=int(valid.sum()))
        with side.unsynced(i % 2 == 0):
            ((side.model(x) - y) ** 2)[valid].mean().backward()
        if i % 2:
            side.step()


def retained(side: Side) -> None:
    """Looks at gradients of the graph that it goes on with; a penalty on the gradient of the input."""
    for x, y in side.batches:
        x = x.clone().requires_grad_(True)
        output = side.model(x)
        torch.autograd.grad(output.sum(), x, retain_graph=True)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        (mse(output, y) + (slope**2).sum(1).mean()).backward(retain_graph=True)
        side.step()


def retained_backwards(side: Side) -> None:
    """Two backward passes through one graph: under no_sync, then a synchronised draw."""
    for i, (x, y) in enumerate(side.batches):
        with side.unsynced(i % 2 == 0):
            output = side.model(x)
            if i % 2 == 0:
                mse(output, y).backward(retain_graph=True)
                (output**2).mean().backward()
            else:
                mse(output, y).backward()
        if i % 2:
            side.step()


def distracted(side: Side) -> None:
    """Validation between iterations, a forward with gradients that nobody follows, two forwards for one backward."""
    for i, (x, y) in enumerate(side.batches):
        if i % 3 == 1:
            with torch.no_grad():
                side.model(torch.ones(3, WIDTH, dtype=x.dtype))
        if i % 3 == 2:
            side.model(torch.ones(3, WIDTH, dtype=x.dtype))
        mse(side.model(x), y).backward()
        side.step()


def skipping(side: Side) -> None:
    """Draws that are never used."""
    for i, (x, y) in enumerate(side.batches):
        if i % 3 == 1:
            continue
        mse(side.model(x), y).backward()
        side.step()


def two_optimizers(side: Side) -> None:
    """AdamW sees the same too."""
    side.optimizers[0] = torch.optim.AdamW(side.raw[0].parameters(), lr=1e-2)
    plain(side)


def drawing_ahead(side: Side) -> None:
    """As loops with a CUDA prefetcher do."""
    batches = iter(side.batches)
    following = next(batches, None)
    while following is not None:
        (x, y), following = following, next(batches, None)
        mse(side.model(x), y).backward()
        side.step()


def drawing_between(side: Side) -> None:
    """The next draw comes between forward and backward."""
    batches = iter(side.batches)
    following = next(batches, None)
    while following is not None:
        x, y = following
        loss = mse(side.model(x), y)
        following = next(batches, None)
        loss.backward()
        side.step()


def two_batches_a_step(side: Side) -> None:
    """One backward pass through two draws of the same sizes."""
    batches = iter(side.batches)
    for (x, y), (x2, y2) in zip(batches, batches, strict=False):
        (mse(side.model(x), y) + mse(side.model(x2), y2)).backward()
        side.step()
