"""Keeps the host at most one micro-batch ahead of its device, so that claims follow the device's speed."""

import torch


class Pace:
    """Called before each micro-batch.

    Args:
        device: the rank's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: torch.cuda.Event | None = None
        self.at_once = device.type == "cpu"
        """Whether work is done when its call returns."""

    def __call__(self) -> None:
        """Wait until the device has begun the newest micro-batch; at once on CPUs."""
        if self._device.type != "cuda":
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        if self._before is not None:
            self._before.synchronize()
        self._before = event
