"""The seam for authors of libraries: facades, ops, requests, lanes and checks of arguments.

This package runs in the program. Hosts import ``executors`` and ``wire`` instead.
"""

from ..wire.recent import CacheStatistics, Recent
from ._arguments import (
    BLOCK_ALIGNMENT,
    alignment,
    not_contiguous,
    overlap,
    require_alignment,
    require_dtype,
    require_int32,
    require_no_alias,
    require_no_race,
    require_rank,
    require_readable,
    require_ref,
    require_shape,
    require_writable,
    same_place,
    strided,
    with_tf32,
)
from ._call_template import CallTemplate, picker
from ._copies import ARRAY_LANE, ARRAY_WAITS, copying
from ._descriptor import Library, LibraryCheck, Requirement
from ._library import AsRequests, Awaited, Collected, D, DeviceView, LaneSpec, Transfers
from ._merged import LARGEST_ITEM, merged
from ._op import Facade, Identity, RequestsOnly, op, op_family
from ._operation import DeclaredOp, op_of
from ._origin import require_home, require_made_on
from ._perform import ImmediatePreparer, perform, result, submit
from ._request import (
    Answered,
    DurableRoom,
    HostObjects,
    Pending,
    Preparer,
    Preparing,
    Request,
    Submission,
    TemplatePreparer,
)
from ._signatures import HoldsRefs, signature
from ._staging import STAGED, needs_staging, on_any_views, on_copies
from ._template_maker import NoTemplate, UndeclaredAddress
from ._templates import CallTemplates
from ._witness import CallRecorder, recorded_call
from ._workspaces import TOGETHER, Workspaces, WorkspaceSet, WorkspaceStatistics

__all__ = [
    "ARRAY_LANE",
    "ARRAY_WAITS",
    "BLOCK_ALIGNMENT",
    "LARGEST_ITEM",
    "STAGED",
    "TOGETHER",
    "Answered",
    "AsRequests",
    "Awaited",
    "CacheStatistics",
    "CallRecorder",
    "CallTemplate",
    "CallTemplates",
    "Collected",
    "D",
    "DeclaredOp",
    "DeviceView",
    "DurableRoom",
    "Facade",
    "HoldsRefs",
    "HostObjects",
    "Identity",
    "ImmediatePreparer",
    "LaneSpec",
    "Library",
    "LibraryCheck",
    "NoTemplate",
    "Pending",
    "Preparer",
    "Preparing",
    "Recent",
    "Request",
    "RequestsOnly",
    "Requirement",
    "Submission",
    "TemplatePreparer",
    "Transfers",
    "UndeclaredAddress",
    "WorkspaceSet",
    "WorkspaceStatistics",
    "Workspaces",
    "alignment",
    "copying",
    "merged",
    "needs_staging",
    "not_contiguous",
    "on_any_views",
    "on_copies",
    "op",
    "op_family",
    "op_of",
    "overlap",
    "perform",
    "picker",
    "recorded_call",
    "require_alignment",
    "require_dtype",
    "require_home",
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
    "with_tf32",
]
