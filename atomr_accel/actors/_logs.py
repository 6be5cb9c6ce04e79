"""What log records have beside their text: ``extra`` of the standard logging.

Formatters that know nothing of it show the text, which says the same to people. The fields are for
machines, of one name wherever they occur:

=============  ======================================================================
actor          the path of the actor that it is about, such as ``"/gpu-0/context"``
device         the device's name, such as ``"cuda:0"``
generation     of the device
lane           the lane of a device
op             the op that is suspected, such as ``"blas.gemm"``
status         the driver's status code, or a host's exit code; ``status_name`` names it
library        of whose call the error is; ``call`` names the function
=============  ======================================================================
"""

from __future__ import annotations

from typing import Final

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
)
"""All fields, in the order in which they are shown."""

Field = str | int


def fields(error: BaseException | None = None, **known: Field | None) -> dict[str, Field]:
    """The fields of a record.

    Args:
        error: what it is about; what that tells by attributes of these names is a field.
        **known: others, which come first; those that are None are not known.
    """
    told = {name: getattr(error, name, None) for name in FIELDS} if error is not None else {}
    told.update({name: value for name, value in known.items() if value is not None})
    return {name: value for name, value in told.items() if isinstance(value, (str, int))}
