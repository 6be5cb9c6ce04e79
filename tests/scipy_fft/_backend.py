"""A uarray backend of ``scipy.fft`` over ``device.fft``."""

from __future__ import annotations

import atexit
import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

import numpy as np

from ..harness import Shared

_NOT_OURS: Final = ("overwrite_x", "workers", "plan")
"""Arguments about memory and threads of SciPy's own transforms, which change no result."""


@cache
def _shared() -> Shared:
    shared = Shared(isolation="process")
    atexit.register(shared.close)
    return shared


class DeviceBackend:
    """The backend for ``scipy.fft.set_global_backend``."""

    __ua_domain__: Final = "numpy.scipy.fft"

    @staticmethod
    def __ua_function__(
        method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if not hasattr(_shared().device.fft, method.__name__):
            return NotImplemented
        bound = inspect.signature(method).bind(*args, **kwargs).arguments
        options = {name: value for name, value in bound.items() if name not in _NOT_OURS}
        x = np.asarray(options.pop("x"))
        return _shared().run(partial(_called, method.__name__, x, options))


async def _called(name: str, x: Any, options: dict[str, Any]) -> Any:
    device = _shared().device
    ref = await device.put(x)
    return await device.get(await getattr(device.fft, name)(ref, **options))
