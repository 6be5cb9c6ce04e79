"""Precompiled headers, each in a folder for what it was made of.

NVRTC takes those that it finds in a folder for the headers that it would read, also where these
have changed since: in memory always, and files if they have changed within a second.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ...host._disk_cache import base_folder, is_safe

if TYPE_CHECKING:
    from ..wire._messages import Compile

_AUTOMATIC: Final = re.compile(r"--?pch")
_FOLDER: Final = re.compile(r"--?pch-dir\s*=\s*(.+)")


def with_own_folder(message: Compile, included: bytes | None) -> Compile:
    """Have a compilation use precompiled headers of exactly what it includes.

    Args:
        message: what is compiled.
        included: a hash of what it may include beside headers in memory; where that is not
            known, no headers are kept.
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
