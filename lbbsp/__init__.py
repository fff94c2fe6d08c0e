"""lbbsp: batch sizes that let unequal workers reach the barrier together (LB-BSP, SoCC 2020)."""

__version__ = "0.1.0"
__all__ = ["__version__"]
