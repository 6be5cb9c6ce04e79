"""Collections of garbage that other threads are in the middle of."""

from __future__ import annotations

import gc
import threading
import weakref

from atomr_accel.testing.garbage import collect_garbage


class Cycle:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


class Slow(Cycle):
    """A thing whose finalizer waits until the test releases it."""

    def __init__(self, begun: threading.Event, end: threading.Event) -> None:
        super().__init__()
        self.begun, self.end = begun, end

    def __del__(self) -> None:
        self.begun.set()
        self.end.wait()


def test_while_another_thread_collects() -> None:
    """``gc.collect`` does nothing meanwhile, which is why there is something of our own."""
    begun, end = threading.Event(), threading.Event()

    def elsewhere() -> None:
        Slow(begun, end)
        gc.collect()

    gc.disable()  # or it might be this thread that finds what is slow
    try:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        begun.wait()
        garbage = weakref.ref(Cycle())
        gc.collect()
        assert garbage() is not None
        end.set()
        collect_garbage()
        assert garbage() is None
        thread.join()
    finally:
        gc.enable()
    callbacks = len(gc.callbacks)
    collect_garbage()
    assert len(gc.callbacks) == callbacks
