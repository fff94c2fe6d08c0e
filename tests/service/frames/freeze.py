"""Prints one job's frames, both ways, as JSON; run it once at a release and keep what it prints.

python tests/service/frames/freeze.py lbbsp.protocol > tests/service/frames/NAME.json
"""

import importlib
import json
import sys

import msgspec

IDS = {"job": "frozen", "incarnation": "first"}
ITERATIONS = 12


def frames(module: str) -> dict[str, list[dict[str, object]]]:
    protocol = importlib.import_module(module)
    to_manager = [
        protocol.Hello(
            **IDS, rank=rank, world_size=2, global_batch=90, min_samples=1, max_samples=90, machine=f"m{rank}",
            device="cpu", lookahead=0, sensors=("running", "memory_share"),
        ) for rank in range(2)
    ]  # fmt: skip
    to_manager += [
        protocol.Report(
            **IDS, rank=rank, iteration=iteration, samples=45, own_time_s=0.045 / (1 + rank), draws=1, wait_s=0.01,
            input_s=0.001, settled=iteration > 0, sensors=(1.0 + rank, 0.5),
        ) for iteration in range(ITERATIONS) for rank in range(2)
    ]  # fmt: skip
    to_manager += [protocol.Bye(**IDS, rank=rank) for rank in range(2)]
    to_worker = [
        protocol.Welcome(**IDS, rank=0),
        protocol.Refused(**IDS, reason="global_batch disagrees"),
        protocol.Unknown(**IDS),
        protocol.Plan(**IDS, version=1, based_on_iteration=0, sizes=(30, 60)),
    ]
    if hasattr(protocol, "Look"):
        to_manager.insert(-2, protocol.Look(job="frozen", first=0, most=8))
        to_worker.append(protocol.Seen(jobs=("frozen",), job="frozen", world_size=2, sizes=(30, 60), iteration=3))
    return {
        way: [{"says": msgspec.to_builtins(one), "frame": protocol.encode(one).hex()} for one in messages]
        for way, messages in (("to_manager", to_manager), ("to_worker", to_worker))
    }


if __name__ == "__main__":
    json.dump(frames(sys.argv[1]), sys.stdout, indent=0, default=str)
