"""Configurations of ``cuLaunchKernelEx``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....backends.cuda.host.driver import driver
from ..wire.messages import LaunchOptions, Occupancy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..wire.messages import LaunchKernel


def launch_config(message: LaunchKernel | Occupancy, stream: Any) -> Any:
    """The configuration of a launch, or of one that is only asked about."""
    config = driver.CUlaunchConfig()
    if isinstance(message, Occupancy):
        grid = message.cluster or (1, 1, 1)
        options = LaunchOptions(message.cluster)
    else:
        assert message.options is not None
        grid, options = message.grid, message.options
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = message.block
    config.sharedMemBytes = message.shared
    config.hStream = stream
    attributes = [*_attributes(options)]
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def _attributes(options: LaunchOptions) -> Iterator[Any]:
    kinds = driver.CUlaunchAttributeID
    if options.cluster is not None:
        attribute = _attribute(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        cluster = attribute.value.clusterDim
        cluster.x, cluster.y, cluster.z = options.cluster
        yield attribute
    if options.cooperative:
        attribute = _attribute(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        attribute.value.cooperative = 1
        yield attribute
    if options.programmatic:
        attribute = _attribute(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value.programmaticStreamSerializationAllowed = 1
        yield attribute
    if options.priority is not None:
        attribute = _attribute(kinds.CU_LAUNCH_ATTRIBUTE_PRIORITY)
        attribute.value.priority = options.priority
        yield attribute


def _attribute(kind: Any) -> Any:
    attribute = driver.CUlaunchAttribute()
    attribute.id = kind
    return attribute
