"""What rank 0 broadcasts comes out of the payload as it went in, and its length is the same on all ranks."""

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lbbsp.worker.vector import NOWHERE, PLACES, Place, Vector, pack, payload_length, unpack

NUMBERS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**31 - 1)
PLACE = st.builds(Place, epoch=st.integers(0, 2**62), draw=st.integers(-1, 2**62), order=st.integers(0, 2**32 - 1))


@st.composite
def vectors(draw: st.DrawFn) -> Vector:
    ranks = draw(st.integers(1, 8))
    sizes, homes = (np.array(draw(st.lists(COUNTS, min_size=ranks, max_size=ranks))) for _ in range(2))
    more = {name: draw(COUNTS) for name in ("beta_ppm", "chunk", "rest", "sensors_every")}
    return Vector(sizes, draw(COUNTS), draw(COUNTS), draw(st.integers(-1, 2**62)), homes, **more)


@given(vectors(), st.lists(PLACE, max_size=PLACES + 3))
def test_a_payload_carries_vector_and_places(vector: Vector, places: list[Place]) -> None:
    payload = pack(vector, tuple(places))
    assert payload.dtype == np.int64
    assert payload.shape == (payload_length(len(vector.sizes)),)
    back, there = unpack(payload)
    assert there == tuple(places[:PLACES])
    for name in (field.name for field in fields(Vector) if field.name not in ("sizes", "homes")):
        assert getattr(back, name) == getattr(vector, name)
    assert back.sizes.tolist() == vector.sizes.tolist()
    assert back.homes.tolist() == vector.homes.tolist()


def test_homes_are_the_sizes_where_none_are_given() -> None:
    assert Vector(np.array([3, 5])).homes.tolist() == [3, 5]


def test_what_was_unpacked_does_not_change_with_the_payload() -> None:
    payload = pack(Vector(np.array([3, 5])), ())
    vector, _ = unpack(payload)
    payload[:] = 7
    assert vector.sizes.tolist() == [3, 5]
    assert vector.homes.tolist() == [3, 5]


def test_an_iterator_that_has_not_drawn_yet_is_a_place_and_nowhere_is_none() -> None:
    _, places = unpack(pack(Vector(np.array([1])), (Place(0, -1, 0), NOWHERE)))
    assert places == (Place(0, -1, 0),)
