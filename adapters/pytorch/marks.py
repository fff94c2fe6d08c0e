"""Own time on CUDA: events on the current stream, polled, never synchronised. Seconds."""

import torch


class CudaMarks:
    """Stamps are CUDA events on the stream that is current when they are made.

    Args:
        device: the rank's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stamp(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        """Seconds between two events; None while the device has not passed the later one."""
        if not (start.query() and end.query()):  # type: ignore[no-untyped-call]
            return None
        return float(start.elapsed_time(end)) / 1e3
