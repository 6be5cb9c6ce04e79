"""Build the wheel and the sdist of the last commit twice, compare them, and list their contents.

``python -m tests.packages.build dist`` leaves both files in ``dist``. They have committed
files alone.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

NOTICE = re.compile(
    rb"copyright \(c\)|copyright \d|spdx-license-identifier|@license", re.IGNORECASE
)
"""Words by which others mark files as theirs."""


def exported(folder: Path, commit: str = "HEAD") -> Path:
    """Write the files of a commit to a new folder, and return it."""
    folder.mkdir(parents=True)
    words = ["git", "-C", str(ROOT), "archive", "--format=tar", f"--output={folder}.tar", commit]
    subprocess.run(words, check=True)
    with tarfile.open(f"{folder}.tar") as archive:
        archive.extractall(folder, filter="data")
    return folder


def built(source: Path, out: Path) -> tuple[Path, Path]:
    """Build the sdist of a folder, and of that the wheel; return the wheel and the sdist."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run([*hatchling, "-t", "sdist"], cwd=source, check=True, stdout=sys.stderr)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
        (unpacked,) = Path(scratch).iterdir()
        subprocess.run([*hatchling, "-t", "wheel"], cwd=unpacked, check=True, stdout=sys.stderr)
    (wheel,) = out.glob("*.whl")
    return wheel, sdist


def foreign(wheel: Path) -> list[str]:
    """Return the files of a wheel that carry a notice; ours are under ``LICENSE`` and have none."""
    with zipfile.ZipFile(wheel) as archive:
        return [
            name
            for name in archive.namelist()
            if ".dist-info/" not in name
            if NOTICE.search(archive.read(name))
        ]


def license_of(wheel: Path) -> str:
    """Return the licence that a wheel declares, whose text must be in it."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = email.message_from_bytes(archive.read(metadata))
        texts = [
            f"{Path(metadata).parent}/licenses/{name}"
            for name in said.get_all("License-File") or ()
        ]
        if not texts or any(len(archive.read(text)) < 1000 for text in texts):
            raise ValueError(f"{wheel.name} must have the text of its licence, not {texts}")
    return str(said["License-Expression"])


def main(out: Path) -> None:
    """Build, compare, look, and put both files into a folder, which loses older ones."""
    with tempfile.TemporaryDirectory() as scratch:
        pairs = []
        for name, mask in (("one", 0o022), ("another/and-longer", 0o077)):
            before = os.umask(mask)  # files of another user's have other modes
            pairs.append(built(exported(Path(scratch, name)), Path(scratch, name, "dist")))
            os.umask(before)
        for one, other in zip(*pairs, strict=True):
            if one.name != other.name or one.read_bytes() != other.read_bytes():
                sys.exit(f"{one.name} differs from build to build")
        wheel, sdist = pairs[0]
        if notices := foreign(wheel):
            sys.exit(f"{wheel.name} has files of others, whose licences are missing: {notices}")
        print(f"{wheel.name}, {sdist.name}: identical twice")
        print(f"licence of all in it: {license_of(wheel)}")
        out.mkdir(exist_ok=True)
        for old in (*out.glob("*.whl"), *out.glob("*.tar.gz")):
            old.unlink()
        for path in (wheel, sdist):
            (out / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
