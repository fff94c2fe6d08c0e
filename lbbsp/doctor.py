"""`lbbsp doctor`."""


def command() -> None:
    """Check what a job needs here."""
