"""The CPU as a device, with the same promises as a GPU."""


def why_absent() -> None:
    """There is always a CPU."""
