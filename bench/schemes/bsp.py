"""Bulk synchronous: equal shares, everybody waits for everybody."""

from bench.schemes.barrier import Barrier


class Bsp(Barrier):
    """Equal shares."""

    def sizes(self) -> list[int]:
        """The equal split."""
        return self.world.setup.shares()
