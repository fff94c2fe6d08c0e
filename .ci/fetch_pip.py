"""fetch_pip.py FOLDER: put pip's wheel into FOLDER, for a Python that has neither ensurepip nor pip.

Takes the index of PIP_INDEX_URL, else PyPI, and checks the file against the hash that the index gives.
"""

import hashlib
import os
import re
import sys
from pathlib import Path
from urllib.parse import urldefrag, urljoin
from urllib.request import urlopen

VERSION = "25.3"


def main(folder: Path) -> None:
    """Find the wheel in the index's list, download it, check it."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    with urlopen(index, timeout=30) as answer:
        links = re.findall(r'href="([^"]+)"', answer.read().decode())
    link = next(link for link in links if f"pip-{VERSION}-py3-none-any.whl#sha256=" in link)
    address, wanted = urldefrag(urljoin(index, link))
    with urlopen(address, timeout=60) as answer:
        wheel = answer.read()
    if hashlib.sha256(wheel).hexdigest() != wanted.removeprefix("sha256="):
        sys.exit(f"fetch_pip.py: {address} is not what the index says it is")
    (folder / address.rpartition("/")[2]).write_bytes(wheel)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (OSError, StopIteration) as error:
        sys.exit(f"fetch_pip.py: {error!r}")
