"""All garbage collected, whatever other threads do."""

from __future__ import annotations

import gc
import threading


def collect_garbage() -> None:
    """Collect all garbage there is.

    ``gc.collect()`` does nothing where another thread is collecting, and a collection is left
    halfway when a finalizer in it loses the GIL. So this asks until it was done here.
    """
    here, done = threading.get_ident(), False

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal done
        done = done or (
            phase == "stop" and info["generation"] == 2 and threading.get_ident() == here
        )

    gc.callbacks.append(note)
    try:
        while not done:
            gc.collect()
    finally:
        gc.callbacks.remove(note)
