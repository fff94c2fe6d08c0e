"""How an iteration is cut where ranks claim: planned parts first, then chunks of a pool that the rest makes.

Pure arithmetic, alike on all ranks. Sizes in samples; a unit is the least that may be worked at once.
"""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

WHOLE_PPM = 1_000_000
"""Planned share, in millionths, that leaves nothing to claim."""
FACTOR = 0.6
"""Best of 0.3 to 0.7 in simulation (bench/schemes/claims_scale.py) where each rank looks what is left before it claims:
as even as less, with fewer claims; larger first chunks outlast bursts that begin."""


def planned_parts(sizes: IntArray, beta_ppm: int, unit: int, menu: bool = False) -> IntArray:
    """What each rank works without asking, (ranks,): beta of its size, at least a unit; the rest is the pool.

    Args:
        sizes: (ranks,) of the plan, for this iteration.
        beta_ppm: planned share in millionths.
        unit: samples; parts are multiples of it.
        menu: parts from a small menu of sizes, for compiled shapes.

    Returns:
        The parts; the sizes themselves where the pool would be empty or smaller than a unit.
    """
    total = int(sizes.sum())
    unit = fitting(unit, total, len(sizes))
    if beta_ppm >= WHOLE_PPM:
        return sizes
    units = np.maximum(sizes * max(0, beta_ppm) // WHOLE_PPM // unit, 1)
    parts = np.asarray((on_menu(units) if menu else units) * unit, dtype=np.int64)
    return parts if total - int(parts.sum()) >= unit else sizes


def fitting(unit: int, total: int, ranks: int) -> int:
    """The unit of an iteration of so many samples: 1 in a short one, where minima don't bind."""
    return unit if total >= unit * ranks else 1


def grain(unit: int, chunk: int) -> int:
    """The unit times the largest power of two with which two grains still fit into the least chunk."""
    times = chunk // (2 * unit)
    return unit * (1 << (times.bit_length() - 1)) if times else unit


def on_menu(units: IntArray) -> IntArray:
    """The largest of 1, 2, 3, 4, 6, 8, 12, 16 ... up to each number."""
    power = 1 << (np.frexp(units.astype(np.float64))[1] - 1).astype(np.int64)
    half_more = power + power // 2
    return np.asarray(np.where(half_more <= units, half_more, power), dtype=np.int64)


def chunk_units(left_units: int, share: float, least_units: int, most_units: int, menu: bool = False) -> int:
    """A rank's next chunk of what is left: FACTOR of its fair part (factoring: Hummel, Schonberg and Flynn 1992).

    Args:
        left_units: of the pool.
        share: the rank's part of the job's speed (weighted factoring: Hummel et al. 1996).
        least_units: smaller chunks cost more than they even out.
        most_units: what fits its memory.
        menu: of a small menu of sizes.
    """
    units = min(left_units, most_units, max(least_units, int(FACTOR * share * left_units), 1))
    return int(on_menu(np.array([units]))[0]) if menu else units
