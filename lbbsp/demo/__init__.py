"""The demo: real training on two unequal workers, with equal sizes, with LB-BSP and with the best fixed split."""
