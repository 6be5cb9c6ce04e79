"""Hot swaps: a new version takes over from the present one if it passes a gate."""

from __future__ import annotations

import enum
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, Unpack, final

import trio

from ..actors import NameTaken, Place
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..wire.options import flag, real, text
from ._calls import CallsInProgress, InCallers, RequestCounts, serving_callers
from ._errors import ReplicaLost, RolledBack, SwapInProgress
from ._gate import Gate, Outcomes, Shadow
from ._members import Factory, MemberFunction, check_call, check_factory, is_fault, opened

if TYPE_CHECKING:
    from ._observer import Observer

In = TypeVar("In")
Out = TypeVar("Out")

_log = logging.getLogger("atomr_accel.patterns")


class SwapState(enum.Enum):
    """State of a hot swap."""

    SERVING = "serving"
    """The only version serves."""
    LOADING = "loading"
    """Another version is being opened."""
    WARMING_UP = "warming_up"
    """The other version answers the requests of ``warm_up``."""
    SHADOWING = "shadowing"
    """The other version gets copies of requests."""
    CANARY = "canary"
    """The other version answers a share of the requests."""
    DRAINING = "draining"
    """A version that has retired finishes its requests."""


class VersionRole(enum.Enum):
    """Role of a version."""

    PRESENT = "present"
    """Answers the requests, except for the candidate's share."""
    CANDIDATE = "candidate"
    """Is being rolled out, and may take over."""
    LEAVING = "leaving"
    """Gets no further requests, and finishes those it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatistics:
    """Statistics of one version, at one moment.

    Attributes:
        name: the version's name, such as ``"v1"``.
        role: the version's part in serving.
        in_flight: requests in progress.
        answered: requests that it has answered.
        failed: requests that have failed there, for any reason.
        copies: copies of requests that it received.
        compared: answers that were compared with the present version's.
        mismatches: compared answers that differ.
    """

    name: str
    role: VersionRole
    in_flight: int
    answered: int
    failed: int
    copies: int
    compared: int
    mismatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HotSwapStatistics(RequestCounts):
    """Statistics of a hot swap, at one moment.

    Every submitted request counts in one of ``running``, ``answered``, ``failed``, ``refused`` and
    ``withdrawn``.

    Attributes:
        state: the step of the swap.
        share: share of the requests that the candidate answers, from 0 to 1.
        submitted: requests so far.
        running: requests in progress.
        answered: requests that got a result.
        failed: requests that raised an error of a version.
        refused: requests that were refused because the block was left.
        withdrawn: requests whose callers were cancelled.
        asked_again: requests that failed at the candidate and were passed to the present version.
        promoted: number of roll-outs in which the candidate took over.
        rolled_back: number of roll-outs in which it did not.
        versions: the open versions, in the order in which they were loaded.
    """

    state: SwapState
    share: float
    asked_again: int
    promoted: int
    rolled_back: int
    versions: tuple[VersionStatistics, ...]


class _Version:
    """A version, with its context manager and its counts."""

    def __init__(self, name: str, factory: Factory[Any, Any]) -> None:
        self.name = name
        self.factory = factory
        self.step: Outcomes = Outcomes()
        self.answered = self.failed = self.copies = self.compared = self.mismatches = 0
        self.begin()

    def begin(self) -> None:
        """Begin a life of the version."""
        self.member: MemberFunction = MemberFunction("version", self.name)
        self.retire: trio.Event = trio.Event()
        self.gone: trio.Event = trio.Event()
        self.failure: Exception | None = None


class _RollOut:
    """The roll-out of a candidate."""

    def __init__(self, candidate: _Version, gate: Gate, salt: bytes) -> None:
        self.candidate = candidate
        self.gate = gate
        self.salt = salt
        self.scope = trio.CancelScope()
        self.state = SwapState.LOADING
        self.share = 0.0
        self.shadow: Shadow[Any, Any] | None = None
        self.copies: trio.Nursery | None = None
        self.in_copies = 0
        self.passed = trio.Event()
        self.at_once = False
        self.promoted = False
        self.reason: str | None = None
        self.failure: Exception | None = None

    def back(self, reason: str, failure: Exception | None = None) -> None:
        """End the roll-out without promotion. The first reason given counts."""
        if self.reason is None:
            self.reason, self.failure = reason, failure
            self.scope.cancel()


@final
class HotSwap(InCallers, Generic[In, Out], metaclass=NoPublicConstructor):
    """A function whose version can change while it serves, as `open_hot_swap` returns it.

    ``await swap(item)`` makes one request. Once the block was left, methods raise `Closed`.
    """

    _made_by: ClassVar[str] = "open_hot_swap(factory)"

    def __init__(
        self,
        present: _Version,
        idempotent: bool,
        rng: random.Random,
        observer: Observer | None,
    ) -> None:
        self._nursery: trio.Nursery
        self._present = present
        self._idempotent = idempotent
        self._rng = rng
        # Separate, so that the keys that a roll-out reaches do not depend on the number of
        # requests.
        self._salts = random.Random(rng.random())  # noqa: S311 (no secret)
        self._calls = CallsInProgress("swap", observer)
        self._tally = self._calls.tally
        self._loads = CallsInProgress("swap", None)
        self._versions: dict[str, _Version] = {}
        self._up = trio.Event()
        self._leaving = trio.Event()
        self._all_gone = trio.Event()
        self._numbers = 1
        self._roll_out: _RollOut | None = None
        self._asked_again = self._promoted = self._rolled_back = 0

    # --- requests

    async def __call__(self, item: In) -> Out:
        """Ask for one item. See ``ask``."""
        return await self.ask(item)

    @trio.lowlevel.enable_ki_protection
    async def ask(self, item: In, *, key: str | bytes | None = None) -> Out:
        """Ask a version, and wait for its answer.

        The version's function runs in your own task. If you are cancelled, or your deadline passes,
        the function is cancelled too.

        Args:
            item: the argument of the request.
            key: the user or session of the request. Requests with the same key get the same version
                throughout a roll-out, until its share grows to reach them. Without a key, each
                request is assigned at random. If there are few keys, a small share may reach none
                of them.

        Raises:
            TypeError: the key is neither text nor bytes.
            ReplicaLost: the version ended while it ran the request, and requests are not
                idempotent.
            Exception: any error that the version raised.
        """
        if key is not None and not isinstance(key, str | bytes):  # even without a roll-out
            raise TypeError(
                f"key must be a str or bytes, not {type(key).__name__}; give str(key) for one"
            )
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._calls.one(item):
            await self._until_up()
            version = self._route(key)
            try:
                result = await self._ask(version, item)
            except Exception as error:
                # A candidate's error is hidden from callers if the request can run again. So is
                # the end of the present version, if another life of the swap opens it again.
                failure: Exception | None = error
                if version is self._present:
                    if not isinstance(error, ReplicaLost):
                        raise
                    await version.gone.wait()
                    failure = version.failure
                    error.__cause__ = error.__cause__ or failure
                if not (self._idempotent or (failure is not None and is_fault(failure))):
                    raise
                self._asked_again += 1
                self._tally.retry(item, error)
                await self._until_up()
                result = await self._ask(self._present, item)
            else:
                if version is self._present:
                    self._copy_to_candidate(item, result)
            answer: Out = result
            return answer

    async def _until_up(self) -> None:
        """Wait for the present version, if that is being opened again."""
        while self._present.member.call is None:
            await self._up.wait()

    def _route(self, key: str | bytes | None) -> _Version:
        roll_out = self._roll_out
        if roll_out is None or not roll_out.share:
            return self._present
        if key is None:
            point = self._rng.random()
        else:
            data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
            digest = hashlib.blake2b(data, digest_size=8, salt=roll_out.salt).digest()
            point = int.from_bytes(digest, "big") / 2**64
        return roll_out.candidate if point < roll_out.share else self._present

    async def _ask(self, version: _Version, item: Any) -> Any:
        deadline = trio.current_effective_deadline()
        began = trio.current_time()
        version.member.take()
        try:
            self._tally.start(item)
            result = await version.member.ask(item)
        except trio.Cancelled:
            if trio.current_time() >= deadline:
                self._failed(version, trio.TooSlowError("it was too slow for its caller"))
            raise
        except Exception as error:
            version.failed += 1
            self._failed(version, error)
            raise
        finally:
            version.member.leave()
        version.answered += 1
        self._succeeded(version, trio.current_time() - began)
        return result

    def _succeeded(self, version: _Version, seconds: float) -> None:
        version.step.answered(seconds)
        self._judge()

    def _failed(self, version: _Version, error: Exception) -> None:
        roll_out = self._roll_out
        if roll_out is None or roll_out.gate.counts(error):
            version.step.failed()
            self._judge()

    # --- roll-outs

    def _judge(self) -> None:
        roll_out = self._roll_out
        if roll_out is None or roll_out.state not in {SwapState.SHADOWING, SwapState.CANARY}:
            return
        reason = roll_out.gate.judge(self._present.step, roll_out.candidate.step)
        if reason == "":
            roll_out.passed.set()
        elif reason is not None:
            roll_out.back(f"its gate has failed: {reason}")

    def _copy_to_candidate(self, item: Any, result: Any) -> None:
        roll_out = self._roll_out
        if roll_out is None or roll_out.copies is None or roll_out.shadow is None:
            return
        shadow = roll_out.shadow
        if roll_out.in_copies < shadow.max_in_flight and self._rng.random() < shadow.share:
            roll_out.in_copies += 1
            roll_out.copies.start_soon(self._copy, roll_out, shadow, item, result)

    async def _copy(
        self, roll_out: _RollOut, shadow: Shadow[Any, Any], item: Any, result: Any
    ) -> None:
        version = roll_out.candidate
        version.copies += 1
        version.member.take()
        began = trio.current_time()
        try:
            other = await version.member.ask(item)
        except Exception as error:  # noqa: BLE001 (nobody asked)
            self._failed(version, error)
        else:
            same = shadow.compare(item, result, other)
            version.compared += 1
            version.step.compared += 1
            version.mismatches += not same
            version.step.mismatches += not same
            self._succeeded(version, trio.current_time() - began)
        finally:
            version.member.leave()
            roll_out.in_copies -= 1

    @trio.lowlevel.enable_ki_protection
    async def load(
        self,
        factory: Factory[In, Out],
        *,
        name: str | None = None,
        warm_up: Iterable[In] = (),
        shadow: Shadow[In, Out] | None = None,
        canary: Sequence[float] = (),
        gate: Gate = Gate(),  # noqa: B008 (frozen)
    ) -> str:
        """Open a version next to the present one, and promote it if it passes its gate.

        The steps are:

        1. The version is opened.
        2. It answers the requests of ``warm_up``.
        3. If ``shadow`` is given, it gets copies of requests.
        4. For each share of ``canary``, it answers that share of the requests.
        5. It answers all requests. The version before it finishes its requests and is closed.

        Each step of copies or shares ends when the gate has seen enough. Without requests that
        takes forever, so set a deadline with a cancel scope.

        Until the new version has taken over, a failure does not affect the present one. If opening
        or warm-up fails, if the gate fails, if ``rollback`` is called, or if you are cancelled, the
        present version continues. The new one finishes its requests and is closed, and errors are
        raised after that. Once the new version has taken over, your cancellation ends only the wait
        for the version before it. A version that is still being closed is waited for first.

        A request that fails at the new version is passed to the present one if a device's fault
        ended it or if requests are idempotent. The failure still counts for the gate.

        Args:
            factory: makes the version's context manager.
            name: the name of the version; by default, ``v2`` and so on.
            warm_up: the first requests, run one after the other.
            shadow: the share and comparison of copied requests. By default, none are copied.
            canary: the shares of the requests that it answers, one after the other. They must grow,
                and lie between 0 and 1.
            gate: the conditions that the version must meet.

        Returns:
            The version's name, after it has taken over and the version before it is closed.

        Raises:
            SwapInProgress: another version is being rolled out.
            RolledBack: the version did not take over.
            NameTaken: the present version has this name.
            Exception: any error of opening the version or warming it up.
        """
        check_factory(factory)
        check_instance("gate", gate, Gate)
        if name is not None:
            text(name, "name", 1)
        check_instance("warm_up", warm_up, Iterable)
        check_instance("canary", canary, Sequence)
        if shadow is not None:
            check_instance("shadow", shadow, Shadow)
        shares = [real(share, "a share of canary", above=0, below=1) for share in canary]
        if shares != sorted(shares):
            raise ValueError(f"canary must be shares that grow, not {canary!r}")
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._loads.one(factory):
            await self._until_up()
            while self._roll_out is not None or len(self._versions) > 1:
                if self._roll_out is not None:
                    raise SwapInProgress(
                        f"version {self._roll_out.candidate.name!r} is being rolled out beside "
                        f"{self._present.name!r}: await that load, or call promote() or rollback()"
                    )
                await next(
                    each for each in self._versions.values() if each.retire.is_set()
                ).gone.wait()
            if name is None:
                self._numbers += 1
                name = f"v{self._numbers}"
            if name in self._versions:
                raise NameTaken(f"version {name!r} serves just now; choose another name")
            old = self._present
            roll_out = _RollOut(_Version(name, factory), gate, self._salts.randbytes(8))
            try:
                await self._try(roll_out, warm_up, shadow, shares)
            except Exception:
                await roll_out.candidate.gone.wait()
                raise
            if roll_out.promoted:
                await old.gone.wait()
                return name
            await roll_out.candidate.gone.wait()
            raise RolledBack(
                f"version {name!r} did not take over: {roll_out.reason}", version=name
            ) from roll_out.failure

    async def _try(
        self,
        roll_out: _RollOut,
        warm_up: Iterable[Any],
        shadow: Shadow[Any, Any] | None,
        canary: Sequence[float],
    ) -> None:
        """Take a candidate through its steps, then promote or retire it."""
        candidate = roll_out.candidate
        self._roll_out = roll_out
        self._versions[candidate.name] = candidate
        try:
            with roll_out.scope:
                await self._nursery.start(self._live, candidate)
                roll_out.state = SwapState.WARMING_UP
                await self._warm_up(candidate, warm_up)
                if shadow is not None:
                    roll_out.shadow = shadow
                    async with PlainNursery() as copies:
                        roll_out.copies = copies
                        try:
                            await self._step(roll_out, SwapState.SHADOWING, 0.0)
                        finally:
                            roll_out.copies = None  # before the nursery takes no more
                        copies.cancel_scope.cancel()
                for share in canary:
                    await self._step(roll_out, SwapState.CANARY, share)
                await trio.lowlevel.checkpoint_if_cancelled()
                self._present.retire.set()
                self._present = candidate
                roll_out.promoted = True
                self._promoted += 1
        finally:
            self._roll_out = None
            if not roll_out.promoted:
                self._rolled_back += 1
                candidate.retire.set()

    async def _warm_up(self, candidate: _Version, items: Iterable[Any]) -> None:
        for item in items:
            candidate.member.take()
            try:
                await candidate.member.ask(item)
            except ReplicaLost:
                ended = True
            else:
                ended = False
            finally:
                candidate.member.leave()
            if ended:
                await candidate.gone.wait()  # the candidate's end cancels the roll-out

    async def _step(self, roll_out: _RollOut, state: SwapState, share: float) -> None:
        if roll_out.at_once:
            return
        self._present.step, roll_out.candidate.step = Outcomes(), Outcomes()
        roll_out.state, roll_out.share = state, share
        roll_out.passed = trio.Event()
        await roll_out.passed.wait()

    def promote(self) -> None:
        """Promote the version that is being rolled out without further steps.

        The version is still opened and warmed up.

        Raises:
            RuntimeError: no version is being rolled out, or the swap lives in the trio run of
                another thread.
        """
        self._calls.check_thread("run_sync(swap.promote)")
        roll_out = self._in_progress()
        roll_out.at_once = True
        roll_out.passed.set()

    def rollback(self, reason: str = "it was called back") -> None:
        """End the roll-out without promotion.

        ``load`` then raises `RolledBack`. After a version has taken over, the one before it is
        closed; load that version again.

        Raises:
            RuntimeError: no version is being rolled out, or the swap lives in the trio run of
                another thread.
        """
        self._calls.check_thread("run_sync(swap.rollback)")
        self._in_progress().back(reason)

    def _in_progress(self) -> _RollOut:
        if self._roll_out is None:
            raise RuntimeError(
                f"no version is being rolled out; {self._present.name!r} serves by itself"
            )
        return self._roll_out

    # --- what is there

    @property
    def state(self) -> SwapState:
        """State of the swap."""
        if self._roll_out is not None:
            return self._roll_out.state
        return SwapState.DRAINING if len(self._versions) > 1 else SwapState.SERVING

    @property
    def version(self) -> str:
        """The name of the present version."""
        return self._present.name

    def statistics(self) -> HotSwapStatistics:
        """Return the statistics of this moment."""
        return HotSwapStatistics(
            state=self.state,
            share=0.0 if self._roll_out is None else self._roll_out.share,
            **self._tally.counts(),
            asked_again=self._asked_again,
            promoted=self._promoted,
            rolled_back=self._rolled_back,
            versions=tuple(
                VersionStatistics(
                    name=version.name,
                    role=self._role(version),
                    in_flight=version.member.in_flight,
                    answered=version.answered,
                    failed=version.failed,
                    copies=version.copies,
                    compared=version.compared,
                    mismatches=version.mismatches,
                )
                for version in self._versions.values()
            ),
        )

    def _role(self, version: _Version) -> VersionRole:
        if version is self._present:
            return VersionRole.PRESENT
        if self._roll_out is not None and version is self._roll_out.candidate:
            return VersionRole.CANDIDATE
        return VersionRole.LEAVING

    # --- lives of versions, and of the swap

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Open the present version, and serve until all versions are closed after `finish`."""
        if self._leaving.is_set():  # it failed as it closed, and there is no more to do
            task_status.started()
            self._all_gone.set()
            return
        if self._present.gone.is_set():
            self._present.begin()
        async with PlainNursery() as nursery:
            self._nursery = nursery
            self._versions[self._present.name] = self._present
            await nursery.start(self._live, self._present)
            try:
                task_status.started()
                await self._leaving.wait()
            finally:
                if self._roll_out is not None:
                    self._roll_out.back("the swap failed, or was started again")
            for version in self._versions.values():
                version.retire.set()
        self._all_gone.set()

    async def finish(self) -> None:
        """End roll-outs, take no more requests, wait for those in progress, and close versions."""
        self._loads.end(None)
        await self._loads.close()
        await super().finish()
        self._leaving.set()
        await self._all_gone.wait()

    def ended(self, cause: BaseException | None) -> None:
        """End roll-outs and the requests in progress."""
        self._loads.end(None)
        super().ended(cause)

    @trio.lowlevel.enable_ki_protection
    async def _live(self, version: _Version, *, task_status: trio.TaskStatus[None]) -> None:
        """Run a version's task, from its opening to its closing."""
        member = version.member
        began = False

        async def retired() -> None:
            await version.retire.wait()
            await member.until_idle()

        try:
            async with opened(version.factory, member.what) as call:
                check_call(call, member.what)
                member.call = call
                if version is self._present:
                    self._up.set()
                task_status.started()
                began = True
                await member.serve(retired)
        except Exception as error:
            version.failure = error
            if not began or version is self._present:
                raise  # raised to the caller of load; or the block ends
            roll_out = self._roll_out
            if roll_out is not None and version is roll_out.candidate:
                roll_out.back("it has ended by itself", error)
            else:
                _log.exception("%s has failed as it was closed", member.what)
        finally:
            if version is self._present:
                self._up = trio.Event()
            del self._versions[version.name]
            version.gone.set()


@opens
async def open_hot_swap(
    factory: Factory[In, Out],
    *,
    version: str = "v1",
    idempotent: bool = False,
    rng: random.Random | None = None,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[HotSwap[In, Out]]:
    """Open a function whose version can change while it serves.

    A factory makes each version: an async context manager that gives a coroutine function and owns
    the resources this needs. ``await swap.load(factory)`` opens another version next to the present
    one, tries it, and promotes it if it passes its gate. One version answers each request. A
    version that retires finishes the requests that it has begun.

    Versions are not restarted by the swap. If the present version's context manager fails, the
    block fails too; in a place, the swap's supervisor decides.
    A version made by ``open_replica_pool`` restarts its own replicas.

    Leaving the block refuses further requests, ends roll-outs, waits for the requests in progress
    and closes the versions. If an exception or a cancellation leaves the block, the requests in
    progress raise ``Closed``. An error raised while the present version closes leaves the block. An
    error of a version that was replaced is logged.

    Args:
        factory: makes the first version. An error of opening it leaves the block.
        version: the name of the first version.
        idempotent: whether requests may run twice: at the candidate, and after a failure, at the
            present version. Copies for ``Shadow`` are made in any case.
        rng: the random numbers that choose the candidate's requests. Pass ``random.Random(seed)``
            to make the choice repeatable.
        observer: receives the outcomes of requests.
        **place: ``system=``, ``name=`` and ``parent=``, which make the swap an actor. It answers
            ``Call(item)``, and ``Call(item, {"key": "ann"})``. If the present version fails, its
            supervisor opens that again.
    """
    check_factory(factory)
    text(version, "version", 1)
    if rng is not None:
        check_instance("rng", rng, random.Random)
    kind: type[HotSwap[In, Out]] = HotSwap
    swap = kind.construct(
        _Version(version, factory),
        flag(idempotent, "idempotent"),
        rng or random.Random(),  # noqa: S311 (no secret)
        observer,
    )
    try:
        async with serving_callers(swap, place):
            yield swap
    finally:
        with trio.CancelScope(shield=True):
            await swap._loads.close()
