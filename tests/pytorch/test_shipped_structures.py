"""Shipped structures of any kind arrive as torch would bring them, writable."""

import os
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given, settings
from test_chunks import Pair

from lbbsp.adapters.pytorch import shipping
from lbbsp.adapters.pytorch.joining import Collated, Uncollated

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool, torch.uint8]
DTYPES += [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.float8_e4m3fn]


def tensor(dtype: torch.dtype, shape: list[int], seed: int, how: str) -> torch.Tensor:
    """Elements of any value, laid out in several ways."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 2, shape, generator=random).to(dtype)
    match how:
        case "transposed":
            return values.transpose(0, -1) if values.dim() > 1 else values
        case "stepped":
            return values[::2] if values.dim() else values
        case "expanded":
            return values.unsqueeze(0).expand(3, *shape)
    return values


SHAPES = st.lists(st.integers(0, 5), max_size=3)
TENSORS = st.builds(
    tensor,
    st.sampled_from(DTYPES),
    SHAPES,
    st.integers(0, 99),
    st.sampled_from(["", "transposed", "stepped", "expanded"]),
)
ODD = st.sampled_from(
    [
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.cfloat).conj(),
    ]
)
ARRAYS = st.builds(lambda n, kind: np.arange(n).astype(kind), st.integers(0, 9), st.sampled_from(["i2", "f8", "U3"]))
LEAVES = TENSORS | ODD | ARRAYS | st.text(max_size=3) | st.binary(max_size=3) | st.none() | st.floats(allow_nan=False)
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


def first(samples: list[Any]) -> Any:
    return samples[0]


def travelled(value: Any) -> Any:
    """As a multiprocessing queue would bring it."""
    return pickle.loads(ForkingPickler.dumps(value))


def shipped_here(joining: Any, samples: list[Any], small: int) -> Any:
    """A chunk of this process's own."""
    ship = shipping.Shipping(joining, keep=3, small=small)
    chunk = travelled(ship(samples))
    for file in ship._files:
        os.close(file)
    return chunk


def alike(ours: Any, theirs: Any) -> None:
    """As same(), for what the default collate function doesn't make."""
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.layout) == (theirs.dtype, theirs.shape, theirs.layout)
        assert ours.requires_grad == theirs.requires_grad
        numbers = [one.detach().to_dense().to(torch.complex128) for one in (ours, theirs)]
        assert torch.equal(*numbers)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    elif isinstance(theirs, dict | list | tuple):
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            alike(one, other)
        if isinstance(theirs, dict):
            alike(list(ours.values()), list(theirs.values()))
    else:
        assert ours == theirs


def leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)


@settings(max_examples=150, deadline=None)
@given(STRUCTURES, st.sampled_from([0, 64, shipping.SMALL]))
def test_a_shipped_structure_arrives_as_torch_would_bring_it(structure: Any, small: int) -> None:
    shipped = shipped_here(Collated(first), [structure], small)
    alike(shipped, travelled(structure))
    for leaf in leaves(shipped):
        if shipping.plain(leaf) and leaf.numel():
            leaf.view(torch.uint8).fill_(0) if leaf.dim() else leaf.zero_()
            assert not leaf.to(torch.complex128).any()


@settings(max_examples=100, deadline=None)
@given(st.lists(STRUCTURES, min_size=1, max_size=3), st.sampled_from([0, shipping.SMALL]))
def test_samples_for_a_users_own_collate_function_arrive_as_they_are(samples: list[Any], small: int) -> None:
    joining = Uncollated(first)
    shipped = shipped_here(joining, samples, small)
    alike(joining.cut(shipped, 0, len(samples)), samples)
    alike(joining.cut(travelled(joining.pack(samples)), 0, len(samples)), samples)


def test_of_a_sample_that_is_a_view_only_its_own_elements_travel() -> None:
    data = torch.zeros(1000, 1000)
    assert len(shipping.by_value([data[3], data[:, 3]])) < 10_000
