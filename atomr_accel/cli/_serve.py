"""``atomr-accel serve``: a language model behind OpenAI's API, until SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from .. import AccelError, DeviceLost, DeviceUnavailable, Standby, open_device
from ..actors.nursery import PlainNursery
from ..llm import (
    LanguageModelServer,
    ModelFolder,
    ServerLimits,
    load_folder,
    open_language_model,
    serve_language_model,
)
from ..testing import poison
from ._documents import ServeDocument
from ._errors import ExitCode, Refusal
from ._output import path_text

if TYPE_CHECKING:
    import argparse

    from .. import Device
    from ..llm import LanguageModel
    from ._output import CommandOutput

KEY_VARIABLE: Final = "ATOMR_ACCEL_API_KEY"
"""An environment variable with keys that are separated by commas. Others see words of commands."""

_HUNG_SECONDS: Final = 60.0
"""Time after which a step counts as hung."""


@dataclass(slots=True)
class _Served:
    """The outcome of serving."""

    name: str = ""
    url: str = ""
    answered: int = 0
    failed: int = 0
    faults: int = 0
    lost: DeviceLost | None = None


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Serve a model.

    Returns:
        ``OK`` after SIGTERM or Ctrl-C, ``WRONG`` if the device was lost.
    """
    served = _Served()
    try:
        folder = load_folder(args.folder)
        trio.run(_serve, args, out, folder, served)
    except DeviceLost as error:
        served.lost = error
    except DeviceUnavailable as error:
        raise Refusal(str(error)) from error
    except (AccelError, OSError, ValueError) as error:
        if served.url:
            raise
        said = str(error).replace("public=True", "--public").replace("keys=...", "--api-key")
        raise Refusal(f"cannot serve {path_text(args.folder)}: {said}") from error
    if served.lost is not None:
        sys.stderr.write(f"the device is lost: {served.lost}\n")
    out.document(
        ServeDocument(
            name=served.name,
            url=served.url,
            answered=served.answered,
            failed=served.failed,
            faults=served.faults,
            lost=served.lost is not None,
        )
    )
    return ExitCode.OK if served.lost is None else ExitCode.WRONG


async def _serve(
    args: argparse.Namespace, out: CommandOutput, folder: ModelFolder, served: _Served
) -> None:
    number: dict[str, Any] = {args.standby: 1}
    standby: dict[str, Any] = {} if args.standby is None else {"standby": Standby(**number)}
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(
            open_device(
                args.device,
                backend=args.backend,
                isolation=args.isolation,
                op_deadline=_HUNG_SECONDS,
                **standby,
            )
        )
        with out.progress(f"loading {folder.name}", 1.0) as show:
            model = await stack.enter_async_context(
                open_language_model(
                    device,
                    folder,
                    model_name=args.model_name,
                    durable=args.durable,
                    progress=lambda done, whole: show(done / max(whole, 1)),
                    system=device.system,
                    name="language-model",
                )
            )
        server = await stack.enter_async_context(
            serve_language_model(
                model,
                host=args.host,
                port=args.port,
                keys=_keys(args.api_key),
                public=args.public,
                names=args.allow_host,
                limits=ServerLimits(requests=args.requests),
                cause_fault=(lambda: poison(device)) if args.demo_faults else None,
            )
        )
        served.name, served.url = model.name, server.url
        sys.stderr.write(f"serving {model.name} at {server.url}\n")
        sys.stderr.flush()
        try:
            served.lost = await _until_end(device, server, args.grace)
        finally:
            _count(served, model, server)


async def _until_end(
    device: Device, server: LanguageModelServer, grace: float
) -> DeviceLost | None:
    """Serve until a signal, and let streams end; or until the device is lost."""
    lost: DeviceLost | None = None

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal lost
        failure = await device.ref.wait_stopped()
        lost = failure if isinstance(failure, DeviceLost) else DeviceLost(str(failure))
        scope.cancel()

    async with PlainNursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                break
            with trio.move_on_after(grace) as waiting:
                await server.drain()
            if waiting.cancelled_caught:
                server.cut_off()
                await server.drain()
                sys.stderr.write(f"streams were cut off after {grace:g} seconds\n")
        nursery.cancel_scope.cancel()
    return lost


def _count(served: _Served, model: LanguageModel, server: LanguageModelServer) -> None:
    statistics = server.statistics()
    served.answered, served.failed = statistics.answered, statistics.failed
    served.faults = model.statistics().faults


def _keys(words: list[str] | None) -> dict[str, str]:
    """Return keys by names, of words such as ``KEY`` or ``NAME=KEY`` and of the environment."""
    given = [*(words or []), *filter(None, os.environ.get(KEY_VARIABLE, "").split(","))]
    keys: dict[str, str] = {}
    for number, word in enumerate(given, 1):
        name, equals, key = word.partition("=")
        if not equals:
            name, key = f"key-{number}", word
        if name in keys:
            raise Refusal(f"keys must have names of their own, not {name} twice", ExitCode.USAGE)
        keys[name] = key
    return keys
