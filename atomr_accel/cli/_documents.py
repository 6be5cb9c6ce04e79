"""What ``--json`` prints: one object for each command, whose ``document`` says which.

Times are seconds and sizes are bytes, unless a name says otherwise. Within a release of the
package attributes may be added, and are never removed nor renamed.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document."""


class Document(Part, frozen=True, kw_only=True, tag_field="document"):
    """Base of what is printed."""


class ErrorDocument(Document, frozen=True, kw_only=True, tag="error"):
    """Instead of any other, where a command could not be done.

    Attributes:
        command: which; empty where there is none of that name.
        message: why, and what to do.
        exit_code: what it exits with.
    """

    command: str
    message: str
    exit_code: int


# --- probe ---------------------------------------------------------------------------------


class DriverPart(Part, frozen=True, kw_only=True):
    """A GPU driver.

    Attributes:
        version: its own, such as ``"580.65.06"``; None where it does not say.
        cuda: the newest CUDA it can do, such as ``"13.0"``; None without a driver.
        problem: why it cannot be used; None if it can.
    """

    version: str | None
    cuda: str | None
    problem: str | None


class GpuPart(Part, frozen=True, kw_only=True):
    """A GPU, as its driver tells.

    Attributes:
        index: as CUDA counts.
        name: the vendor's.
        memory: bytes.
        compute_capability: such as ``"9.0"``.
        compute_mode: ``"default"``, ``"exclusive-process"`` or ``"prohibited"``.
        mig: whether it is divided, or a part of one that is; None if that cannot be told.
    """

    index: int
    name: str
    memory: int
    compute_capability: str
    compute_mode: str
    mig: bool | None = None


class LibraryPart(Part, frozen=True, kw_only=True):
    """A library or package that is of use.

    Attributes:
        name: of the package, or of the vendor's library.
        use: what it is for.
        version: what it says; None if it is missing.
        path: where a vendor's library was found.
        extra: the extra of atomr-accel that brings it; None for what is required anyway.
        problem: why it cannot be used; None if it can, or nobody wants it.
    """

    name: str
    use: str
    version: str | None
    path: str | None = None
    extra: str | None = None
    problem: str | None = None


class CheckPart(Part, frozen=True, kw_only=True):
    """A library computed something, which was compared with NumPy.

    Attributes:
        device: such as ``"cuda:0"``.
        library: such as ``"blas"``.
        what: what was computed.
        outcome: ``"ok"``, ``"wrong"`` (beyond the tolerance), ``"missing"`` (not installed),
            ``"unsupported"``, or ``"failed"``.
        error: the largest deviation, in units of the largest element; None without a result.
        tolerance: what it may be.
        seconds: how long it took, with all that had to be loaded.
        detail: what went wrong; None if nothing did.
    """

    device: str
    library: str
    what: str
    outcome: Literal["ok", "wrong", "missing", "unsupported", "failed"]
    error: float | None
    tolerance: float
    seconds: float
    detail: str | None = None


class OpenedPart(Part, frozen=True, kw_only=True):
    """A device that was to be opened.

    Attributes:
        device: such as ``"cuda:0"``.
        opened: whether it could be.
        seconds: how long that took.
        problem: why it could not be.
    """

    device: str
    opened: bool
    seconds: float
    problem: str | None = None


class ProbeDocument(Document, frozen=True, kw_only=True, tag="probe"):
    """What ``probe`` has found.

    Attributes:
        version: of atomr_accel.
        python: its version.
        platform: the system.
        driver: the GPU driver.
        gpus: what it drives.
        backends: names of the backends that are installed.
        libraries: what is installed and what is missing.
        devices: which devices could be opened.
        checks: what they have computed.
        advice: what to install or change.
        ok: whether a device could be opened, and no check was wrong, missing or failed.
    """

    version: str
    python: str
    platform: str
    driver: DriverPart
    gpus: list[GpuPart]
    backends: list[str]
    libraries: list[LibraryPart]
    devices: list[OpenedPart]
    checks: list[CheckPart]
    advice: list[str]
    ok: bool


# --- doctor --------------------------------------------------------------------------------

Level = Literal["ok", "note", "warning", "problem"]


class FindingPart(Part, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        name: what.
        level: ``"problem"`` stops programs, ``"warning"`` will under load or is slow, ``"note"``
            is good to know, ``"ok"`` is as it should be.
        found: what there is.
        advice: what to do; empty where nothing is to be done.
    """

    name: str
    level: Level
    found: str
    advice: str = ""


class DoctorDocument(Document, frozen=True, kw_only=True, tag="doctor"):
    """What ``doctor`` has found.

    Attributes:
        findings: one for each thing that was looked at.
        ok: whether there is no problem (with ``--strict``: no warning either).
    """

    findings: list[FindingPart]
    ok: bool


# --- top -----------------------------------------------------------------------------------


class HardwarePart(Part, frozen=True, kw_only=True):
    """A GPU, as NVML tells; what it does not tell is None.

    Attributes:
        index: as NVML counts.
        name: the vendor's.
        utilisation: percent of the time in which a kernel ran.
        memory_used: bytes.
        memory_total: bytes.
        watts: power.
        celsius: temperature.
        throttled: why its clocks are held down, by NVML's names.
    """

    index: int
    name: str
    utilisation: int | None
    memory_used: int | None
    memory_total: int | None
    watts: float | None
    celsius: int | None
    throttled: list[str] = []


class ProgramPart(Part, frozen=True, kw_only=True):
    """A running program with a dashboard.

    Attributes:
        pid: its process.
        url: where its page is, without the token.
        state: what ``GET /state`` of the page answers; the dashboard's page documents it.
    """

    pid: int
    url: str
    state: dict[str, Any]


class TopDocument(Document, frozen=True, kw_only=True, tag="top"):
    """What ``top --once`` has seen.

    Attributes:
        time: seconds since the epoch.
        programs: those that were looked at.
        hardware: the GPUs of the machine; empty without NVML.
    """

    time: float
    programs: list[ProgramPart]
    hardware: list[HardwarePart]


# --- bench ---------------------------------------------------------------------------------


class RivalPart(Part, frozen=True, kw_only=True):
    """What a rival took.

    Attributes:
        name: ``"numpy"``, ``"torch"`` or ``"cupy"``.
        seconds: the median.
        ratio: our median by it: below 1, we are faster.
    """

    name: str
    seconds: float
    ratio: float


class MeasurementPart(Part, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        name: such as ``"gemm"``.
        what: what was done, with its sizes.
        seconds: the median; None with ``--list``, which measures nothing.
        least: the shortest; likewise.
        most: the longest; likewise.
        rate: how much in a second, in ``unit``; likewise.
        unit: such as ``"GFLOP/s"``.
        rivals: the same by others.
    """

    name: str
    what: str
    seconds: float | None
    least: float | None
    most: float | None
    rate: float | None
    unit: str
    rivals: list[RivalPart]


class BenchDocument(Document, frozen=True, kw_only=True, tag="bench"):
    """What ``bench`` has measured.

    Attributes:
        version: of atomr_accel.
        device: such as ``"cuda:0"``; None with ``--list``.
        repeats: how often each was taken; None with ``--list``.
        rivals: versions of those that are installed, by name.
        left_out: why others were not measured, by name.
        measurements: in their order.
    """

    version: str
    device: str | None
    repeats: int | None
    rivals: dict[str, str]
    left_out: dict[str, str]
    measurements: list[MeasurementPart]


# --- trace and dashboard -------------------------------------------------------------------


class TraceDocument(Document, frozen=True, kw_only=True, tag="trace"):
    """What ``trace`` has written. The program prints where it likes.

    Attributes:
        program: what was run.
        files: timelines that were written, one for each system that may have devices.
        exit_code: the program's.
        problem: why others could not be written; None if all were.
    """

    program: str
    files: list[str]
    exit_code: int
    problem: str | None


class DashboardDocument(Document, frozen=True, kw_only=True, tag="dashboard"):
    """What ``dashboard`` has shown.

    Attributes:
        program: what was run.
        urls: pages that were open, without their tokens.
        exit_code: the program's.
    """

    program: str
    urls: list[str]
    exit_code: int


# --- cache ---------------------------------------------------------------------------------


class KindPart(Part, frozen=True, kw_only=True):
    """What is kept of one kind.

    Attributes:
        kind: its name, for ``cache clear KIND``.
        use: what it is for.
        folder: where it is.
        ours: whether it is this package's; what is not is neither verified nor cleared.
        files: how many.
        nbytes: of all of them.
        damaged: how many do not hold what they should; None where that was not looked at.
        removed: how many were removed, or would be with ``--dry-run``.
        problem: why it is not used; None if it is.
    """

    kind: str
    use: str
    folder: str
    ours: bool
    files: int
    nbytes: int
    damaged: int | None = None
    removed: int = 0
    problem: str | None = None


class CacheDocument(Document, frozen=True, kw_only=True, tag="cache"):
    """What ``cache`` has found or done.

    Attributes:
        action: ``"list"``, ``"verify"`` or ``"clear"``.
        folder: where this package keeps things; None if it keeps nothing.
        kinds: what there is.
        dry_run: whether nothing was removed.
        ok: whether nothing is damaged, and all that was to be removed is gone.
    """

    action: str
    folder: str | None
    kinds: list[KindPart]
    dry_run: bool
    ok: bool


# --- stress --------------------------------------------------------------------------------


class StressDocument(Document, frozen=True, kw_only=True, tag="stress"):
    """What ``stress`` has seen.

    Attributes:
        device: such as ``"cpu:0"``.
        isolation: ``"process"`` or ``"thread"``.
        seed: of data, faults and waits.
        seconds: how long it ran.
        rounds: results that were checked.
        wrong: those that were not right.
        broken: rounds that a fault has ended, and that were done again.
        unexpected: errors that no fault explains, in words, the first few.
        faults: how many there were, by kind.
        recoveries: seconds from each fault to the next right result.
        sealed_intact: whether sealed buffers held what they should at the end.
        leaked_bytes: device memory in use at the end that was not at the beginning.
        leaked_descriptors: the same of file descriptors.
        verdict: ``"sound"`` or ``"unsound"``.
        reasons: why it is unsound.
    """

    device: str
    isolation: str
    seed: int
    seconds: float
    rounds: int
    wrong: int
    broken: int
    unexpected: list[str]
    faults: dict[str, int]
    recoveries: list[float]
    sealed_intact: bool
    leaked_bytes: int
    leaked_descriptors: int
    verdict: Literal["sound", "unsound"]
    reasons: list[str]


DOCUMENTS: Final[dict[str, type[Document]]] = {
    "bench": BenchDocument,
    "cache": CacheDocument,
    "dashboard": DashboardDocument,
    "doctor": DoctorDocument,
    "probe": ProbeDocument,
    "stress": StressDocument,
    "top": TopDocument,
    "trace": TraceDocument,
}
"""The document of each command; any may print an ``ErrorDocument`` instead."""


def encoded(document: Document, *, in_a_line: bool = False) -> bytes:
    """A document as JSON and a newline; indented, unless it is to be in a line."""
    try:
        text = msgspec.json.encode(document)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_encodable(msgspec.to_builtins(document)))
    return (text if in_a_line else msgspec.json.format(text, indent=2)) + b"\n"


def _encodable(value: object) -> object:
    """Names may hold bytes that are no UTF-8, as lone surrogates: these are written out."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    if isinstance(value, dict):
        return {str(_encodable(key)): _encodable(each) for key, each in value.items()}
    return value


def decoded(command: str, data: bytes | str) -> Document:
    """What a command has printed, checked against its schema.

    Raises:
        msgspec.ValidationError: it is no such document.
    """
    return msgspec.json.decode(data, type=DOCUMENTS[command] | ErrorDocument)


def schema(command: str) -> str:
    """The JSON Schema of what a command prints."""
    made = msgspec.json.schema(DOCUMENTS[command] | ErrorDocument)
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"
