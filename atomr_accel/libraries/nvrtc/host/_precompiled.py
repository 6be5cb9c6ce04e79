"""Precompiled headers, with a separate folder for each content of the headers.

NVRTC uses precompiled headers of a folder even if the headers have changed since. It misses all
changes of headers in memory, and changes of files within a second.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ....executors.disk_cache import base_folder, is_safe

if TYPE_CHECKING:
    from ..wire.messages import Compile

_AUTOMATIC: Final = re.compile(r"--?pch")
_FOLDER: Final = re.compile(r"--?pch-dir\s*=\s*(.+)")


def with_own_folder(message: Compile, included: bytes | None) -> Compile:
    """Let a compilation use only precompiled headers with the contents that it includes.

    Args:
        message: the compilation.
        included: a hash of the files that it may include besides headers in memory. None if that
            is unknown: then precompiled headers are not used.
    """
    options = [option.strip() for option in message.options]
    if not any(map(_AUTOMATIC.fullmatch, options)):
        return message
    named = [found[1] for found in map(_FOLDER.fullmatch, options) if found is not None]
    base = Path(named[-1]) if named else base_folder(os.environ)
    rest = tuple(
        option
        for option in options
        if not (_AUTOMATIC.fullmatch(option) or _FOLDER.fullmatch(option))
    )
    if included is not None and base is not None:
        held = hashlib.sha256(msgspec.msgpack.encode((message.headers, included)))
        folder = base / "pch" / held.hexdigest()[:24]
        with suppress(OSError):  # on a full disk nothing is kept, and nothing fails
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if named or is_safe(folder.parent):
                folder.mkdir(exist_ok=True, mode=0o700)
                rest = (*rest, "--pch", f"--pch-dir={folder}")
    return msgspec.structs.replace(message, options=rest)
