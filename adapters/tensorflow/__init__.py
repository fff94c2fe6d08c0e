"""TensorFlow 2: two lines make a MultiWorkerMirroredStrategy loop balance its batch sizes.

from lbbsp.adapters.tensorflow import balance
dataset, optimizer = balance(dataset, optimizer, strategy)
"""

from lbbsp.adapters.tensorflow.balance import balance
from lbbsp.adapters.tensorflow.dataset import BalancedDataset

__all__ = ["BalancedDataset", "balance"]
