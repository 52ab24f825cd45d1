"""Cells of a sweep on a Ray or Dask cluster, or on any executor of the standard library's kind."""

from __future__ import annotations

import queue
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from . import _native, _work
from ._errors import ClusterError, RecordError
from ._extras import need
from ._work import Answer, Plan

TRIES = 3
"""How often a cell is started before its workers' deaths are its own fault."""
_LOOK_INTERVAL_S = 0.1
"""How often the waiting thread looks for Ctrl-C, moves the bar, and looks whether the cluster is still there."""
_LONELY_S = 60.0
"""After so long without any worker a warning says so. Clusters that grow with their work may take longer."""
_ASK_INTERVAL_S = 2.0
"""How often Ray's head node is looked for, and Dask is asked for its workers."""
_RAY_LOST_S = 15.0
"""How long it need not answer: Ray gives up after a minute."""
_DASK_LOST_S = 20.0
"""How long Dask's client may look for a scheduler that it has lost."""


class _Gone(Exception):  # noqa: N818 - it is caught where it is made an error of ours
    """The cluster is not there any more."""


class _Pool(Protocol):
    """What a sweep needs of an executor."""

    name: str

    def submit(self, index: int) -> Future[Answer]:
        """Starts a cell when a worker is free, in the order of the calls."""

    def cancel(self) -> None:
        """Lets no other cell begin."""

    def check(self) -> None:
        """Raises `_Gone` where no answer will come any more."""

    def workers(self) -> int | None:
        """How many there are; None where nobody knows."""

    def is_final(self, error: BaseException) -> bool:
        """Whether the executor itself has tried again. Raises `_Gone` where no other cell can run either."""


class _Standard:
    """An executor of `concurrent.futures`."""

    def __init__(self, executor: Executor, plan: bytes | str) -> None:
        self.name = type(executor).__name__
        self._executor = executor
        self._plan = plan
        self._futures: list[Future[Answer]] = []

    def submit(self, index: int) -> Future[Answer]:
        try:
            future = self._executor.submit(_work.cell, _work.build(), self._plan, index)
        except RuntimeError as e:
            raise _Gone(str(e)) from e
        self._futures.append(future)
        return future

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()

    def check(self) -> None:
        pass

    def workers(self) -> int | None:
        return None

    def is_final(self, error: BaseException) -> bool:
        if isinstance(error, BrokenExecutor | CancelledError):
            raise _Gone(str(error) or type(error).__name__) from error
        return False


class _Ray:
    """A Ray cluster that this process has joined."""

    def __init__(self, plan: bytes | str, threads: int) -> None:
        self._ray: Any = need("ray", "ray")
        if not self._ray.is_initialized():
            raise ValueError("executor: Ray is not started; call ray.init() first")
        self.name = "Ray"
        # A cell that died is counted here.
        self._cell = self._ray.remote(_work.cell).options(num_cpus=threads, max_retries=0, name="sluicenet")
        self._plan = self._ray.put(plan)
        self._refs: list[Any] = []
        self._head = _head_of(self._ray)
        self._heard = self._asked = time.monotonic()

    def submit(self, index: int) -> Future[Answer]:
        ref = self._cell.remote(_work.build(), self._plan, index)
        self._refs.append(ref)
        future: Future[Answer] = ref.future()
        return future

    def cancel(self) -> None:
        for ref in self._refs:
            self._ray.cancel(ref)

    def check(self) -> None:
        if not self._ray.is_initialized():
            raise _Gone("its connection is closed")
        # Ray ends this process a minute after it has lost its head node, and raises nothing before.
        now = time.monotonic()
        if self._head is None or now - self._asked < _ASK_INTERVAL_S:
            return
        self._asked = now
        try:
            socket.create_connection(self._head, timeout=_ASK_INTERVAL_S).close()
            self._heard = now
        except OSError as e:
            if now - self._heard > _RAY_LOST_S:
                raise _Gone(f"its head node at {self._head[0]}:{self._head[1]} does not answer") from e

    def workers(self) -> int | None:
        return None

    def is_final(self, error: BaseException) -> bool:
        of = self._ray.exceptions
        if isinstance(error, of.LocalRayletDiedError | of.RaySystemError | of.TaskCancelledError | CancelledError):
            raise _Gone(str(error)) from error
        return False


def _head_of(ray: Any) -> tuple[str, int] | None:  # noqa: ANN401 - Ray may be absent
    """Where the control service of the cluster listens; None where a proxy connects this process with it."""
    try:
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        return (host, int(port)) if host else None
    except (AttributeError, ValueError):
        return None


class _Dask:
    """A Dask cluster, by its client."""

    def __init__(self, client: Any, plan: bytes | str) -> None:  # noqa: ANN401 - Dask may be absent
        if getattr(client, "asynchronous", False):
            raise TypeError("executor: a Dask client that is not asynchronous")
        self._distributed: Any = need("distributed", "dask")
        self._client = client
        self._plan = plan
        self._run = uuid.uuid4().hex[:8]
        self._remote: list[Any] = []
        self._lost_since: float | None = None
        self._asked = 0.0
        self._workers: int | None = None
        self.name = f"Dask at {client.scheduler.address if client.scheduler else 'no scheduler'}"

    def submit(self, index: int) -> Future[Answer]:
        key = f"sluicenet-{self._run}-{len(self._remote)}"
        remote = self._client.submit(_work.cell, _work.build(), self._plan, index, key=key, pure=False)
        self._remote.append(remote)
        future: Future[Answer] = Future()
        remote.add_done_callback(partial(_pass_on, future))
        return future

    def cancel(self) -> None:
        if self._client.status == "running":
            self._client.cancel(self._remote, force=True)

    def check(self) -> None:
        status = self._client.status
        if status == "running":
            self._lost_since = None
            return
        now = time.monotonic()
        self._lost_since = now if self._lost_since is None else self._lost_since
        if status in ("closed", "closing") or now - self._lost_since > _DASK_LOST_S:
            raise _Gone(f"its scheduler does not answer (the client is {status})")

    def workers(self) -> int | None:
        now = time.monotonic()
        if self._client.status == "running" and now - self._asked > _ASK_INTERVAL_S:
            self._asked = now
            try:
                self._workers = len(self._client.nthreads())
            except OSError:
                self._workers = None
        return self._workers

    def is_final(self, error: BaseException) -> bool:
        if isinstance(error, CancelledError):
            raise _Gone(str(error) or "it cancelled the runs") from error
        # Dask starts a task again by itself, `distributed.scheduler.allowed-failures` times.
        return isinstance(error, self._distributed.KilledWorker)


def _pass_on(future: Future[Answer], remote: Any) -> None:  # noqa: ANN401 - Dask may be absent
    """Makes Dask's future one of the standard library's."""
    if remote.status == "cancelled":
        future.set_exception(CancelledError("cancelled, or the connection to the scheduler is lost"))
        return
    try:
        error = remote.exception()
        if error is None:
            future.set_result(remote.result())
        else:
            future.set_exception(error)
    except BaseException as e:
        future.set_exception(e)


def _pool(executor: object, plan: bytes | str, threads: int) -> _Pool:
    """The executor as a sweep uses it."""
    if isinstance(executor, Executor):
        return _Standard(executor, plan)
    module = executor.__name__ if isinstance(executor, ModuleType) else type(executor).__module__
    package = module.split(".")[0]
    if package == "ray":
        return _Ray(plan, threads)
    if package in ("distributed", "dask_jobqueue", "dask_kubernetes", "dask_cuda"):
        client = executor.get_client() if hasattr(executor, "get_client") else executor
        return _Dask(client, plan)
    kinds = "a Dask client, the module ray, what ray.init() returned, or a concurrent.futures.Executor"
    raise TypeError(f"executor: {kinds}, not {type(executor).__name__}")


def run(
    executor: object,
    loaded: _native.Scenario,
    jobs: Sequence[_native.Job],
    seeds: list[int] | None,
    threads: int,
    root: Path,
    todo: Sequence[int],
    shared: bool,
    done: Callable[[int, Answer], None],
    tick: Callable[[int | None], None],
) -> None:
    """Runs the jobs of `todo` in this order; calls `done` for each that ended, and `tick` often, with the workers.

    Raises:
        ClusterError: The cluster is gone, has another version, does not see `root`, or workers died too often.
        SluicenetError: A worker's own: a full disk, a variant that cannot be built.
    """
    plan = Plan(
        loaded.source,
        loaded.file,
        str(loaded.folder.absolute()),
        loaded.overrides,
        loaded.inputs(),
        seeds,
        threads,
        str(root.absolute()) if shared else None,
    ).packed()
    mark = root.absolute() / f".sweep-{uuid.uuid4().hex[:12]}.tmp"
    if shared:
        _write(mark, plan)
    try:
        pool = _pool(executor, str(mark) if shared else plan, threads)
        try:
            _run(pool, jobs, root, todo, done, tick)
        except _Gone as e:
            raise ClusterError(f"{pool.name} is gone: {e}") from e
        except BaseException:
            pool.cancel()
            raise
    finally:
        mark.unlink(missing_ok=True)


def _run(
    pool: _Pool,
    jobs: Sequence[_native.Job],
    root: Path,
    todo: Sequence[int],
    done: Callable[[int, Answer], None],
    tick: Callable[[int | None], None],
) -> None:
    ended: queue.SimpleQueue[tuple[int, Future[Answer]]] = queue.SimpleQueue()
    tries = dict.fromkeys(todo, 0)
    lost: list[str] = []
    lonely = _Lonely(pool.name)

    def start(index: int) -> None:
        tries[index] += 1
        pool.submit(index).add_done_callback(lambda future: ended.put((index, future)))

    for index in todo:
        start(index)
    waiting = len(tries)
    while waiting:
        workers = pool.workers()
        tick(workers)
        lonely.look(workers)
        try:
            index, future = ended.get(timeout=_LOOK_INTERVAL_S)
        except queue.Empty:
            pool.check()
            continue
        if (error := _error(future)) is None:
            answer = future.result()
            if answer.error is not None:
                raise answer.error
            if answer.files is not None:
                _keep(root / jobs[index].folder, answer.files)
            done(index, answer)
        elif isinstance(error, ImportError | AttributeError):
            raise ClusterError(f"{pool.name}: a worker has no sluicenet {_work.build()}: {error}") from error
        elif not pool.is_final(error) and tries[index] < TRIES:
            start(index)
            continue
        else:
            why = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
            lost.append(f"{root / jobs[index].folder}: its worker died in every try ({type(error).__name__}: {why})")
        waiting -= 1
    if lost:
        more = f", and so did those of {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ClusterError(f"{lost[0]}{more}")


def _error(future: Future[Answer]) -> BaseException | None:
    return CancelledError("cancelled") if future.cancelled() else future.exception()


class _Lonely:
    """Says once that there is no worker."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._since: float | None = None
        self._is_told = False

    def look(self, workers: int | None) -> None:
        if workers != 0:
            self._since = None
            return
        self._since = time.monotonic() if self._since is None else self._since
        if not self._is_told and time.monotonic() - self._since > _LONELY_S:
            self._is_told = True
            warnings.warn(f"{self._name} has no worker; the sweep waits for one", RuntimeWarning, stacklevel=2)


def _keep(folder: Path, files: dict[str, bytes]) -> None:
    """Writes a result that came back; its manifest last, which makes it complete."""
    last = "manifest.json"
    for name in sorted(files, key=lambda name: name == last):
        _write(folder / name, files[name])


def _write(path: Path, content: bytes) -> None:
    """Writes a file so that its name holds all of it or nothing."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise RecordError(f"{path}: cannot write: {e.strerror}", path) from e
