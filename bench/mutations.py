"""Mutated messages for bench/fuzz.py: broken bytes, and whole messages with fields that nobody should send. Seeded."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

NASTY: Sequence[Any] = (
    float("nan"), float("inf"), -float("inf"), 0, -1, 1, 2**31 - 1, 2**31, 2**62, 2**63, 2**64 - 1, -(2**63), 1e30,
    -0.0, 1e-300, "", "x", "x" * 257, "\0", "é" * 100, b"", b"\xff" * 9, None, True, [], [1.0] * 65, [[]], {},
    {"a": 1.4}, {"rolling.ratio": 0.0}, {"rolling.ratio": float("nan")}, "other-1", "real", "first", "on", "auto",
    "observe", 65_535,
)  # fmt: skip
TYPES = ("hello", "report", "bye", "look", "plan", "welcome", "seen", "nothing")
MARKS = b"\x00\x7f\x80\x8f\x90\x9f\xa0\xc0\xc1\xc4\xc7\xca\xcb\xcf\xd3\xd9\xdb\xdc\xdd\xde\xdf\xff"
"""First bytes of msgpack's kinds of values."""

Frame = bytes
Mutation = Callable[[random.Random, Frame, Frame], Frame]


def flip_bits(dice: random.Random, frame: Frame, _: Frame) -> Frame:
    """A few bits turned."""
    broken = bytearray(frame)
    for _ in range(dice.randint(1, 8)):
        broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
    return bytes(broken)


def set_marks(dice: random.Random, frame: Frame, _: Frame) -> Frame:
    """A few bytes become the start of some value."""
    broken = bytearray(frame)
    for _ in range(dice.randint(1, 3)):
        broken[dice.randrange(len(broken))] = dice.choice(MARKS)
    return bytes(broken)


def cut(dice: random.Random, frame: Frame, _: Frame) -> Frame:
    """The end is missing, perhaps all of it."""
    return frame[: dice.randrange(len(frame))]


def splice(dice: random.Random, frame: Frame, other: Frame) -> Frame:
    """The start of one message and the end of another."""
    return frame[: dice.randrange(len(frame))] + other[dice.randrange(len(other)) :]


def repeat(dice: random.Random, frame: Frame, _: Frame) -> Frame:
    """A part of it comes many times, at most 20,000 bytes."""
    start = dice.randrange(len(frame))
    part = frame[start : start + dice.randint(1, 16)]
    return (frame[:start] + part * dice.choice((2, 10, 1000)) + frame[start:])[:20_000]


def nest(dice: random.Random, frame: Frame, _: Frame) -> Frame:
    """Lists in lists in lists, where a value was."""
    start = dice.randrange(len(frame))
    return frame[:start] + dice.choice((b"\x91", b"\x81\xa1a")) * dice.choice((10, 1000, 5000)) + frame[start:]


def noise(dice: random.Random, _: Frame, __: Frame) -> Frame:
    """No message at all."""
    return dice.randbytes(dice.randrange(200))


def change_fields(dice: random.Random, frame: Frame, other: Frame) -> Frame:
    """A sound message whose fields are nasty, missing, too many or another's."""
    fields = dict(msgspec.msgpack.decode(frame))
    for _ in range(dice.randint(1, 3)):
        name = dice.choice(list(fields))
        match dice.randrange(6):
            case 0:
                del fields[name]
            case 1:
                fields[dice.choice(("colour", "", "type", "sizes"))] = dice.choice(NASTY)
            case 2:
                fields["type"] = dice.choice(TYPES)
            case 3:
                fields |= msgspec.msgpack.decode(other)
            case _:
                fields[name] = dice.choice(NASTY)
        if not fields:
            break
    return msgspec.msgpack.encode(fields)


BROKEN: Sequence[Mutation] = (flip_bits, set_marks, cut, splice, repeat, nest, noise)
"""For any bytes."""
MUTATIONS: Sequence[Mutation] = (*BROKEN, change_fields, change_fields, change_fields, change_fields)
"""For messages."""


def mutated(dice: random.Random, frame: Frame, other: Frame) -> Frame:
    """One mutation of a message, which may take parts of another."""
    return dice.choice(MUTATIONS)(dice, frame, other)
