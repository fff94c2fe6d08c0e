"""Recompilations of a statically compiled model on CPU, with the sizes of `adaptive` and of `menu` (few sizes).

One rank of a simulated job (bench/devices.py) runs each size that the rule gives it through torch.compile with
dynamic=False; graphs compiled are counted by torch's own counter. Loss: time over the optimum, without compiling.
"""

import argparse
import json
import sys

import numpy as np
import torch
from devices import GLOBAL_BATCH, bounds, cards

from lbbsp.core.rules import RULES, make


def main() -> None:
    """Measure, print one table, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    print(f"# python bench/recompiles.py {' '.join(sys.argv[1:])}   (seed {options.seed}, rank 0 of 4)")
    table = {name: count(name, options) for name in ("adaptive", "menu") if name in RULES}
    for name, row in table.items():
        sizes, loss = f"distinct sizes {row['sizes']:>4.0f}", f"loss {row['loss_pct']:.2f} %"
        print(f"{name:<10} graphs {row['graphs']:>4.0f}   {sizes}   {loss}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(table, out)


def count(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Graphs compiled over the iterations."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = options.iterations
    torch._dynamo.utils.counters.clear()
    model = torch.compile(torch.nn.Linear(4, 4), backend="eager", dynamic=False)
    cluster, rule = cards(options.model, options.seed), make(name, 4, GLOBAL_BATCH)
    limits, sizes, seen, over = bounds(cluster.limit), bounds(cluster.limit).equal(), set(), []
    for k in range(options.iterations):
        model(torch.zeros(int(sizes[0]), 4))
        seen.add(int(sizes[0]))
        over.append(float(cluster.curves(k).time_s(sizes).max()) / cluster.best_s(k))
        sizes = rule.propose(sizes.astype(float), cluster.own_s(k, sizes), limits)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {"graphs": float(graphs), "sizes": float(len(seen)), "loss_pct": 100 * (float(np.mean(over[20:])) - 1)}


if __name__ == "__main__":
    main()
