"""Fields of log records: ``extra`` of the standard logging.

The text of a record has the same facts, for formatters that do not show the fields. Fields have
these names in all records.

=============  ======================================================================
actor          the path of the actor that it is about, such as ``"/device-0/context"``
device         the device's name, such as ``"cuda:0"``
generation     of the device
lane           the lane of a device
op             the op that is suspected, such as ``"blas.gemm"``
status         the driver's status code, or a host's exit code; ``status_name`` names it
library        of whose call the error is; ``call`` names the function
report         of a fault: ``FaultReport.to_json()``
=============  ======================================================================
"""

from __future__ import annotations

from typing import Any, Final

FIELDS: Final = (
    "actor",
    "device",
    "generation",
    "lane",
    "op",
    "status",
    "status_name",
    "library",
    "call",
    "report",
)
"""All fields, in the order in which they are shown."""

Field = str | int


def fields(error: BaseException | None = None, **known: Field | None) -> dict[str, Field]:
    """The fields of a record.

    Args:
        error: the error of the record. Its attributes with these names become fields.
        **known: other fields, which take precedence; None leaves a field out.
    """
    told = {name: getattr(error, name, None) for name in FIELDS} if error is not None else {}
    report: Any = told.get("report")
    if hasattr(report, "to_json"):  # any error may have a field of that name
        told["report"] = report.to_json()
    told.update({name: value for name, value in known.items() if value is not None})
    return {name: value for name, value in told.items() if isinstance(value, (str, int))}
