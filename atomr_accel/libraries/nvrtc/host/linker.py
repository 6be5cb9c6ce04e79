"""nvJitLink by cuda-bindings: parts in, one cubin out. Needs no GPU.

Without nvJitLink or cuda-bindings its functions raise `LibraryMissing`. Parts that do not link
raise `CompileError` with the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...._errors import CompileError, LibraryMissing, Unsupported
from ...._install import cuda_command

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS: Final = (
    (b"\x7fELF", "CUBIN"),
    (b"\xedCN\x7f", "LTOIR"),
    (b"\x50\xed\x55\xba", "FATBIN"),
    (b"!<arch>\n", "LIBRARY"),
)
"""Kinds of images, by their first bytes. All others are PTX."""


def kind_of(image: bytes) -> str:
    """Return nvJitLink's name for the kind of an image."""
    for magic, kind in _KINDS:
        if image.startswith(magic):
            return kind
    return "PTX"


def load_nvjitlink() -> Any:
    """cuda-bindings' nvJitLink module, with the library behind it loaded."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except (ImportError, RuntimeError) as error:
        raise LibraryMissing(
            f"the vendor library nvJitLink is not installed ({error}): {cuda_command()}",
            library="nvJitLink",
        ) from error
    return nvjitlink


def nvjitlink_version() -> tuple[int, ...]:
    """Its release."""
    return tuple(load_nvjitlink().version())


def link(parts: Sequence[tuple[str, bytes]], target: str) -> tuple[bytes, str]:
    """Link images for a device.

    Args:
        parts: images, each with its name in errors.
        target: the architecture, such as ``"sm_90"``.

    Returns:
        A cubin, and the linker's log.
    """
    if not target.startswith("sm_"):
        raise Unsupported(
            f"linking needs a release of NVRTC that knows the device ({target}); "
            "install a newer one, and a newer nvJitLink"
        )
    nvjitlink = load_nvjitlink()
    options = [f"-arch={target}"]
    if any(kind_of(image) == "LTOIR" for _, image in parts):
        options.append("-lto")
    handle = nvjitlink.create(len(options), options)
    try:
        for name, image in parts:
            kind = getattr(nvjitlink.InputType, kind_of(image))
            nvjitlink.add_data(handle, kind, image, len(image), name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), _log(nvjitlink, handle, "info")
    except nvjitlink.nvJitLinkError as error:
        log = _log(nvjitlink, handle, "error") or str(error)
        raise CompileError(f"the parts of a module do not link:\n{log}", log=log) from error
    finally:
        nvjitlink.destroy(handle)


def _log(nvjitlink: Any, handle: Any, which: str) -> str:
    text = bytearray(getattr(nvjitlink, f"get_{which}_log_size")(handle))
    if text:
        getattr(nvjitlink, f"get_{which}_log")(handle, text)
    return text.rstrip(b"\0").decode(errors="replace")
