"""Machine code as text, by the toolkit's cuobjdump. Needs no GPU."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from ...._errors import LibraryError, LibraryMissing
from ....wire.toolkit import find_tool


def disassemble(image: bytes) -> str:
    """The instructions of a cubin or fatbin (``cuobjdump -sass``)."""
    tools = {name: find_tool(name) for name in ("cuobjdump", "nvdisasm")}
    for name, path in tools.items():
        if path is None:
            raise LibraryMissing(
                f"{name} is not installed: it comes with the CUDA toolkit, and with "
                f"pip install nvidia-cuda-{name} (CUDA 13)",
                library=name,
            )
    folders = [str(Path(path).parent) for path in tools.values() if path is not None]
    search = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
    with tempfile.TemporaryDirectory(prefix="atomr-") as folder:
        file = Path(folder, "image")
        file.write_bytes(image)
        done = subprocess.run(
            [str(tools["cuobjdump"]), "-sass", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**os.environ, "PATH": search},
        )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise LibraryError(
            f"cuobjdump -sass ended with {done.returncode}: {said}",
            library="cuobjdump",
            call="cuobjdump -sass",
            status=done.returncode,
            status_name="",
        )
    return done.stdout.decode(errors="replace")
