"""PyTorch: two lines make a DistributedDataParallel loop balance its batch sizes.

from lbbsp.adapters.pytorch import balance
model, loader = balance(model, loader)
"""

from lbbsp.adapters.pytorch.balance import balance
from lbbsp.adapters.pytorch.balancer import Balancer
from lbbsp.adapters.pytorch.loader import BalancedLoader

__all__ = ["BalancedLoader", "Balancer", "balance"]
