"""``atomr-accel node``: a node of a cluster, and certificates for a first one."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from .._errors import LibraryMissing
from ..actors import NameTaken
from ..cluster import (
    Cluster,
    ClusterProgram,
    Credentials,
    StoreUnavailable,
    make_certificates,
    run_node,
)
from ._documents import NodeDocument
from ._errors import ExitCode, Refusal

if TYPE_CHECKING:
    import argparse

    from ._output import CommandOutput


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Run a node, or make certificates.

    Returns:
        The exit code.

    Raises:
        Refusal: the program, a certificate or the store is not there.
    """
    if args.make_certificates:
        try:
            files = make_certificates(args.certificates, args.make_certificates, days=args.days)
        except (LibraryMissing, OSError, ValueError) as error:
            raise Refusal(str(error)) from error
        for path in files:
            out.line(str(path))
        out.document(
            NodeDocument(cluster=None, name=None, handed=0, dropped=0, files=[*map(str, files)])
        )
        return ExitCode.OK
    for word in ("program", "name", "store"):
        if getattr(args, word) is None:
            said = "MODULE:NAME" if word == "program" else f"--{word}"
            raise Refusal(f"a node needs {said}; see `atomr-accel node --help`", ExitCode.USAGE)
    program = _program(args.program)
    seen: list[Cluster] = []

    def ready(cluster: Cluster) -> None:
        seen.append(cluster)
        sys.stderr.write(f"node {cluster.node} has joined {cluster.name}\n")
        sys.stderr.flush()

    try:
        credentials = Credentials.in_folder(args.certificates, args.name)
        listen = (args.host, args.port)
        trio.run(run_node, program, args.name, args.store, credentials, listen, ready)
    except (NameTaken, StoreUnavailable, LibraryMissing, OSError, ValueError) as error:
        raise Refusal(f"the node cannot run: {error}") from error
    statistics = seen[0].statistics()
    out.document(
        NodeDocument(
            cluster=program.name,
            name=args.name,
            handed=statistics.handed,
            dropped=statistics.dropped,
            files=[],
        )
    )
    return ExitCode.OK


def _program(words: str) -> ClusterProgram:
    module, _, name = words.partition(":")
    if not module or not name:
        raise Refusal(f"the program must be MODULE:NAME, not {words}", ExitCode.USAGE)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 (text, as Python itself puts it there)
    try:
        program = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Refusal(f"there is no {words}: {error}") from error
    if not isinstance(program, ClusterProgram):
        raise Refusal(f"{words} is a {type(program).__name__}, and no ClusterProgram")
    return program
