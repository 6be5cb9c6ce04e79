"""Models from a server's point of view: their methods, and their errors in the form of the API."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import trio

from .._errors import AccelError, DeviceLost
from ..patterns import Closed, Overloaded
from ._http import ClientGone
from ._openai import ApiError
from ._request_errors import GrammarInvalid, PromptTooLong
from ._requests import SamplingOptions, TokenPiece, TokenRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_log: Final = logging.getLogger("atomr_accel.llm")

_READY_FOR: Final = 1.0
"""Seconds for which a model that has generated a token counts as ready."""
_READY_WITHIN: Final = 5.0
"""Seconds for a token to be generated."""


class ServedModel(Protocol):
    """A language model, as servers need it: `LanguageModel` is one."""

    @property
    def name(self) -> str:
        """The name that clients ask for."""

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its answer."""

    @property
    def tokenizer(self) -> Tokenizer:
        """A tokenizer of the package ``tokenizers``."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[int, ...]:
        """Return messages as tokens."""

    def generate(
        self, request: TokenRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[TokenPiece]]:
        """Open a stream of tokens."""

    def statistics(self) -> Any:
        """The model at this moment, as a dataclass."""


@final
class Readiness:
    """Check that a model generates tokens at present."""

    def __init__(self, model: ServedModel) -> None:
        self._model: Final = model
        self._lock: Final = trio.Lock()
        self._last = float("-inf")

    async def check(self) -> None:
        """Generate a token, unless that was done just now."""
        request = TokenRequest(
            prompt=(0,),
            sampling=SamplingOptions(temperature=0.0, max_tokens=1, ignore_eos=True),
            priority=1000,
        )
        try:
            with trio.fail_after(_READY_WITHIN):
                async with self._lock:
                    if trio.current_time() - self._last < _READY_FOR:
                        return
                    async with self._model.generate(request) as pieces:
                        async for _ in pieces:
                            pass
                    self._last = trio.current_time()
        except (trio.TooSlowError, AccelError) as error:
            raise ApiError(
                503,
                f"the model generates no token: {error}",
                kind="server_error",
                code="not_ready",
                retry_after=1,
            ) from error


def gravest(error: Exception) -> Exception:
    """Return the error that stands for those of a group: `ClientGone`, or the highest status."""
    if not isinstance(error, ExceptionGroup):
        return error
    return max(map(gravest, error.exceptions), key=_gravity)


def _gravity(error: Exception) -> int:
    if isinstance(error, ClientGone):
        return 1000
    return error.status if isinstance(error, ApiError) else 999


def refused_options(error: TypeError | ValueError, grammar_field: str | None) -> ApiError:
    """Return the API's form of an error that a model raises before a stream begins.

    Args:
        error: the error.
        grammar_field: the name of the field that asks for the grammar, or None.
    """
    if isinstance(error, PromptTooLong):
        return ApiError(400, str(error), param="prompt", code="context_length_exceeded")
    if isinstance(error, GrammarInvalid):
        return _refused_grammar(error, grammar_field)
    return ApiError(400, str(error), code="invalid_value")


def _refused_grammar(error: GrammarInvalid, field: str | None) -> ApiError:
    message = str(error) if field is None else f"{field} is refused: {error}"
    return ApiError(400, message, param=field, code="invalid_value")


def api_error(error: Exception, grammar_field: str | None = None) -> ApiError | ClientGone:
    """Return the API's form of an error of the model."""
    if isinstance(error, ApiError | ClientGone):
        return error
    if isinstance(error, GrammarInvalid):  # it has become too large: another try will not help
        return _refused_grammar(error, grammar_field)
    message = str(error)
    if isinstance(error, Overloaded):
        return ApiError(429, message, kind="requests", code="rate_limit_exceeded", retry_after=1)
    if isinstance(error, Closed | DeviceLost):
        return ApiError(503, message, kind="server_error", code="device_lost", retry_after=5)
    if isinstance(error, AccelError):
        return ApiError(500, message, kind="server_error", code="device_fault")
    _log.error("a request has failed", exc_info=error)
    return ApiError(500, "the server has failed; its log says why", kind="server_error")
