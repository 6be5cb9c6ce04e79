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
_HOME = {
    "SceneParameter": "_checks",
    "Effect": "_effects",
    "EffectStatistics": "_effects",
    "open_effect": "_effects",
    "Film": "_films",
    "FilmStatistics": "_films",
    "open_film": "_films",
    "save_picture": "_films",
    "BrokenVideo": "_video",
    "Video": "_video",
    "VideoStatistics": "_video",
    "open_video": "_video",
    "Viewer": "_viewer",
    "ViewerStatistics": "_viewer",
    "open_viewer": "_viewer",
    "Cloth": "_cloth",
    "open_cloth": "_cloth",
    "Border": "_filters",
    "ColourSpace": "_filters",
    "Filters": "_filters",
    "Fluid": "_fluid",
    "open_fluid": "_fluid",
    "FrameAnalysis": "_analysis",
    "open_frame_analysis": "_analysis",
    "FrameScene": "_frames",
    "FrameStatistics": "_statistics",
    "FrameSummary": "_statistics",
    "open_frame_statistics": "_statistics",
    "HashMap": "_hash_map",
    "HashMapStatistics": "_hash_map",
    "open_hash_map": "_hash_map",
    "SparseGrid": "_sparse_grid",
    "open_sparse_grid": "_sparse_grid",
    "SpatialIndex": "_spatial",
    "SpatialIndexStatistics": "_spatial",
    "Balls": "_particles",
    "Liquid": "_particles",
    "open_balls": "_particles",
    "open_liquid": "_particles",
    "DrawScene": "simulation",
    "Simulation": "simulation",
    "SimulationStatistics": "simulation",
    "StepScene": "simulation",
    "UpdateScene": "simulation",
    "opened": "simulation",
    "KernelSource": "wire.kernels",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
