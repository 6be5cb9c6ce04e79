"""``atomr-accel node``: a node of a cluster, and certificates for a first one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import trio

from .._errors import LibraryMissing
from ..actors import NameTaken
from ..cluster import Cluster, Credentials, StoreUnavailable, make_certificates, run_node
from ..cluster.node import load_program
from ._documents import NodeDocument
from ._errors import ExitCode, Refusal

if TYPE_CHECKING:
    import argparse

    from ..cluster import ClusterProgram
    from ._output import CommandOutput


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Run a node, or make certificates."""
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
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 (text, as Python itself puts it there)
    try:
        return load_program(words)
    except (TypeError, ValueError) as error:
        usage = not all(words.partition(":"))
        raise Refusal(str(error), ExitCode.USAGE if usage else ExitCode.UNAVAILABLE) from error
