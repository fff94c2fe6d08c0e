"""One rank of the demo under TensorFlow: `python -m lbbsp.demo.tensorflow_worker FOLDER`, with TF_CONFIG set.

Makes the copies of the model; blocks.py runs them. Pins itself before TensorFlow counts the cores.
"""

import json
import os
import sys
from pathlib import Path

from lbbsp.demo import blocks, records
from lbbsp.demo.records import EQUAL, FIXED


def main(folder: Path) -> None:
    """Join the job, wait for the go, train."""
    rank = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    settings = records.load_settings(folder)
    if settings.cores is not None:
        os.sched_setaffinity(0, {settings.cores[rank]})
    import tensorflow as tf

    from lbbsp.adapters.tensorflow.cluster import place
    from lbbsp.adapters.tensorflow.control import Control
    from lbbsp.demo.tensorflow_lanes import BalancedLane, ForcedLane, Lane, dataset

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    control = Control(strategy, place(strategy))
    data = dataset(folder / "digits.npz", settings)
    equal, fixed = (ForcedLane(name, strategy, settings, data, rank) for name in (EQUAL, FIXED))
    balanced = BalancedLane(strategy, settings, data)

    def agreed(values: list[float]) -> list[float]:
        chosen: list[float] = control.gather(values)[0]
        return chosen

    with records.rows_file(folder, rank).open("w", buffering=1) as file:
        blocks.wait_for_go(folder, rank)
        runner: blocks.Blocks[Lane] = blocks.Blocks(file, Lane.iterate, lambda: control.sum(0))
        blocks.train(runner, equal, balanced, fixed, fixed.force, settings, agreed)
        control.sum(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
