"""What became of a job in chaos, along the path of its final weights: the steps that no restart has undone.

Reads the lines of chaos_job.py and trains the same model in one process, fed whole global batches. Samples.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from chaos_job import RATE, Program, Table, flat, loss_of, network

RANKS = 2
TOLERANCE = 1e-9


@dataclass
class Life:
    """One start of one rank."""

    restart: int
    rank: int
    pid: int
    begun: int | None = None
    incarnation: str = ""
    draws: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """By step and draw within it."""
    gradients: dict[int, list[float]] = field(default_factory=dict)
    weights: list[float] | None = None
    first_s: float = float("inf")

    def take(self, row: dict[str, Any]) -> None:
        """One of its lines."""
        if "begun" in row:
            self.begun, self.incarnation, self.first_s = row["begun"], row["incarnation"], row["at_s"]
        elif "sizes" in row:
            self.draws[row["step"], row["draw"]] = row | {"indices": []}
        elif "indices" in row:
            self.draws[row["step"], row["draw"]]["indices"] += row["indices"]
        elif "gradient" in row:
            self.gradients[row["step"]] = row["gradient"]
        else:
            self.weights = row["weights"]


def lives(folder: Path) -> list[Life]:
    """All that wrote, in order of restart and rank."""
    found = []
    for path in folder.glob("*-*-*"):
        life = Life(*map(int, path.name.split("-")))
        for line in path.read_text().splitlines():
            life.take(json.loads(line))
        found.append(life)
    return sorted(found, key=lambda life: (life.restart, life.rank))


def path_of(found: list[Life]) -> list[int]:
    """Of each step the restart whose step it is in the final weights."""
    path: list[int] = []
    for life in found:
        if life.rank == 0 and life.begun is not None:
            del path[life.begun :]
            path += [life.restart] * (1 + max((step for step in life.gradients), default=-1) - len(path))
    return path


def expected(program: Program) -> Iterator[tuple[int, list[int]]]:
    """Epoch and samples of each draw of the job."""
    for draw in range(program.steps * program.draws):
        epoch, within = divmod(draw, program.draws_of_epoch)
        order = program.order(epoch)
        yield epoch, order[within * program.global_batch : (within + 1) * program.global_batch]


def judge(program: Program, found: list[Life]) -> Counter[str]:
    """lost, repeated, unequal_plans, wrong_gradients, iterations, plan_changes."""
    counts: Counter[str] = Counter(dict.fromkeys(("lost", "repeated", "unequal_plans", "wrong_gradients"), 0))
    by_place = {(life.restart, life.rank): life for life in found}
    path = path_of(found)
    counts["iterations"] = len(path)
    counts["wrong_gradients"] += abs(program.steps - len(path))
    single = Single(program)
    due = expected(program)
    before: list[int] = []
    seen: dict[int, Counter[int]] = {}
    for step in range(program.steps):
        there = [by_place.get((path[step] if step < len(path) else -1, rank)) for rank in range(RANKS)]
        batches = []
        for draw in range(program.draws):
            epoch, samples = next(due)
            rows = [life.draws.get((step, draw)) if life else None for life in there]
            taken = [index for row in rows if row for index in row["indices"]]
            counts["lost"] += len(set(samples) - set(taken))
            seen.setdefault(epoch, Counter()).update(taken)
            counts["unequal_plans"] += not alike(rows, program, len(samples))
            counts["plan_changes"] += bool(rows[0] and before and rows[0]["sizes"] != before)
            before = rows[0]["sizes"] if rows[0] else before
            batches.append(samples)
        counts["wrong_gradients"] += not single.agrees(batches, [life and life.gradients.get(step) for life in there])
    counts["repeated"] = sum(times - 1 for epoch in seen.values() for times in epoch.values())
    ends = [life.weights for life in found if life.weights is not None]
    counts["wrong_gradients"] += len(ends) != RANKS or not all(close(flat(single.parameters), one) for one in ends)
    return counts


def alike(rows: list[dict[str, Any] | None], program: Program, there: int) -> bool:
    """Whether all ranks were there with one plan that gives out the whole batch.

    Where they claim, and at an epoch's end, where the batch is short, they may take other parts than planned.
    """
    if any(row is None for row in rows):
        return False
    plans = [row["sizes"] for row in rows if row]
    taken = [len(row["indices"]) for row in rows if row]
    planned = plans[0] == plans[1] and sum(plans[0]) == program.global_batch and sum(taken) == there
    return planned and (program.claims or there < program.global_batch or taken == plans[0])


class Single:
    """The job in one process."""

    def __init__(self, program: Program) -> None:
        self._program, self._data = program, Table(program)
        self._model = network(program)
        self.parameters = list(self._model.parameters())
        self._optimizer = torch.optim.SGD(self.parameters, lr=RATE, momentum=0.9)

    def agrees(self, batches: list[list[int]], theirs: list[list[float] | None]) -> bool:
        """Take a step; whether ranks saw its gradient. One that was killed before it could tell is not asked."""
        self._optimizer.zero_grad()
        for batch in batches:
            loss = loss_of(self._model(self._data.inputs[batch]), self._data.targets[batch])
            (loss / self._program.draws).backward()
        mine = flat(one.grad for one in self.parameters)
        self._optimizer.step()
        told = [one for one in theirs if one is not None]
        return theirs[0] is not None and all(close(mine, one) for one in told)


def close(mine: list[float], theirs: list[float]) -> bool:
    """To 1e-9 of the largest."""
    a, b = torch.tensor(mine, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64)
    return bool((a - b).abs().max() <= TOLERANCE * max(1.0, float(a.abs().max())))
