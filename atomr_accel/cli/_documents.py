"""Documents that ``--json`` prints: one object per command, named by its ``document`` field.

Times are seconds and sizes are bytes, unless a name says otherwise. Within a release of the package
attributes may be added, and are never removed nor renamed.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from .._reports import FaultReport


class DocumentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document."""


class Document(DocumentPart, frozen=True, kw_only=True, tag_field="document"):
    """Base of printed documents."""


class ErrorDocument(Document, frozen=True, kw_only=True, tag="error"):
    """Document of a command that failed, instead of its own document.

    Attributes:
        command: the command; empty if the word is unknown.
        message: the reason, and the remedy.
        exit_code: the exit code.
    """

    command: str
    message: str
    exit_code: int


# --- probe ---------------------------------------------------------------------------------


class DriverPart(DocumentPart, frozen=True, kw_only=True):
    """A GPU driver.

    Attributes:
        version: its version, such as ``"580.65.06"``; None if it does not report one.
        cuda: the newest CUDA version it supports, such as ``"13.0"``; None without a driver.
        problem: the reason why it cannot be used; None if it can.
    """

    version: str | None
    cuda: str | None
    problem: str | None


class GpuPart(DocumentPart, frozen=True, kw_only=True):
    """A GPU, as its driver reports it.

    Attributes:
        index: CUDA's index.
        name: the vendor's name.
        memory: bytes.
        compute_capability: such as ``"9.0"``.
        compute_mode: ``"default"``, ``"exclusive-process"`` or ``"prohibited"``.
        mig: whether it is divided, or a part of a divided one; None if unknown.
    """

    index: int
    name: str
    memory: int
    compute_capability: str
    compute_mode: str
    mig: bool | None = None


class LibraryPart(DocumentPart, frozen=True, kw_only=True):
    """A useful library or package.

    Attributes:
        name: the name of the package, or of the vendor's library.
        use: its purpose.
        version: its version; None if it is missing.
        path: the file of a vendor's library.
        extra: the extra of atomr-accel-trio that installs it; None for required packages.
        problem: the reason why it cannot be used; None if it can, or if it is optional.
    """

    name: str
    use: str
    version: str | None
    path: str | None = None
    extra: str | None = None
    problem: str | None = None


class CheckPart(DocumentPart, frozen=True, kw_only=True):
    """A result of a library, compared with NumPy's.

    Attributes:
        device: such as ``"cuda:0"``.
        library: such as ``"blas"``.
        what: a description of the computation.
        outcome: ``"ok"``, ``"wrong"`` (beyond the tolerance), ``"missing"`` (not installed),
            ``"unsupported"``, or ``"failed"``.
        error: the largest deviation, in units of the largest element; None without a result.
        tolerance: the largest allowed deviation.
        seconds: the duration, including the time to load the library.
        detail: the reason of a failure; None without one.
    """

    device: str
    library: str
    what: str
    outcome: Literal["ok", "wrong", "missing", "unsupported", "failed"]
    error: float | None
    tolerance: float
    seconds: float
    detail: str | None = None


class OpenedPart(DocumentPart, frozen=True, kw_only=True):
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
    """Findings of ``probe``.

    Attributes:
        version: the version of atomr_accel.
        python: the version of Python.
        platform: the system.
        driver: the GPU driver.
        gpus: the GPUs of the driver.
        backends: the names of the installed backends.
        libraries: installed and missing libraries.
        devices: the devices, and whether they could be opened.
        checks: the results of computations on them.
        advice: steps to install or change something.
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


class FindingPart(DocumentPart, frozen=True, kw_only=True):
    """A finding about one aspect of the machine.

    Attributes:
        name: the aspect.
        level: ``"problem"`` stops programs, ``"warning"`` will under load or is slow, ``"note"`` is
            good to know, ``"ok"`` needs no action.
        found: the present state.
        advice: the remedy; empty if there is nothing to do.
    """

    name: str
    level: Level
    found: str
    advice: str = ""


class DoctorDocument(Document, frozen=True, kw_only=True, tag="doctor"):
    """Findings of ``doctor``.

    Attributes:
        findings: one for each aspect.
        ok: whether all is free of problems (with ``--strict``, of warnings too).
    """

    findings: list[FindingPart]
    ok: bool


# --- libraries -----------------------------------------------------------------------------


class LibraryRow(DocumentPart, frozen=True, kw_only=True):
    """A library of devices.

    Attributes:
        name: its name, as an attribute of a device.
        summary: its purpose.
        package: the package that brings it, or its entry point.
        lanes: its lanes.
        backends: the backends that it has executors for.
        extras: the extras that it needs.
    """

    name: str
    summary: str
    package: str
    lanes: list[str]
    backends: list[str]
    extras: list[str]


class LibrariesDocument(Document, frozen=True, kw_only=True, tag="libraries"):
    """The libraries that ``libraries`` lists.

    Attributes:
        libraries: one row for each.
    """

    libraries: list[LibraryRow]


# --- top -----------------------------------------------------------------------------------


class HardwarePart(DocumentPart, frozen=True, kw_only=True):
    """A GPU, as NVML reports it; unknown values are None.

    Attributes:
        index: NVML's index.
        name: the vendor's name.
        utilisation: percent of the time in which a kernel ran.
        memory_used: bytes.
        memory_total: bytes.
        watts: power.
        celsius: temperature.
        throttled: the reasons for lowered clocks, by NVML's names.
    """

    index: int
    name: str
    utilisation: int | None
    memory_used: int | None
    memory_total: int | None
    watts: float | None
    celsius: int | None
    throttled: list[str] = []


class ProgramPart(DocumentPart, frozen=True, kw_only=True):
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
    """Observations of ``top --once``.

    Attributes:
        time: seconds since the epoch.
        programs: the observed programs.
        hardware: the GPUs of the machine; empty without NVML.
    """

    time: float
    programs: list[ProgramPart]
    hardware: list[HardwarePart]


# --- bench ---------------------------------------------------------------------------------


class RivalPart(DocumentPart, frozen=True, kw_only=True):
    """Time of a rival.

    Attributes:
        name: ``"numpy"``, ``"torch"`` or ``"cupy"``.
        seconds: the median.
        ratio: our median divided by it; below 1, we are faster.
    """

    name: str
    seconds: float
    ratio: float


class MeasurementPart(DocumentPart, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        name: such as ``"gemm"``.
        what: a description, with the sizes.
        seconds: the median; None with ``--list``, which measures nothing.
        least: the shortest time; None with ``--list``.
        most: the longest time; None with ``--list``.
        rate: the amount of work per second, in ``unit``; None with ``--list``.
        unit: such as ``"GFLOP/s"``.
        rivals: the times of rivals for the same work.
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
    """Measurements of ``bench``.

    Attributes:
        version: the version of atomr_accel.
        device: such as ``"cuda:0"``; None with ``--list``.
        repeats: the number of repeats of each; None with ``--list``.
        threads: the threads that compute on a CPU, for us and for rivals; None on a GPU, and with
            ``--list``.
        rivals: the versions of installed rivals, by name.
        left_out: the reasons why other rivals were not measured, by name.
        measurements: the measurements, in their order.
    """

    version: str
    device: str | None
    repeats: int | None
    threads: int | None
    rivals: dict[str, str]
    left_out: dict[str, str]
    measurements: list[MeasurementPart]


# --- trace and dashboard -------------------------------------------------------------------


class TraceDocument(Document, frozen=True, kw_only=True, tag="trace"):
    """Result of ``trace``. The program's own output is separate.

    Attributes:
        program: the program that ran.
        files: the timelines, one for each system that may have devices.
        exit_code: the program's exit code.
        problem: the reason why further files could not be written; None if all were.
    """

    program: str
    files: list[str]
    exit_code: int
    problem: str | None


class JournalPart(DocumentPart, frozen=True, kw_only=True):
    """Explanation of the fault of a journal.

    Attributes:
        fault: the error that the program got.
        call: the call with the fault.
        last: the calls before it, the latest last.
        minimal: the calls of a short program that faults again.
        program: that program, as Python text.
        trials: the number of programs that were run to find it.
        text: all of it but the program, for people.
    """

    fault: str
    call: str
    last: list[str]
    minimal: list[str]
    program: str
    trials: int
    text: str


class ExplainDocument(Document, frozen=True, kw_only=True, tag="explain"):
    """Result of ``explain``.

    Attributes:
        file: the file that was read.
        reports: the reports of faults in it, in their order.
        journal: the explanation of a journal's fault; None for other files.
    """

    file: str
    reports: list[FaultReport]
    journal: JournalPart | None


class DashboardDocument(Document, frozen=True, kw_only=True, tag="dashboard"):
    """Result of ``dashboard``.

    Attributes:
        program: the program that ran.
        urls: the pages that were open, without their tokens.
        exit_code: the program's exit code.
    """

    program: str
    urls: list[str]
    exit_code: int


# --- cache ---------------------------------------------------------------------------------


class KindPart(DocumentPart, frozen=True, kw_only=True):
    """Files of one kind.

    Attributes:
        kind: its name, for ``cache clear KIND``.
        use: its purpose.
        folder: its folder.
        ours: whether it belongs to this package; other kinds are neither verified nor cleared.
        files: the number of files.
        nbytes: the size of all files.
        damaged: the number of files whose content does not match; None if they were not checked.
        removed: the number of files removed, or that ``--dry-run`` would remove.
        problem: the reason why the kind is not used; None if it is.
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
    """Findings or results of ``cache``.

    Attributes:
        action: ``"list"``, ``"verify"`` or ``"clear"``.
        folder: the folder of this package's files; None if it keeps none.
        kinds: the kinds of files.
        dry_run: whether removal was only simulated.
        ok: whether all files are intact, and all files to remove are gone.
    """

    action: str
    folder: str | None
    kinds: list[KindPart]
    dry_run: bool
    ok: bool


# --- stress --------------------------------------------------------------------------------


class StressDocument(Document, frozen=True, kw_only=True, tag="stress"):
    """Observations of ``stress``.

    Attributes:
        device: such as ``"cpu:0"``.
        isolation: ``"process"`` or ``"thread"``.
        seed: the seed of data, faults and waits.
        seconds: the duration.
        rounds: the number of checked results.
        wrong: the number of wrong results.
        broken: rounds that a fault ended, and that were repeated.
        unexpected: the first few errors that no fault explains, as text.
        faults: the number of faults, by kind.
        recoveries: seconds from each fault to the next right result.
        sealed_intact: whether sealed buffers kept their content to the end.
        leaked_bytes: device memory in use at the end but not at the start.
        leaked_descriptors: file descriptors open at the end but not at the start.
        verdict: ``"sound"`` or ``"unsound"``.
        reasons: the reasons why it is unsound.
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


# --- node ----------------------------------------------------------------------------------


class NodeDocument(Document, frozen=True, kw_only=True, tag="node"):
    """Document of ``node``, printed when it has ended.

    Attributes:
        cluster: the cluster's name; None if certificates were made.
        name: the node's name; None if certificates were made.
        handed: shards that it has handed over.
        dropped: shards whose lease it has lost.
        files: certificates and keys that were written.
    """

    cluster: str | None
    name: str | None
    handed: int
    dropped: int
    files: list[str]


# --- serve ---------------------------------------------------------------------------------


class ServeDocument(Document, frozen=True, kw_only=True, tag="serve"):
    """Document of ``serve``, printed when it has ended.

    Attributes:
        name: the model's name.
        url: the address that it had.
        answered: requests for text that were answered.
        failed: requests that failed by an error of the model or the device.
        faults: steps of the model that failed.
        lost: whether it ended because the device was lost.
    """

    name: str
    url: str
    answered: int
    failed: int
    faults: int
    lost: bool


DOCUMENTS: Final[dict[str, type[Document]]] = {
    "bench": BenchDocument,
    "cache": CacheDocument,
    "dashboard": DashboardDocument,
    "doctor": DoctorDocument,
    "explain": ExplainDocument,
    "libraries": LibrariesDocument,
    "node": NodeDocument,
    "probe": ProbeDocument,
    "serve": ServeDocument,
    "stress": StressDocument,
    "top": TopDocument,
    "trace": TraceDocument,
}
"""The document of each command; any may print an ``ErrorDocument`` instead."""


def encoded(document: Document, *, in_a_line: bool = False) -> bytes:
    """Encode a document as JSON with a newline; indented unless ``in_a_line``."""
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
    """Decode the output of a command, and check it against its schema.

    Raises:
        msgspec.ValidationError: the data does not fit the schema.
    """
    return msgspec.json.decode(data, type=DOCUMENTS[command] | ErrorDocument)


def schema(command: str) -> str:
    """Return the JSON Schema of a command's output."""
    made = msgspec.json.schema(DOCUMENTS[command] | ErrorDocument)
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"
