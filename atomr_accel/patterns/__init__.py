"""Patterns of serving, between requests and the functions that answer them.

Each is opened as ``async with open_...(function, ...) as name:`` and called as
``await name(item)``. Every request is answered exactly once: with its result, its own error, or a
refusal that says why. Cancelling a caller withdraws its request, and a request that no task waits
for is not carried out. Deadlines are the callers' scopes, and waits are on trio's clock.
"""

from ..actors import Overflow
from ..actors.policies import LeastLoaded, PowerOfTwo, RoundRobin
from ._batcher import Batcher, BatcherStatistics, open_batcher
from ._cached_text import CachedText, Prefill
from ._cascade import (
    Cascade,
    CascadeAnswer,
    CascadeStage,
    CascadeStageStatistics,
    CascadeStatistics,
    open_cascade,
)
from ._draft_length import AdaptiveLength
from ._drafts import Draft, DraftText, LookupDraft, ModelDraft, NGramDraft
from ._ensemble import Ensemble, EnsembleStatistics, open_ensemble
from ._errors import (
    CircuitOpen,
    Closed,
    Dropped,
    MalformedStream,
    Overloaded,
    PatternError,
    QuorumMissed,
    RankFailed,
    Refused,
    ReplicaLost,
    RolledBack,
    SwapInProgress,
    WrongResults,
)
from ._fair_share import (
    FairServer,
    FairShare,
    FairShareStatistics,
    Slot,
    TenantStatistics,
    open_fair_share,
)
from ._gate import Gate, Shadow
from ._halving import is_for_one
from ._hot_swap import (
    HotSwap,
    HotSwapStatistics,
    SwapState,
    VersionRole,
    VersionStatistics,
    open_hot_swap,
)
from ._members import is_for_member
from ._observer import Observer
from ._pipeline import (
    Pipeline,
    PipelineRun,
    PipelineStatistics,
    Stage,
    StageStatistics,
    open_pipeline,
)
from ._pool import ReplicaPool, ReplicaPoolStatistics, open_replica_pool, usual_breaker
from ._queue import by_length
from ._replicas import (
    Hedge,
    Policy,
    Replica,
    ReplicaState,
    ReplicaStatistics,
)
from ._retry import (
    CircuitBreaker,
    CircuitState,
    CircuitStatistics,
    Retry,
    RetryBudget,
    is_device_fault,
    is_transient,
)
from ._sampling import DraftTree, Logits, Probabilities, Sampling, Tokens
from ._shares import Budget, Shares, WaitingRequest
from ._speculative import (
    Generation,
    SpeculativeDecoder,
    SpeculativeStatistics,
    open_speculative,
)
from ._streams import receive_frames, receive_lines, send_frames, send_lines
from ._verdict import Verdict, draw_token, judge_chain
from .moe._exchange import DeviceCopies, Exchange
from .moe._experts import MoeWeights
from .moe._gating import Gating, Routing, route
from .moe._layer import mixture_of_experts
from .moe._server import Moe, MoeStatistics, open_moe

__all__ = [
    "AdaptiveLength",
    "Batcher",
    "BatcherStatistics",
    "Budget",
    "CachedText",
    "Cascade",
    "CascadeAnswer",
    "CascadeStage",
    "CascadeStageStatistics",
    "CascadeStatistics",
    "CircuitBreaker",
    "CircuitOpen",
    "CircuitState",
    "CircuitStatistics",
    "Closed",
    "DeviceCopies",
    "Draft",
    "DraftText",
    "DraftTree",
    "Dropped",
    "Ensemble",
    "EnsembleStatistics",
    "Exchange",
    "FairServer",
    "FairShare",
    "FairShareStatistics",
    "Gate",
    "Gating",
    "Generation",
    "Hedge",
    "HotSwap",
    "HotSwapStatistics",
    "LeastLoaded",
    "Logits",
    "LookupDraft",
    "MalformedStream",
    "ModelDraft",
    "Moe",
    "MoeStatistics",
    "MoeWeights",
    "NGramDraft",
    "Observer",
    "Overflow",
    "Overloaded",
    "PatternError",
    "Pipeline",
    "PipelineRun",
    "PipelineStatistics",
    "Policy",
    "PowerOfTwo",
    "Prefill",
    "Probabilities",
    "QuorumMissed",
    "RankFailed",
    "Refused",
    "Replica",
    "ReplicaLost",
    "ReplicaPool",
    "ReplicaPoolStatistics",
    "ReplicaState",
    "ReplicaStatistics",
    "Retry",
    "RetryBudget",
    "RolledBack",
    "RoundRobin",
    "Routing",
    "Sampling",
    "Shadow",
    "Shares",
    "Slot",
    "SpeculativeDecoder",
    "SpeculativeStatistics",
    "Stage",
    "StageStatistics",
    "SwapInProgress",
    "SwapState",
    "TenantStatistics",
    "Tokens",
    "Verdict",
    "VersionRole",
    "VersionStatistics",
    "WaitingRequest",
    "WrongResults",
    "by_length",
    "draw_token",
    "is_device_fault",
    "is_for_member",
    "is_for_one",
    "is_transient",
    "judge_chain",
    "mixture_of_experts",
    "open_batcher",
    "open_cascade",
    "open_ensemble",
    "open_fair_share",
    "open_hot_swap",
    "open_moe",
    "open_pipeline",
    "open_replica_pool",
    "open_speculative",
    "receive_frames",
    "receive_lines",
    "route",
    "send_frames",
    "send_lines",
    "usual_breaker",
]
