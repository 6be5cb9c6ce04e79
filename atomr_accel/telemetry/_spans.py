"""OpenTelemetry spans for handled messages, for restarts and for rebuilds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, final

from .. import __version__
from ..actors import ActorSystem
from ..actors.blocks import enters
from ..actors.util import check_instance
from ..device import Device
from ..lanes import DeviceInstrument
from ..ops import Request
from ..wire.trace import add_source, remove_source
from ._packages import package
from ._recorder import taken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import TracerProvider

    from .._errors import ContextPoisoned, DeviceLost
    from ..actors import ActorRef, Message
    from ..device import System
    from ..lanes import Phases, WatchedDevice


@final
class _Spans(DeviceInstrument):
    """Begins and ends spans.

    Handlers see the context of the task that sent their message, because context variables cross
    mailboxes. The current span is therefore the parent, and spans begun here are current in the
    handler.
    """

    def __init__(self, api: Any, context: Any, tracer: Any) -> None:
        self._api = api
        self._context = context
        self._tracer = tracer
        self._sent: dict[tuple[int, int], list[int]] = {}
        self._handled: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._restarts: dict[int, Any] = {}
        self._rebuilds: dict[WatchedDevice, Any] = {}

    def message_sent(self, ref: ActorRef, message: Message[Any]) -> None:
        """Note the start of the message's span, which is made once it is handled."""
        self._sent.setdefault((id(ref), id(message)), []).append(time.time_ns())

    def ask_ended(self, ref: ActorRef, message: Message[Any]) -> None:
        """Drop a message that was withdrawn before it was handled; it has no span."""
        if (id(ref), id(message)) not in self._handled:
            self._taken(ref, message)

    def dead_letter(self, ref: ActorRef, message: Message[Any], reason: str) -> None:
        """Drop a message that is not handled; it has no span."""
        self._taken(ref, message)

    def message_started(self, ref: ActorRef, message: Message[Any]) -> None:
        """Begin a span for the handling of a message, current until it ends."""
        name = getattr(message, "name", None) if isinstance(message, Request) else None
        span = self._tracer.start_span(
            name or type(message).__name__,
            kind=self._api.SpanKind.CONSUMER,
            start_time=self._taken(ref, message),
            attributes={"atomr_accel.actor": ref.path},
        )
        span.add_event("handling")
        # Libraries handle theirs side by side, and call no code of the program.
        token = None
        if not isinstance(message, Request):
            token = self._context.attach(self._api.set_span_in_context(span))
        self._handled[id(ref), id(message)] = span, token

    def message_finished(
        self, ref: ActorRef, message: Message[Any], failure: BaseException | None
    ) -> None:
        """End the span of a message."""
        found = self._handled.pop((id(ref), id(message)), None)
        if found is not None:
            span, token = found
            if token is not None:
                self._context.detach(token)
            self._end(span, failure)

    def actor_restarting(self, ref: ActorRef, cause: BaseException | None) -> None:
        """Begin a span that lasts until the actor has started again."""
        attributes = {"atomr_accel.actor": ref.path}
        span = self._tracer.start_span("restart", self._context.Context(), attributes=attributes)
        if cause is not None:
            span.record_exception(cause)
        self._restarts[id(ref)] = span

    def actor_started(self, ref: ActorRef) -> None:
        """End the span of a restart, if there is one."""
        self._end(self._restarts.pop(id(ref), None), None)

    def actor_stopped(self, ref: ActorRef, cause: BaseException | None) -> None:
        """End the span of a restart that did not succeed."""
        self._end(self._restarts.pop(id(ref), None), cause)

    def fault(self, device: WatchedDevice, fault: ContextPoisoned) -> None:
        """Begin a span that lasts until the device is back."""
        span = self._tracer.start_span(
            "rebuild",
            self._context.Context(),
            attributes={
                "atomr_accel.device": device.name,
                "atomr_accel.actor": device.path,
                "atomr_accel.generation": fault.generation,
                "atomr_accel.status_name": fault.status_name,
                "atomr_accel.op": fault.op,
            },
        )
        span.record_exception(fault)
        self._rebuilds[device] = span

    def generation_ready(self, device: WatchedDevice, generation: int, phases: Phases) -> None:
        """End the span of a rebuild, if there is one."""
        span = self._rebuilds.pop(device, None)
        if span is not None:
            for phase in ("open", "remap", "lanes"):
                span.set_attribute(f"atomr_accel.{phase}_seconds", getattr(phases, phase))
            self._end(span, None)

    def device_lost(self, device: WatchedDevice, error: DeviceLost) -> None:
        """End the span of a rebuild that did not succeed."""
        self._end(self._rebuilds.pop(device, None), error)

    def close(self) -> None:
        """End all spans that are still open."""
        open_ones = [span for span, _ in self._handled.values()]
        for span in (*open_ones, *self._restarts.values(), *self._rebuilds.values()):
            span.end()

    def traceparent(self) -> str | None:
        """Return the current span in the form of W3C Trace Context."""
        context = self._api.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def _taken(self, ref: ActorRef, message: Message[Any]) -> int | None:
        return taken(self._sent, (id(ref), id(message))) or None

    def _end(self, span: Any, failure: BaseException | None) -> None:
        if span is None:
            return
        if failure is not None:
            span.record_exception(failure)
            span.set_status(self._api.StatusCode.ERROR, str(failure))
        span.end()


@enters
def export_spans(
    watched: Device | System, provider: TracerProvider | None = None
) -> Iterator[None]:
    """Export OpenTelemetry spans of handled messages, of restarts, and of rebuilds.

    The span of a message lasts from sending until it is handled. Its parent is the span that was
    current at the sender. It is current in the handler, so messages that the handler sends are
    below it. Restarts of actors have spans too. Rebuilds of devices also have spans, with the fault
    and the duration of each phase. Ops have none, because a span takes longer than most ops.
    Functions of ``device.run`` see the current span as ``atomr_accel.traceparent``.

    Args:
        watched: the device or system to watch. A device is watched with all of its system.
        provider: the provider that makes and exports the spans; by default, the global one.

    Raises:
        LibraryMissing: opentelemetry-api is not installed.
    """
    api = package("opentelemetry.trace", "opentelemetry-api")
    context = package("opentelemetry.context", "opentelemetry-api")
    tracer = (provider or api.get_tracer_provider()).get_tracer("atomr_accel", __version__)
    spans = _Spans(api, context, tracer)
    system = watched.system if isinstance(watched, Device) else watched
    check_instance("what is watched", system, ActorSystem)
    add_source(spans.traceparent)
    try:
        with system.instrumented(spans):
            yield
    finally:
        remove_source(spans.traceparent)
        spans.close()
