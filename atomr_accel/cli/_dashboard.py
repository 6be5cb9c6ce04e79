"""``atomr-accel dashboard``: a program, and a page about each of its systems."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .._install import install_command
from ..dashboard import open_dashboard
from ._documents import DashboardDocument
from ._errors import ExitCode, Refusal
from ._output import path_text
from ._programs import run_beside

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from ..actors import ActorSystem
    from ._output import CommandOutput


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Run the program."""
    for package in ("starlette", "hypercorn"):
        if find_spec(package) is None:
            raise Refusal(f"it needs {package}: {install_command('dashboard')}")
    urls: list[str] = []
    open_now = 0

    @asynccontextmanager
    async def page(system: ActorSystem) -> AsyncIterator[None]:
        nonlocal open_now
        # The port is for one system at a time; others take a free one.
        port = 0 if open_now else args.port
        async with AsyncExitStack() as stack:
            opening = open_dashboard(system, host=args.host, port=port, public=args.public)
            try:
                dashboard = await stack.enter_async_context(opening)
            except ValueError as error:
                said = str(error).replace("public=True", "--public")
                raise Refusal(f"no page at {args.host}: {said}", ExitCode.USAGE) from error
            except OSError as error:
                raise Refusal(f"no page at {args.host}, port {port}: {error}") from error
            urls.append(dashboard.address)
            sys.stderr.write(f"dashboard of {system.name}: {dashboard.url}\n")
            sys.stderr.flush()
            open_now += 1
            try:
                yield
            finally:
                open_now -= 1

    code = run_beside(page, args, as_json=out.as_json)
    out.document(DashboardDocument(program=path_text(args.program), urls=urls, exit_code=code))
    return code
