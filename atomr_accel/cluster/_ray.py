"""Nodes on Ray: it places processes, and this package supervises them.

Ray finds room for a process, starts it, and reports its end. Only its lease shows that a node
lives, since a process of Ray's may exist and do nothing.

A node makes its key where it runs and keeps it there. What goes through Ray is a request for a
certificate, and the certificate: neither is secret.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from .._errors import LibraryMissing
from .._install import install_command
from ..actors import Backoff, ChildSpec, Intensity, NoSuchChild, Supervisor, open_supervisor
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import check_instance
from ._errors import RayNodeLost
from ._settings import check_name
from ._transport import Credentials
from .certificates import make_certificates, request_certificate, sign_certificate
from .node import joined_node, load_program, open_store

if TYPE_CHECKING:
    import os

    from ._cluster import Cluster

_log = logging.getLogger("atomr_accel.cluster")

_LOOK: Final = 5.0
"""Seconds between two looks at the nodes that Ray has."""

_KILL: Final = 5.0
"""Seconds that Ray gets to take an order to kill a process."""

_INTENSITY: Final = Intensity(restarts=100)
_BACKOFF: Final = Backoff(base=0.5, maximum=30.0, jitter=0.2)

_FOLLOWER: Final = "ray"
"""Child that follows the nodes of Ray. No node has this name: theirs end with a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodes:
    """Options of nodes on Ray: how many, what each takes, and when one is started again.

    Attributes:
        count: number of nodes, which Ray spreads over its own; by default one on each of Ray's that
            has room for one, also on those that come later.
        prefix: names are this word, ``-`` and a number from 1.
        cpus: cores that Ray counts for each.
        gpus: GPUs that Ray gives to each; a node sees no others.
        resources: other resources of Ray's, by name.
        start: seconds until a node has to have joined.
        patience: seconds that a node may be missing after its lease is over. Then its process is
            killed, and another one is started.
        intensity: most restarts, of all nodes together. After more of them the block fails.
        backoff: waits before restarts.
    """

    count: int | None = None
    prefix: str = "ray"
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    start: float = 60.0
    patience: float = 5.0
    intensity: Intensity = _INTENSITY
    backoff: Backoff = _BACKOFF

    def __post_init__(self) -> None:
        count: object = self.count
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ValueError(f"count must be None or at least 1, not {count!r}")
        check_name("a prefix", self.prefix)
        check_instance("resources", self.resources, Mapping)
        amounts: dict[str, object] = {"cpus": self.cpus, "gpus": self.gpus, **self.resources}
        for name, amount in amounts.items():
            if not isinstance(amount, (int, float)) or not 0 <= amount < 1e9:
                raise ValueError(f"{name} must be a number from 0 on, not {amount!r}")
        for name in ("start", "patience"):
            value: object = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value < 1e9:
                raise ValueError(f"{name} must be seconds above 0, not {value!r}")
        check_instance("intensity", self.intensity, Intensity)
        check_instance("backoff", self.backoff, Backoff)

    def fit(self, resources: Mapping[str, float]) -> bool:
        """Return whether one of Ray's nodes has room for one of these when nothing else runs."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return all(resources.get(name, 0.0) >= amount for name, amount in wanted.items())


@opens
async def open_ray_cluster(
    program: str,
    *,
    store: str | os.PathLike[str],
    nodes: RayNodes | None = None,
    node: str = "driver",
    certificates: str | os.PathLike[str] | None = None,
) -> AsyncIterator[Cluster]:
    """Start nodes on Ray and join their cluster, for the length of a block.

    The block begins when all nodes have joined; set a deadline if Ray may have no room. This
    program's own node holds no entities. A node whose process ends, or whose lease is over for
    long, is started again. Leaving the block drains all nodes and ends their processes. If an
    exception or a cancellation leaves the block, they are killed at once. Ray kills them if this
    program dies.

    The program calls ``ray.init()`` before. All of Ray's nodes need this package, and the module
    of the program: ``ray.init(runtime_env={"working_dir": "."})`` sends it to them.

    Args:
        program: ``MODULE:NAME`` of a `ClusterProgram`, which all nodes share. Nodes on Ray have
            its services and devices, too.
        store: a URL of PostgreSQL, such as ``"postgresql://host/database"``; or a file of SQLite,
            if Ray has one machine.
        nodes: options of the nodes; by default, one on each of Ray's.
        node: this program's own name in the cluster.
        certificates: folder with an authority of ``atomr-accel node --make-certificates``, so that
            others can join, too; it gets a certificate of ``node`` if it has none. By default, an
            authority that lives as long as the block.

    Raises:
        LibraryMissing: package ray or cryptography is not installed.
        NameTaken: another node that lives has the name.
        RayNodeLost: a node ended, or did not join in time, at its first start.
        RuntimeError: Ray was not initialized.
        SupervisionFailed: nodes were started again too often.
        StoreUnavailable: the store does not answer.
        TypeError: an argument of a wrong type, or the program is none.
        ValueError: a bad name, an unknown program, or no node of Ray's has the resources of one.
    """
    shared = load_program(program)
    nodes = RayNodes() if nodes is None else nodes
    check_instance("nodes", nodes, RayNodes)
    check_name("a node's name", node)
    ray = _import_ray()
    if not ray.is_initialized():
        raise RuntimeError("Ray must be initialized, not left alone; call ray.init() first")
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_authority(certificates, node))
        fencing = await stack.enter_async_context(open_store(store))
        credentials = Credentials.in_folder(folder, node)
        host = await trio.to_thread.run_sync(ray.util.get_node_ip_address)
        joining = shared.open(node, fencing, credentials, (host, 0), holds=False)
        cluster = await stack.enter_async_context(joining)
        order = partial(_serve, program, str(store), folder)
        await stack.enter_async_context(nodes_on_ray(cluster, nodes, order))
        yield cluster


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise LibraryMissing(
            f"nodes on Ray need package ray: {install_command('ray')}", library="ray"
        ) from error
    return ray


@contextmanager
def _authority(certificates: str | os.PathLike[str] | None, node: str) -> Iterator[Path]:
    """Yield the folder of the authority, with a certificate of this program's node in it."""
    with tempfile.TemporaryDirectory(prefix="atomr-authority-") as own:
        folder = Path(own if certificates is None else certificates)
        if not (folder / f"{node}.pem").exists():
            make_certificates(folder, [node])
        yield folder


# --- in processes of Ray's


class RayAgent:
    """A node in a process of Ray's, which calls methods in threads: in one of them trio runs.

    No method is async: with one, Ray would call all of them in one thread, that of asyncio.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._asked = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    def request(self, node: str) -> bytes:
        """Return a request to sign the node's certificate."""
        self._folder = Path(tempfile.mkdtemp(prefix="atomr-node-"))
        return request_certificate(self._folder, node)

    def serve(
        self, program: str, node: str, store: str, certificate: bytes, authority: bytes
    ) -> None:
        """Be the node, until `leave` is called."""
        folder = self._folder
        assert folder is not None
        credentials = Credentials.in_folder(folder, node)
        Path(credentials.certificate).write_bytes(certificate)
        Path(credentials.authority).write_bytes(authority)

        async def run() -> None:
            self._token = trio.lowlevel.current_trio_token()
            host = _import_ray().util.get_node_ip_address()
            joining = joined_node(load_program(program), node, store, credentials, (host, 0))
            async with joining:
                shutil.rmtree(folder)  # it has been read, and nobody cleans up after a kill
                await self._asked.wait()

        try:
            trio.run(run)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def leave(self) -> None:
        """Have the node drain, and `serve` return."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._asked.set)


# --- in the program


async def answered(ref: Any) -> Any:
    """Return the result of a call of Ray's, or raise its error.

    To be cancelled while waiting leaves the call alone.
    """
    token, done = trio.lowlevel.current_trio_token(), trio.Event()

    def tell(_: object) -> None:  # in a thread of Ray's
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(done.set)

    future = ref.future()
    future.add_done_callback(tell)
    await done.wait()
    return future.result()


async def _serve(program: str, store: str, folder: Path, name: str, handle: Any) -> Any:
    """Have a process become a node; return the call that ends with it."""
    request: bytes = await answered(await trio.to_thread.run_sync(handle.request.remote, name))
    certificate = sign_certificate(folder, name, request)
    authority = (folder / "authority.pem").read_bytes()
    call = partial(handle.serve.remote, program, name, store, certificate, authority)
    return await trio.to_thread.run_sync(call)


@asynccontextmanager
async def nodes_on_ray(
    cluster: Cluster, nodes: RayNodes, serve: Callable[[str, Any], Any]
) -> AsyncIterator[None]:
    """Start nodes of a cluster on Ray and keep them, for the length of a block.

    Args:
        cluster: this program's node, which sees whether others live.
        nodes: their options.
        serve: has a process, given the node's name and Ray's handle, become a node; it returns the
            call that ends with it.
    """
    async with open_supervisor(
        "nodes on Ray", intensity=nodes.intensity, backoff=nodes.backoff
    ) as supervisor:
        fleet = _RayFleet(_import_ray(), cluster, nodes, serve, supervisor)
        await fleet.begin()
        yield
        await fleet.leave()


@dataclass(eq=False, slots=True)
class _RayProcess:
    """A process whose node has joined."""

    handle: Any
    ended: trio.Event = field(default_factory=trio.Event)


class _RayFleet:
    """All nodes of a cluster on Ray: each is a child of one supervisor.

    Calls of Ray's that may wait for its servers are made in threads.
    """

    def __init__(
        self,
        ray: Any,
        cluster: Cluster,
        nodes: RayNodes,
        serve: Callable[[str, Any], Any],
        supervisor: Supervisor,
    ) -> None:
        self._ray = ray
        self._cluster = cluster
        self._nodes = nodes
        self._serve = serve
        self._supervisor = supervisor
        self._places: dict[
            str, str | None
        ] = {}  # by name of a node of ours, the id of one of Ray's
        self._joined: dict[str, _RayProcess] = {}
        self._leaving = False

    async def begin(self) -> None:
        """Start the nodes, and return when all have joined."""
        if self._nodes.count is None:
            await self._supervisor.start_child(ChildSpec(_FOLLOWER, self._follow))
        else:
            await self._start([None] * self._nodes.count)

    async def leave(self) -> None:
        """Drain all nodes at once. One that takes too long is left to be killed."""
        self._leaving = True
        with suppress(NoSuchChild):
            await self._supervisor.stop_child(_FOLLOWER)
        processes = list(self._joined.values())
        # Twice a lease is what a node takes at most; see `Cluster.finish`.
        with trio.move_on_after(2 * self._cluster._settings.lease + _KILL):
            for process in processes:
                await trio.to_thread.run_sync(process.handle.leave.remote)
            for process in processes:
                await process.ended.wait()

    # --- one for each of Ray's nodes

    async def _follow(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self._match()
        if not self._places:
            raise ValueError(
                "cpus, gpus and resources must be what some node of Ray's has, not "
                f"{self._nodes.cpus}, {self._nodes.gpus} and {dict(self._nodes.resources)}"
            )
        task_status.started()
        while True:
            await trio.sleep(_LOOK)
            await self._match()

    async def _match(self) -> None:
        alive = [
            each["NodeID"]
            for each in await trio.to_thread.run_sync(self._ray.nodes)
            if each["Alive"] and self._nodes.fit(each["Resources"])
        ]
        for name in [name for name, place in self._places.items() if place not in alive]:
            _log.warning("node %s is not started again: Ray's node is gone", name)
            del self._places[name]
            with suppress(NoSuchChild):
                await self._supervisor.stop_child(name)
        taken = set(self._places.values())
        await self._start([place for place in alive if place not in taken])

    async def _start(self, places: list[Any]) -> None:
        async with PlainNursery() as nursery:
            for place in places:
                number = 1
                while (name := f"{self._nodes.prefix}-{number}") in self._places:
                    number += 1
                self._places[name] = place
                nursery.start_soon(self._add, name, place)

    async def _add(self, name: str, place: str | None) -> None:
        try:
            await self._supervisor.start_child(ChildSpec(name, partial(self._run, name, place)))
        except BaseException:
            self._places.pop(name, None)
            raise

    # --- one node

    async def _run(
        self, name: str, place: str | None, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Start a process, and stay until it has ended, or its node does not live any more."""
        before = self._life(name)  # of one that was lost, whose lease is not over
        handle = await trio.to_thread.run_sync(self._create, place)
        try:
            async with PlainNursery() as nursery:
                with trio.move_on_after(self._nodes.start) as limit:
                    call = await self._serve(name, handle)
                    process = _RayProcess(handle)
                    nursery.start_soon(self._await_end, name, call, process)
                    await self._until(lambda: self._life(name) not in {None, before})
                if limit.cancelled_caught:
                    raise RayNodeLost(
                        f"node {name} has not joined within {self._nodes.start} s; Ray may have no "
                        "room for it",
                        node=name,
                    )
                self._joined[name] = process
                task_status.started()
                await self._stay(name, self._life(name))
        finally:
            self._joined.pop(name, None)
            await self._kill(name, handle)

    def _create(self, place: str | None) -> Any:
        strategy: Any = "SPREAD"
        if place is not None:
            strategies = self._ray.util.scheduling_strategies
            strategy = strategies.NodeAffinitySchedulingStrategy(place, soft=False)
        made: Any = self._ray.remote(
            num_cpus=self._nodes.cpus,
            num_gpus=self._nodes.gpus,
            resources=dict(self._nodes.resources),
            max_restarts=0,  # another node would have its name, without a certificate
            max_concurrency=2,  # to be asked to leave while it serves
            scheduling_strategy=strategy,
        )(RayAgent)
        return made.remote()

    async def _await_end(self, name: str, call: Any, process: _RayProcess) -> None:
        error: BaseException | None = None
        try:
            await answered(call)
        except Exception as failure:  # noqa: BLE001 (Ray's own, or the program's)
            error = failure
        process.ended.set()
        if not self._leaving:
            # Ray's own text is a page. An error of the program's is the cause of one of its own.
            cause = getattr(error, "cause", None)
            why = "it left" if error is None else repr(cause) if cause else type(error).__name__
            raise RayNodeLost(f"node {name} on Ray has ended: {why}", node=name) from error

    async def _stay(self, name: str, life: str | None) -> None:
        while True:
            await self._until(lambda: self._life(name) != life)
            with trio.move_on_after(self._nodes.patience):
                await self._until(lambda: self._life(name) == life)
                continue
            if self._leaving:
                await trio.sleep_forever()
            raise RayNodeLost(
                f"node {name} on Ray is missing for {self._nodes.patience} s", node=name
            )

    async def _kill(self, name: str, handle: Any) -> None:
        with trio.move_on_after(_KILL, shield=True) as limit:
            try:
                await trio.to_thread.run_sync(self._ray.kill, handle, abandon_on_cancel=True)
            except Exception as error:  # noqa: BLE001 (Ray may be gone itself)
                _log.warning("the process of node %s may be left: %s", name, error)
        if limit.cancelled_caught:
            _log.warning("the process of node %s may be left: Ray does not answer", name)

    def _life(self, name: str) -> str | None:
        node = self._cluster.nodes.get(name)
        return None if node is None else node.life

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._cluster._changed.wait()
