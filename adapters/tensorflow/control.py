"""The ranks of a MultiWorkerMirroredStrategy as a Group: gathers by TensorFlow's collectives, plans over TCP.

The plan's broadcast is not a TensorFlow collective. One inside the step would make every plan an iteration staler (lag
2), one of its own at the draw is a second barrier (2 ms), and neither can be sent while gradients travel, since
TensorFlow runs collectives in program order. A TCP connection from rank 0 to each rank, whose address and one-time
token travel once by a collective, carries the same vector to all in order: lag 1, exact, and no rank waits for more
than the plan itself (rule 2 of the design).
"""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from lbbsp.adapters.tensorflow.cluster import Place
from lbbsp.worker.vector import IntArray, payload_length
from lbbsp.worker.wire import Hub, Spoke


class Control:
    """Gathers and broadcasts among the ranks of one strategy; all ranks must make one.

    Args:
        strategy: the job's.
        place: this process in it.
    """

    def __init__(self, strategy: Any, place: Place) -> None:
        self.rank, self.world_size = place.rank, place.world_size
        self._sum = _summing(strategy)
        self._hub: Hub | None = None
        self._spoke: Spoke | None = None
        self._host = place.chief_host

    def connect(self) -> None:
        """Connect rank 0 with each other; all ranks must call.

        Raises:
            OSError: a connection can't be made.
        """
        if self.rank == 0:
            self._hub = Hub(self._host)
        port, token = self.gather((self._hub.port, self._hub.token) if self._hub else None)[0]
        if self._hub is not None:
            self._hub.meet(self.world_size)
        else:
            self._spoke = Spoke(self._host, port, token, self.rank)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of rank; all ranks must call.

        Values travel as bytes within the job's own collective, whose peers run the same program.
        """
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        lengths = self._rows(np.array([len(data)], dtype=np.int32))[:, 0]
        padded = np.zeros(int(lengths.max()), dtype=np.int32)
        padded[: len(data)] = data
        rows = self._rows(padded)
        return [
            pickle.loads(row[:length].astype(np.uint8).tobytes()) for row, length in zip(rows, lengths, strict=True)
        ]

    def sum(self, values: Any) -> Any:
        """The sum over ranks of a number or an array of one shape; all ranks must call."""
        return self._sum(tf.convert_to_tensor(values))

    def send(self, payload: IntArray) -> None:
        """Rank 0: broadcast a plan's payload.

        Raises:
            tf.errors.UnavailableError: a rank is gone; TensorFlow's own name for it.
        """
        if self._hub is None:
            return
        try:
            self._hub.send(payload)
        except OSError as error:
            raise _gone("another rank", error) from error

    def receive(self) -> Callable[[], IntArray]:
        """Others: what is returned waits for the next payload; raises UnavailableError where rank 0 is gone."""
        if self._spoke is None:
            raise RuntimeError("connect() comes first")
        wait = self._spoke.receive(payload_length(self.world_size))

        def received() -> IntArray:
            try:
                return wait()
            except OSError as error:
                raise _gone("rank 0", error) from error

        return received

    def close(self) -> None:
        """Hang up."""
        for end in (self._hub, self._spoke):
            if end is not None:
                end.close()

    def _rows(self, mine: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Each rank's row, (ranks, entries)."""
        rows = np.zeros((self.world_size, len(mine)), dtype=np.int32)
        rows[self.rank] = mine
        return np.asarray(self._sum(tf.constant(rows)))


def _summing(strategy: Any) -> Callable[[Any], Any]:
    """A function that sums a tensor over the ranks."""

    def replica(values: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def total(values: Any) -> Any:
        return strategy.run(replica, args=(values,))

    def summed(values: Any) -> Any:
        return strategy.experimental_local_results(total(values))[0]

    return summed


def _gone(who: str, error: OSError) -> Exception:
    gone: Exception = tf.errors.UnavailableError(None, None, f"{who} of the job is gone ({error})")
    return gone
