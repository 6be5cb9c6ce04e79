"""Commands that install an extra, for errors to advise, and a look for other owners of our name.

A command fits how this package was installed: from the same folder or address, or else by the
name of the distribution, which is not the import name.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import Distribution

DISTRIBUTION: Final = "atomr-accel-trio"
"""The name by which indexes and pip know this package."""

RIVALS: Final = ("atomr-accel",)
"""Distributions of others that install a folder with our import name."""


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation.

    Args:
        extra: its name, such as ``"telemetry"``.
    """
    # Hosts import this module at every start, and need none of these unless something is missing.
    from importlib import metadata

    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "pip install " + _checkout(extra)
    return "pip install " + _source(found, extra)


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


def other_owners(among: Iterable[Distribution] | None = None) -> list[str]:
    """Return the names of other distributions with files in a folder of our import name.

    Whichever was installed last has replaced files of the other one, and uninstalling either takes
    files away from both.

    Args:
        among: the distributions to look at; by default, those that are known to have that name.
    """
    from importlib import metadata

    package = __name__.partition(".")[0]
    if among is None:
        among = (found for name in RIVALS for found in metadata.distributions(name=name))
    return sorted(
        {
            found.name
            for found in among
            if found.name.lower().replace("_", "-") != DISTRIBUTION
            if any(file.parts[0] == package for file in found.files or ())
        }
    )


def separation(owners: Iterable[str]) -> str:
    """Return the commands that leave this distribution alone in its folder."""
    names = shlex.join([*owners, DISTRIBUTION])
    return f"pip uninstall -y {names} && pip install {DISTRIBUTION}"


def warn_of_other_owners() -> None:
    """Warn if another distribution shares our folder. The program looks once, a host never."""
    import warnings

    if owners := other_owners():
        warnings.warn(
            f"{' and '.join(owners)} and {DISTRIBUTION} are installed in one folder, where each "
            f"replaces modules of the other; run: {separation(owners)}",
            stacklevel=2,
        )


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
        return shlex.quote(f"{DISTRIBUTION}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    return shlex.quote(f"{DISTRIBUTION}[{extra}]")  # pip takes the one that is there


def _checkout(extra: str) -> str:
    """The folder that this module is imported from, for a checkout that was never installed."""
    from pathlib import Path

    return "-e " + shlex.quote(f"{Path(__file__).parents[1]}[{extra}]")
