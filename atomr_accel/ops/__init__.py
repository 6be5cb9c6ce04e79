"""The seam for authors of libraries: facades, ops, requests, lanes and checks of arguments.

This package runs in the program. Hosts import ``executors`` and ``wire`` instead.
"""

from ._arguments import BLOCK_ALIGNMENT, alignment, not_contiguous, overlap, require_alignment, require_dtype, require_int32, require_no_alias, require_no_race, require_rank, require_readable, require_ref, require_shape, require_writable, same_place, strided
from ._copies import ARRAY_LANE, ARRAY_WAITS, copying
from ._library import Home, LaneSpec
from ._merged import LARGEST_ITEM, merged
from ._op import Awaited, Collected, D, Described, Facade, Identity, op
from ._origin import name_of, require_made_on
from ._request import Answered, Driver, FirstTry, Keeper, Pending, Preparing, Request, Submission, TracedDriver, perform, result, submit
from ._staging import has_views, on_any_views, on_copies
from ._traces import Trace, Untraceable, picker, signature
from ._witness import Witness, witnessed
from ._workspaces import TOGETHER, WorkspaceSet, WorkspaceStatistics, Workspaces

__all__ = [
    "ARRAY_LANE",
    "ARRAY_WAITS",
    "Answered",
    "Awaited",
    "BLOCK_ALIGNMENT",
    "Collected",
    "D",
    "Described",
    "Driver",
    "Facade",
    "FirstTry",
    "Home",
    "Identity",
    "Keeper",
    "LARGEST_ITEM",
    "LaneSpec",
    "Pending",
    "Preparing",
    "Request",
    "Submission",
    "TOGETHER",
    "Trace",
    "TracedDriver",
    "Untraceable",
    "Witness",
    "WorkspaceSet",
    "WorkspaceStatistics",
    "Workspaces",
    "alignment",
    "copying",
    "has_views",
    "merged",
    "name_of",
    "not_contiguous",
    "on_any_views",
    "on_copies",
    "op",
    "overlap",
    "perform",
    "picker",
    "require_alignment",
    "require_dtype",
    "require_int32",
    "require_made_on",
    "require_no_alias",
    "require_no_race",
    "require_rank",
    "require_readable",
    "require_ref",
    "require_shape",
    "require_writable",
    "result",
    "same_place",
    "signature",
    "strided",
    "submit",
    "witnessed",
]
