"""Turns a closed recording into Parquet, in a process of its own; the CSV goes once that is there. Needs pyarrow.

`python -m lbbsp.service.record_parquet FILE.csv.gz`
"""

import logging
import os
import sys
from pathlib import Path

from lbbsp.service.record_files import parquet_of

log = logging.getLogger("lbbsp.recording")


def convert(path: Path) -> Path:
    """The Parquet file made of a recording.

    Raises:
        ImportError: pyarrow is not installed.
        OSError, ValueError: the file can't be read or written.
    """
    from pyarrow import csv, parquet

    target = parquet_of(path)
    making = target.with_name(target.name + ".part")
    parquet.write_table(csv.read_csv(path), making)
    making.replace(target)
    path.unlink()
    return target


def main() -> None:
    """Convert the file named on the command line, at the lowest priority."""
    os.nice(19)
    path = Path(sys.argv[1])
    try:
        convert(path)
    except ImportError:
        log.warning("%s stays CSV: Parquet needs pyarrow: pip install 'lbbsp[parquet]'", path.name)
    except (OSError, ValueError) as error:
        log.warning("%s stays CSV: %s", path.name, error)


if __name__ == "__main__":
    main()
