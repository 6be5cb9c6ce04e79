"""Simulations, filters and structures of data that run on a device and can be watched.

``async with open_fluid(device, (256, 256)) as fluid:`` and then ``await fluid.step(1 / 60)``. Each
simulation survives faults: it continues from its last checkpoint.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._analysis import FrameAnalysis, open_frame_analysis
    from ._checks import SceneParameter
    from ._cloth import Cloth, open_cloth
    from ._effects import Effect, EffectStatistics, open_effect
    from ._films import Film, FilmStatistics, open_film, save_picture
    from ._filters import Border, ColourSpace, Filters
    from ._fluid import Fluid, open_fluid
    from ._frames import FrameScene
    from ._hash_map import HashMap, HashMapStatistics, open_hash_map
    from ._particles import Balls, Liquid, open_balls, open_liquid
    from ._sparse_grid import SparseGrid, open_sparse_grid
    from ._spatial import SpatialIndex, SpatialIndexStatistics
    from ._statistics import FrameStatistics, FrameSummary, open_frame_statistics
    from ._video import BrokenVideo, Video, VideoStatistics, open_video
    from ._viewer import Viewer, ViewerStatistics, open_viewer
    from .simulation import (
        DrawScene,
        Simulation,
        SimulationStatistics,
        StepScene,
        UpdateScene,
        opened,
    )
    from .wire.kernels import KernelSource

__all__ = [
    "Balls",
    "Border",
    "BrokenVideo",
    "Cloth",
    "ColourSpace",
    "DrawScene",
    "Effect",
    "EffectStatistics",
    "Film",
    "FilmStatistics",
    "Filters",
    "Fluid",
    "FrameAnalysis",
    "FrameScene",
    "FrameStatistics",
    "FrameSummary",
    "HashMap",
    "HashMapStatistics",
    "KernelSource",
    "Liquid",
    "SceneParameter",
    "Simulation",
    "SimulationStatistics",
    "SparseGrid",
    "SpatialIndex",
    "SpatialIndexStatistics",
    "StepScene",
    "UpdateScene",
    "Video",
    "VideoStatistics",
    "Viewer",
    "ViewerStatistics",
    "open_balls",
    "open_cloth",
    "open_effect",
    "open_film",
    "open_fluid",
    "open_frame_analysis",
    "open_frame_statistics",
    "open_hash_map",
    "open_liquid",
    "open_sparse_grid",
    "open_video",
    "open_viewer",
    "opened",
    "save_picture",
]

# Hosts import the kernels' functions, and with them this package: it must not load the program's.
_HOMES = {
    "_checks": "SceneParameter",
    "_effects": "Effect EffectStatistics open_effect",
    "_films": "Film FilmStatistics open_film save_picture",
    "_video": "BrokenVideo Video VideoStatistics open_video",
    "_viewer": "Viewer ViewerStatistics open_viewer",
    "_cloth": "Cloth open_cloth",
    "_filters": "Border ColourSpace Filters",
    "_fluid": "Fluid open_fluid",
    "_analysis": "FrameAnalysis open_frame_analysis",
    "_frames": "FrameScene",
    "_statistics": "FrameStatistics FrameSummary open_frame_statistics",
    "_hash_map": "HashMap HashMapStatistics open_hash_map",
    "_sparse_grid": "SparseGrid open_sparse_grid",
    "_spatial": "SpatialIndex SpatialIndexStatistics",
    "_particles": "Balls Liquid open_balls open_liquid",
    "simulation": "DrawScene Simulation SimulationStatistics StepScene UpdateScene opened",
    "wire.kernels": "KernelSource",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
