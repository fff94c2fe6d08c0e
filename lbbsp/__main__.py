"""`python -m lbbsp` is `lbbsp`."""

from lbbsp.cli import main

if __name__ == "__main__":
    main()
