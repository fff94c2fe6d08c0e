"""What a sizing core has learnt, as plain values and arrays, and back into a fresh one made alike.

`told` walks through our own objects; `take` puts values back part by part, each part wholly or, where names, classes
or shapes differ (another predictor, another version), not at all. Knows nothing of files or of what the values mean.
A class with `kept = False` is left out: too large, or soon learnt again. No code is ever loaded, only data.
"""

import dataclasses
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from lbbsp.predictors.base import Base

CLASS = "class"
"""Under this name an object's values say what it is."""
PLAIN = (bool, int, float, str)

State = dict[str, Any]


class MismatchError(Exception):
    """The values were told by something made otherwise."""


class _Left:
    """Stands for a value that is not told."""


_LEFT = _Left()


def told(thing: object, without: frozenset[str] = frozenset()) -> State:
    """The values of an object of ours: numbers, text, arrays, lists, and dicts for objects inside it.

    Arrays are not copied. What is neither (callables, threads, dicts, random generators) is left out.
    """
    values = {name: _value(value) for name, value in vars(thing).items() if name not in without}
    return {CLASS: type(thing).__name__} | {name: value for name, value in values.items() if value is not _LEFT}


def take(thing: object, state: State) -> list[str]:
    """Put back what `told` told into an object made alike; the names of the parts that did not fit."""
    left = []
    for name, saved in state.items():
        if name == CLASS or not hasattr(thing, name):
            continue
        changes: list[tuple[object, str, Any]] = []
        try:
            changes.append((thing, name, _back(getattr(thing, name), saved, changes)))
        except MismatchError:
            left.append(name)
            continue
        for owner, attribute, value in changes:
            setattr(owner, attribute, value)
    return left


def take_ranks(thing: object, state: object, here: npt.NDArray[np.intp], there: npt.NDArray[np.intp]) -> None:
    """Put back the arrays whose last axis is ranks, for some ranks: those `there`, when it was told, are now `here`.

    What does not fit (another shape or type, a rank that was not there) is passed over.
    """
    for name, saved in state.items() if isinstance(state, dict) else ():
        fresh = getattr(thing, str(name), None)
        if not (isinstance(fresh, np.ndarray) and isinstance(saved, np.ndarray) and saved.dtype == fresh.dtype):
            continue
        fits = saved.ndim and saved.shape[:-1] == fresh.shape[:-1] and there.max(initial=-1) < saved.shape[-1]
        if fits:
            fresh[..., here] = saved[..., there]


def _value(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "fiub" else _LEFT
    if isinstance(value, tuple | list | deque):
        inside = [_value(one) for one in value]
        return _LEFT if any(one is _LEFT for one in inside) else inside
    return told(value) if _ours(value) else _LEFT


def _ours(value: object) -> bool:
    ours = type(value).__module__.startswith("lbbsp.") or isinstance(value, Base)
    return ours and hasattr(value, "__dict__") and getattr(value, "kept", True)


def _back(fresh: Any, saved: Any, changes: list[tuple[object, str, Any]]) -> Any:
    """The saved value as the fresh one has it; changes inside objects are noted, not made.

    Raises:
        MismatchError: it is of another kind or shape.
    """
    if isinstance(saved, dict):
        return _object(fresh, saved, changes)
    if fresh is None:
        return _plain(saved)
    if isinstance(fresh, np.ndarray):
        return _array(fresh, saved)
    if isinstance(fresh, deque):
        _wanted(isinstance(saved, list))
        return deque(map(_plain, saved), maxlen=fresh.maxlen)
    if isinstance(fresh, tuple | list):
        _wanted(isinstance(saved, list) and len(saved) == len(fresh))
        return type(fresh)(_back(one, other, changes) for one, other in zip(fresh, saved, strict=True))
    _wanted(type(saved) is type(fresh) or (isinstance(fresh, float) and type(saved) is int))
    return type(fresh)(saved)


def _object(fresh: Any, saved: State, changes: list[tuple[object, str, Any]]) -> Any:
    made_of = saved.get(CLASS)
    _wanted(isinstance(made_of, str) and type(fresh).__name__ == made_of)
    values = {name: value for name, value in saved.items() if name != CLASS}
    _wanted(all(hasattr(fresh, name) for name in values))
    if dataclasses.is_dataclass(fresh) and not isinstance(fresh, type):
        new = {name: _back(getattr(fresh, name), value, changes) for name, value in values.items()}
        return dataclasses.replace(fresh, **new)
    for name, value in values.items():
        changes.append((fresh, name, _back(getattr(fresh, name), value, changes)))
    return fresh


def _array(fresh: Any, saved: Any) -> Any:
    _wanted(isinstance(saved, np.ndarray) and saved.shape == fresh.shape and saved.dtype == fresh.dtype)
    return saved.copy()


def _plain(saved: Any) -> Any:
    if isinstance(saved, np.ndarray):
        return saved.copy()
    if isinstance(saved, list):
        return tuple(map(_plain, saved))
    _wanted(not isinstance(saved, dict))
    return saved


def _wanted(condition: bool) -> None:
    if not condition:
        raise MismatchError
