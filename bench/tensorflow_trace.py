"""Own time as the TensorFlow adapter reports it, against a trace of TensorFlow's own profiler.

Two processes of a MultiWorkerMirroredStrategy, a core each; the last rank sleeps before each step, so that the others
wait for it. Own time by the trace: from the end of one CollectiveReduce to the end of the last gradient's kernel before
the next, less the draw (where the plan is waited for) or with all of it (where samples are read): the difference is to
the farther of the two. Prints one table; milliseconds, medians over the iterations.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lbbsp.demo import digits, tensorflow_job
from lbbsp.demo.records import WORKERS, Settings

WARM_UP = 8
REDUCTION, GRADIENT, DRAW, STEP = "CollectiveReduceV2:", "gradient_tape/", "the draw", "the step "


class Span(NamedTuple):
    """An event of the trace, in seconds."""

    name: str
    start_s: float
    end_s: float


class Options(NamedTuple):
    """What the ranks are told."""

    global_batch: int = 256
    iterations: int = 40
    sleep_ms: float = 20.0
    seed: int = 1


def process(rank: int, workers: list[str], options: Options, folder: Path) -> None:
    """One rank's process; writes what it found."""
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    os.environ |= tensorflow_job.QUIET | {"TF_CONFIG": json.dumps(config)}
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    (folder / f"rank{rank}.json").write_text(json.dumps(traced(rank, options, folder)))


def traced(rank: int, options: Options, folder: Path) -> dict[str, float]:
    """Train under the profiler; both own times."""
    import tensorflow as tf

    from lbbsp.demo.tensorflow_lanes import BalancedLane, dataset

    settings = Settings(seed=options.seed, global_batch=options.global_batch)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    lane = BalancedLane(strategy, settings, dataset(folder / "digits.npz", settings))
    trace = tf.profiler.experimental.Trace
    lane.batches = _annotated(lane.batches, trace)
    reported_s = []
    for number in range(WARM_UP + options.iterations + 1):
        if number == WARM_UP:
            levels = tf.profiler.experimental.ProfilerOptions(
                host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
            )
            tf.profiler.experimental.start(str(folder / f"rank{rank}"), options=levels)
        if rank == WORKERS - 1:
            time.sleep(options.sleep_ms / 1e3)
        before_s = lane.dataset.follower.totals.own_time_s
        with trace(f"{STEP}{number}"):
            lane.iterate()
        reported_s.append(lane.dataset.follower.totals.own_time_s - before_s)
    tf.profiler.experimental.stop()
    lane.dataset.close()
    found = own_times_s(events(folder / f"rank{rank}"))
    if len(found) < options.iterations // 2:
        sys.exit(f"rank {rank}: {options.iterations} iterations, and {len(found)} of them in the trace")
    return compared([reported_s[number] for number in found], list(found.values()))


def _annotated(batches: Iterator[Any], trace: Any) -> Iterator[Any]:
    """The batches, each draw an event of the trace."""
    while True:
        with trace(DRAW):
            batch = next(batches)
        yield batch


def events(folder: Path) -> list[Span]:
    """All events of the host in a profile."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(next(folder.rglob("*.xplane.pb")).read_bytes())
    return [
        Span(
            plane.event_metadata[event.metadata_id].name,
            line.timestamp_ns / 1e9 + event.offset_ps / 1e12,
            line.timestamp_ns / 1e9 + (event.offset_ps + event.duration_ps) / 1e12,
        )
        for plane in space.planes
        if plane.name == "/host:CPU"
        for line in plane.lines
        for event in line.events
    ]


def own_times_s(spans: list[Span]) -> dict[int, tuple[float, float]]:
    """Own time by iteration, without and with the draw; the profiler loses a reduction now and then."""
    steps = {int(span.name.removeprefix(STEP)): span for span in spans if span.name.startswith(STEP)}
    reductions = {
        number: span
        for number, step in steps.items()
        for span in spans
        if span.name.startswith(REDUCTION) and step.start_s <= span.start_s <= step.end_s
    }
    times_s = {}
    for number, after in reductions.items():
        before = reductions.get(number - 1)
        if before is not None:
            inside = [span for span in spans if before.end_s <= span.start_s <= after.start_s]
            last_s = max(span.end_s for span in inside if span.name.startswith(GRADIENT))
            draw_s = sum(span.end_s - span.start_s for span in inside if span.name == DRAW)
            times_s[number] = (last_s - before.end_s - draw_s, last_s - before.end_s)
    return times_s


def compared(reported_s: list[float], traced_s: list[tuple[float, float]]) -> dict[str, float]:
    """Medians, and the difference to the farther of the trace's two times."""
    without_s, with_s = (statistics.median(pair[place] for pair in traced_s) for place in (0, 1))
    shares = [
        max(abs(own_s / other_s - 1.0) for other_s in pair) for own_s, pair in zip(reported_s, traced_s, strict=True)
    ]
    return {
        "reported_ms": 1e3 * statistics.median(reported_s),
        "trace_ms": 1e3 * without_s,
        "trace_with_draw_ms": 1e3 * with_s,
        "difference": statistics.median(shares),
        "largest_difference": max(shares),
    }


def main() -> None:
    """Start the ranks, print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    usual = Options()
    parser.add_argument("--global-batch", type=int, default=usual.global_batch)
    parser.add_argument("--iterations", type=int, default=usual.iterations, help="that are traced")
    parser.add_argument("--sleep-ms", type=float, default=usual.sleep_ms, help="before each step of the last rank")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    options = Options(given.global_batch, given.iterations, given.sleep_ms, given.seed)
    context = multiprocessing.get_context("spawn")
    workers = tensorflow_job.addresses(WORKERS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        digits.save(folder / "digits.npz")
        ranks = [context.Process(target=process, args=(rank, workers, options, folder)) for rank in range(WORKERS)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        if any(one.exitcode for one in ranks):
            sys.exit(1)
        found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(WORKERS)]
    print(f"seed {options.seed}, global batch {options.global_batch}, {options.iterations} iterations; ms of own time")
    for rank, row in enumerate(found):
        print(
            f"rank {rank}: reported {row['reported_ms']:6.2f}, trace {row['trace_ms']:6.2f} without the draw, "
            f"{row['trace_with_draw_ms']:6.2f} with it; difference {row['difference']:.1%} in the median iteration, "
            f"{row['largest_difference']:.1%} at most"
        )
    if given.json:
        given.json.write_text(json.dumps({"seed": options.seed, "ranks": found}, indent=1))


if __name__ == "__main__":
    main()
