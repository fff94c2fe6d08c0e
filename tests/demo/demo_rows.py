"""Rows of a run that never took place."""

from lbbsp.demo.records import COMPARE, EQUAL, FIXED, LBBSP, Row

SIZES = {EQUAL: (128, 128), LBBSP: (160, 96), FIXED: (170, 86)}


def row(rank=0, **given):
    values = {
        "phase": COMPARE,
        "mode": EQUAL,
        "block": 0,
        "iteration": 0,
        "samples": 128,
        "iteration_s": 0.1,
        "own_s": 0.06,
        "wait_s": 0.04,
        "draw_s": 0.001,
        "loss": 1.0,
    }
    return Row(**(values | given))


def run(iteration_s, blocks=3, iterations=5):
    """Rows of two ranks: blocks of each mode in turn, with these iteration times."""
    ranks = ([], [])
    for number in range(blocks):
        for place, mode in enumerate(SIZES):
            for step in range(iterations):
                for rank, rows in enumerate(ranks):
                    rows.append(
                        row(
                            mode=mode,
                            block=number * len(SIZES) + place,
                            iteration=number * iterations + step,
                            samples=SIZES[mode][rank],
                            settling=step == 0,
                            iteration_s=9.0 if step == 0 else iteration_s[mode],
                            wait_s=0.01 * (rank + 1),
                            loss=1.0 + rank,
                            lag=1 + (step == 1) if mode == LBBSP else 0,
                        )
                    )
    return list(ranks)
