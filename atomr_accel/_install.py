"""Commands that install an extra, for errors to advise.

A name in an index may be another project's. The command therefore fits how this package was
installed: from the same folder or address, or else by the requirements of the extra.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_NAME = "atomr-accel"


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation.

    Args:
        extra: its name, such as ``"telemetry"``.
    """
    # Hosts import this module at every start, and need none of these unless something is missing.
    from importlib import metadata

    try:
        found = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        found = None
    return "pip install " + (_source(found, extra) if found else _checkout(extra))


def cuda_command(family: str = "cuda") -> str:
    """The command that adds the extra of a family for the CUDA whose packages are installed.

    Args:
        family: the extra's name without CUDA's number, such as ``"cutlass"``.
    """
    from importlib import metadata

    try:
        major = metadata.version("cuda-bindings").partition(".")[0]
    except metadata.PackageNotFoundError:
        major = "12"
    return install_command(f"{family}{'13' if major == '13' else '12'}")


def _source(found: Distribution, extra: str) -> str:
    import json
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    origin: dict[str, Any] = json.loads(found.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if "dir_info" in origin:
        folder = unquote(urlsplit(url).path)
        if Path(folder).is_dir():
            option = "-e " if origin["dir_info"].get("editable") else ""
            return option + shlex.quote(f"{folder}[{extra}]")
    elif "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return shlex.quote(f"{_NAME}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    return _requirements(found, extra)


def _requirements(found: Distribution, extra: str) -> str:
    wanted = [
        requirement.strip()
        for requirement, _, marker in (line.partition(";") for line in found.requires or ())
        if marker.replace("'", '"').strip() == f'extra == "{extra}"'
    ]
    return shlex.join(wanted) or _checkout(extra)


def _checkout(extra: str) -> str:
    """The folder that this module is imported from, for a checkout that was never installed."""
    from pathlib import Path

    return "-e " + shlex.quote(f"{Path(__file__).parents[1]}[{extra}]")
