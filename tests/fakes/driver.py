"""The CUDA driver on the host's memory, for whatever runs on CUDA, on machines without a GPU.

``FUNCTIONS``, ``ENUMS``, ``STRUCTS`` and ``NUMBERS`` say what of the driver this package uses.
The session ``headers`` holds them against ``cuda.bindings``, in ``backends/test_fake_driver.py``. A
fake has nothing besides: another function, a wrong number of arguments or results, a status, a
number or a field that the driver does not have are refused. So a test passes here only with calls
that the real bindings take.

Pointers are those of this process, and work is done when it is queued.
"""

# ruff: noqa: N802, N815 (the names are the vendor's)

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from atomr_accel.backends.cuda.host.driver import driver

FUNCTIONS: Final[Mapping[str, str]] = {
    "cuArray3DCreate": "pAllocateArray -> pHandle",
    "cuArrayDestroy": "hArray ->",
    "cuCtxGetCurrent": "-> pctx",
    "cuCtxGetDevice": "-> device",
    "cuCtxSetCurrent": "ctx ->",
    "cuCtxSynchronize": "->",
    "cuDeviceCanAccessPeer": "dev peerDev -> canAccessPeer",
    "cuDeviceGet": "ordinal -> device",
    "cuDeviceGetAttribute": "attrib dev -> pi",
    "cuDeviceGetCount": "-> count",
    "cuDeviceGetName": "length dev -> name",
    "cuDeviceGetP2PAttribute": "attrib srcDevice dstDevice -> value",
    "cuDeviceGetPCIBusId": "length dev -> pciBusId",
    "cuDeviceGetUuid": "dev -> uuid",
    "cuDevicePrimaryCtxRelease": "dev ->",
    "cuDevicePrimaryCtxRetain": "dev -> pctx",
    "cuDeviceTotalMem": "dev -> numbytes",
    "cuDriverGetVersion": "-> driverVersion",
    "cuEventCreate": "Flags -> phEvent",
    "cuEventDestroy": "hEvent ->",
    "cuEventElapsedTime": "hStart hEnd -> pMilliseconds",
    "cuEventQuery": "hEvent ->",
    "cuEventRecord": "hEvent hStream ->",
    "cuEventSynchronize": "hEvent ->",
    "cuFuncGetAttribute": "attrib hfunc -> pi",
    "cuFuncSetAttribute": "hfunc attrib value ->",
    "cuGraphAddChildGraphNode": "hGraph dependencies numDependencies childGraph -> phGraphNode",
    "cuGraphAddEmptyNode": "hGraph dependencies numDependencies -> phGraphNode",
    "cuGraphAddKernelNode": "hGraph dependencies numDependencies nodeParams -> phGraphNode",
    "cuGraphAddNode": "hGraph dependencies numDependencies nodeParams -> phGraphNode",
    "cuGraphConditionalHandleCreate": "hGraph ctx defaultLaunchValue flags -> pHandle_out",
    "cuGraphCreate": "flags -> phGraph",
    "cuGraphDebugDotPrint": "hGraph path flags ->",
    "cuGraphDestroy": "hGraph ->",
    "cuGraphExecDestroy": "hGraphExec ->",
    "cuGraphExecUpdate": "hGraphExec hGraph -> resultInfo",
    "cuGraphGetNodes": "hGraph numNodes -> nodes numNodes",
    "cuGraphInstantiate": "hGraph flags -> phGraphExec",
    "cuGraphLaunch": "hGraphExec hStream ->",
    "cuInit": "Flags ->",
    "cuLaunchHostFunc": "hStream fn userData ->",
    "cuLaunchKernel": "f gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes "
    "hStream kernelParams extra ->",
    "cuLaunchKernelEx": "config f kernelParams extra ->",
    "cuMemAddressFree": "ptr size ->",
    "cuMemAddressReserve": "size alignment addr flags -> ptr",
    "cuMemAdvise": "devPtr count advice device ->",
    "cuMemAdvise_v2": "devPtr count advice location ->",
    "cuMemAlloc": "bytesize -> dptr",
    "cuMemAllocHost": "bytesize -> pp",
    "cuMemAllocManaged": "bytesize flags -> dptr",
    "cuMemCreate": "size prop flags -> handle",
    "cuMemExportToShareableHandle": "handle handleType flags -> shareableHandle",
    "cuMemFree": "dptr ->",
    "cuMemFreeHost": "p ->",
    "cuMemGetInfo": "-> free total",
    "cuMemHostRegister": "p bytesize Flags ->",
    "cuMemHostUnregister": "p ->",
    "cuMemImportFromShareableHandle": "osHandle shHandleType -> handle",
    "cuMemMap": "ptr size offset handle flags ->",
    "cuMemPrefetchAsync": "devPtr count dstDevice hStream ->",
    "cuMemPrefetchAsync_v2": "devPtr count location flags hStream ->",
    "cuMemRelease": "handle ->",
    "cuMemSetAccess": "ptr size desc count ->",
    "cuMemUnmap": "ptr size ->",
    "cuMemcpy2DAsync": "pCopy hStream ->",
    "cuMemcpy3DAsync": "pCopy hStream ->",
    "cuMemcpyAsync": "dst src ByteCount hStream ->",
    "cuMemcpyDtoDAsync": "dstDevice srcDevice ByteCount hStream ->",
    "cuMemcpyDtoHAsync": "dstHost srcDevice ByteCount hStream ->",
    "cuMemcpyHtoD": "dstDevice srcHost ByteCount ->",
    "cuMemcpyHtoDAsync": "dstDevice srcHost ByteCount hStream ->",
    "cuMemsetD16Async": "dstDevice us N hStream ->",
    "cuMemsetD2D32Async": "dstDevice dstPitch ui Width Height hStream ->",
    "cuMemsetD2D8Async": "dstDevice dstPitch uc Width Height hStream ->",
    "cuMemsetD32Async": "dstDevice ui N hStream ->",
    "cuMemsetD8Async": "dstDevice uc N hStream ->",
    "cuModuleGetFunction": "hmod name -> hfunc",
    "cuModuleGetGlobal": "hmod name -> dptr numbytes",
    "cuModuleLoadData": "image -> module",
    "cuModuleUnload": "hmod ->",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": "func blockSize dynamicSMemSize -> numBlocks",
    "cuOccupancyMaxActiveClusters": "func config -> numClusters",
    "cuOccupancyMaxPotentialBlockSize": "func blockSizeToDynamicSMemSize dynamicSMemSize "
    "blockSizeLimit -> minGridSize blockSize",
    "cuStreamAttachMemAsync": "hStream dptr length flags ->",
    "cuStreamBeginCapture": "hStream mode ->",
    "cuStreamCreate": "Flags -> phStream",
    "cuStreamCreateWithPriority": "flags priority -> phStream",
    "cuStreamDestroy": "hStream ->",
    "cuStreamEndCapture": "hStream -> phGraph",
    "cuStreamIsCapturing": "hStream -> captureStatus",
    "cuStreamQuery": "hStream ->",
    "cuStreamSynchronize": "hStream ->",
    "cuStreamWaitEvent": "hStream hEvent Flags ->",
    "cuSurfObjectCreate": "pResDesc -> pSurfObject",
    "cuSurfObjectDestroy": "surfObject ->",
    "cuTensorMapEncodeIm2col": "tensorDataType tensorRank globalAddress globalDim globalStrides "
    "pixelBoxLowerCorner pixelBoxUpperCorner channelsPerPixel pixelsPerColumn elementStrides "
    "interleave swizzle l2Promotion oobFill -> tensorMap",
    "cuTensorMapEncodeTiled": "tensorDataType tensorRank globalAddress globalDim globalStrides "
    "boxDim elementStrides interleave swizzle l2Promotion oobFill -> tensorMap",
    "cuTexObjectCreate": "pResDesc pTexDesc pResViewDesc -> pTexObject",
    "cuTexObjectDestroy": "texObject ->",
}
"""Functions with their arguments and, after a status, their results, as the bindings name them."""

ENUMS: Final[Mapping[str, Mapping[str, int]]] = {
    "CUresult": {
        "CUDA_SUCCESS": 0,
        "CUDA_ERROR_INVALID_VALUE": 1,
        "CUDA_ERROR_OUT_OF_MEMORY": 2,
        "CUDA_ERROR_NO_DEVICE": 100,
        "CUDA_ERROR_INVALID_DEVICE": 101,
        "CUDA_ERROR_ECC_UNCORRECTABLE": 214,
        "CUDA_ERROR_NVLINK_UNCORRECTABLE": 220,
        "CUDA_ERROR_CONTAINED": 226,
        "CUDA_ERROR_NOT_FOUND": 500,
        "CUDA_ERROR_NOT_READY": 600,
        "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
        "CUDA_ERROR_LAUNCH_TIMEOUT": 702,
        "CUDA_ERROR_CONTEXT_IS_DESTROYED": 709,
        "CUDA_ERROR_ASSERT": 710,
        "CUDA_ERROR_HARDWARE_STACK_ERROR": 714,
        "CUDA_ERROR_ILLEGAL_INSTRUCTION": 715,
        "CUDA_ERROR_MISALIGNED_ADDRESS": 716,
        "CUDA_ERROR_INVALID_ADDRESS_SPACE": 717,
        "CUDA_ERROR_INVALID_PC": 718,
        "CUDA_ERROR_LAUNCH_FAILED": 719,
        "CUDA_ERROR_TENSOR_MEMORY_LEAK": 721,
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": 720,
        "CUDA_ERROR_NOT_SUPPORTED": 801,
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": 900,
        "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE": 910,
    },
    "CUaddress_mode": {
        "CU_TR_ADDRESS_MODE_WRAP": 0,
        "CU_TR_ADDRESS_MODE_CLAMP": 1,
        "CU_TR_ADDRESS_MODE_MIRROR": 2,
        "CU_TR_ADDRESS_MODE_BORDER": 3,
    },
    "CUarray_format": {
        "CU_AD_FORMAT_UNSIGNED_INT8": 0x01,
        "CU_AD_FORMAT_UNSIGNED_INT16": 0x02,
        "CU_AD_FORMAT_UNSIGNED_INT32": 0x03,
        "CU_AD_FORMAT_SIGNED_INT8": 0x08,
        "CU_AD_FORMAT_SIGNED_INT16": 0x09,
        "CU_AD_FORMAT_SIGNED_INT32": 0x0A,
        "CU_AD_FORMAT_HALF": 0x10,
        "CU_AD_FORMAT_FLOAT": 0x20,
    },
    "CUdevice_attribute": {
        "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 16,
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 75,
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 76,
        "CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS": 89,
        "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
        "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 102,
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 103,
    },
    "CUdevice_P2PAttribute": {
        "CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK": 1,
        "CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED": 3,
    },
    "CUevent_flags": {"CU_EVENT_BLOCKING_SYNC": 1, "CU_EVENT_DISABLE_TIMING": 2},
    "CUfilter_mode": {"CU_TR_FILTER_MODE_POINT": 0, "CU_TR_FILTER_MODE_LINEAR": 1},
    "CUfunction_attribute": {
        "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 0,
        "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1,
        "CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES": 2,
        "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": 3,
        "CU_FUNC_ATTRIBUTE_NUM_REGS": 4,
        "CU_FUNC_ATTRIBUTE_PTX_VERSION": 5,
        "CU_FUNC_ATTRIBUTE_BINARY_VERSION": 6,
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": 8,
        "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED": 14,
    },
    "CUgraphConditionalNodeType": {"CU_GRAPH_COND_TYPE_IF": 0, "CU_GRAPH_COND_TYPE_WHILE": 1},
    "CUgraphNodeType": {"CU_GRAPH_NODE_TYPE_CONDITIONAL": 13},
    "CUlaunchAttributeID": {
        "CU_LAUNCH_ATTRIBUTE_COOPERATIVE": 2,
        "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": 4,
        "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": 6,
        "CU_LAUNCH_ATTRIBUTE_PRIORITY": 8,
    },
    "CUmemAccess_flags": {
        "CU_MEM_ACCESS_FLAGS_PROT_READ": 1,
        "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": 3,
    },
    "CUmemAllocationHandleType": {"CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": 1},
    "CUmemAllocationType": {"CU_MEM_ALLOCATION_TYPE_PINNED": 1},
    "CUmemAttach_flags": {
        "CU_MEM_ATTACH_GLOBAL": 1,
        "CU_MEM_ATTACH_HOST": 2,
        "CU_MEM_ATTACH_SINGLE": 4,
    },
    "CUmemLocationType": {"CU_MEM_LOCATION_TYPE_DEVICE": 1, "CU_MEM_LOCATION_TYPE_HOST": 2},
    "CUmem_advise": {
        "CU_MEM_ADVISE_SET_READ_MOSTLY": 1,
        "CU_MEM_ADVISE_UNSET_READ_MOSTLY": 2,
        "CU_MEM_ADVISE_SET_PREFERRED_LOCATION": 3,
        "CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION": 4,
        "CU_MEM_ADVISE_SET_ACCESSED_BY": 5,
        "CU_MEM_ADVISE_UNSET_ACCESSED_BY": 6,
    },
    "CUmemorytype": {"CU_MEMORYTYPE_DEVICE": 2, "CU_MEMORYTYPE_ARRAY": 3},
    "CUresourcetype": {
        "CU_RESOURCE_TYPE_ARRAY": 0,
        "CU_RESOURCE_TYPE_LINEAR": 2,
        "CU_RESOURCE_TYPE_PITCH2D": 3,
    },
    "CUtensorMapDataType": {
        "CU_TENSOR_MAP_DATA_TYPE_UINT8": 0,
        "CU_TENSOR_MAP_DATA_TYPE_UINT16": 1,
        "CU_TENSOR_MAP_DATA_TYPE_UINT32": 2,
        "CU_TENSOR_MAP_DATA_TYPE_INT32": 3,
        "CU_TENSOR_MAP_DATA_TYPE_UINT64": 4,
        "CU_TENSOR_MAP_DATA_TYPE_INT64": 5,
        "CU_TENSOR_MAP_DATA_TYPE_FLOAT16": 6,
        "CU_TENSOR_MAP_DATA_TYPE_FLOAT32": 7,
        "CU_TENSOR_MAP_DATA_TYPE_FLOAT64": 8,
        "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16": 9,
        "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32": 11,
    },
    "CUtensorMapFloatOOBfill": {
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE": 0,
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA": 1,
    },
    "CUtensorMapInterleave": {"CU_TENSOR_MAP_INTERLEAVE_NONE": 0},
    "CUtensorMapL2promotion": {
        "CU_TENSOR_MAP_L2_PROMOTION_NONE": 0,
        "CU_TENSOR_MAP_L2_PROMOTION_L2_64B": 1,
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B": 2,
        "CU_TENSOR_MAP_L2_PROMOTION_L2_256B": 3,
    },
    "CUtensorMapSwizzle": {
        "CU_TENSOR_MAP_SWIZZLE_NONE": 0,
        "CU_TENSOR_MAP_SWIZZLE_32B": 1,
        "CU_TENSOR_MAP_SWIZZLE_64B": 2,
        "CU_TENSOR_MAP_SWIZZLE_128B": 3,
    },
    "CUstreamCaptureMode": {
        "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": 1,
        "CU_STREAM_CAPTURE_MODE_RELAXED": 2,
    },
    "CUstream_flags": {"CU_STREAM_NON_BLOCKING": 1},
}
"""Enumerators by type."""

STRUCTS: Final[Mapping[str, str]] = {
    "CUDA_ARRAY3D_DESCRIPTOR": "Width Height Depth Format NumChannels Flags",
    "CUDA_KERNEL_NODE_PARAMS": "func gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ "
    "sharedMemBytes kernelParams extra",
    "CUDA_MEMCPY2D": "srcMemoryType srcDevice srcPitch dstMemoryType dstDevice dstPitch "
    "WidthInBytes Height",
    "CUDA_MEMCPY3D": "srcMemoryType srcDevice srcPitch srcHeight srcArray dstMemoryType dstDevice "
    "dstPitch dstHeight dstArray WidthInBytes Height Depth",
    "CUDA_RESOURCE_DESC": "resType res",
    "CUDA_RESOURCE_DESC.res": "array linear pitch2D",
    "CUDA_RESOURCE_DESC.res.array": "hArray",
    "CUDA_RESOURCE_DESC.res.linear": "devPtr format numChannels sizeInBytes",
    "CUDA_RESOURCE_DESC.res.pitch2D": "devPtr format numChannels width height pitchInBytes",
    "CUDA_TEXTURE_DESC": "addressMode filterMode flags borderColor",
    "CUgraphNodeParams": "type conditional",
    "CUgraphNodeParams.conditional": "handle type size ctx phGraph_out",
    "CUlaunchAttribute": "id value",
    "CUlaunchAttribute.value": "clusterDim cooperative programmaticStreamSerializationAllowed "
    "priority",
    "CUlaunchAttribute.value.clusterDim": "x y z",
    "CUlaunchConfig": "gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes "
    "hStream attrs numAttrs",
    "CUmemAccessDesc": "location flags",
    "CUmemAllocationProp": "type location requestedHandleTypes",
    "CUmemLocation": "type id",
}
"""Structures with their fields."""

HANDLES: Final = ("CUhostFn", "CUoccupancyB2DSize", "CUstream", "cuuint32_t", "cuuint64_t")
"""Types that are made of a number."""

NUMBERS: Final[Mapping[str, int]] = {
    "CU_STREAM_LEGACY": 1,
    "CU_MEMHOSTREGISTER_PORTABLE": 1,
    "CU_MEMHOSTREGISTER_DEVICEMAP": 2,
}
"""Numbers without a type."""

_ENUMS: Final[Mapping[str, Any]] = {
    name: IntEnum(name, dict(members)) for name, members in ENUMS.items()
}
_NAMES: Final = {*FUNCTIONS, *ENUMS, *STRUCTS, *HANDLES, *NUMBERS}
_STATUSES: Final = _ENUMS["CUresult"]
SUCCESS: Final = _STATUSES(0)
INVALID_VALUE: Final = _STATUSES(1)

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound="FakeDriver")


def memory(pointer: int, nbytes: int) -> Array:
    """Bytes anywhere."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))


class Struct:
    """A structure of the driver, with the fields that are in use and no others."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name
        for field in STRUCTS[name].split():
            inner = f"{name}.{field}"
            self.__dict__[field] = Struct(inner) if inner in STRUCTS else 0

    def __setattr__(self, field: str, value: object) -> None:
        if field not in self.__dict__:
            raise AttributeError(f"{self._name} has no field {field}, as far as STRUCTS says")
        self.__dict__[field] = value

    if TYPE_CHECKING:

        def __getattr__(self, field: str) -> Any: ...


class FakeDriver:  # its methods have the names of the driver's functions
    """Stands in for ``cuda.bindings.driver``, as far as executors use it.

    A test may ``change`` functions. Its own are held to the same table.

    Attributes:
        major: the major version of CUDA.
        held: the allocations that were not freed, by pointer.
        events: how many events are alive.
        streams: how many streams are alive.
        calls: the names of the functions that were called, if a test sets it to a list.
    """

    def __init__(self) -> None:
        self.major = 12
        self.held: dict[int, Any] = {}
        self.events = 0
        self.streams = 0
        self.calls: list[str] | None = None
        self._handles = itertools.count(0x1000)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name in FUNCTIONS:
            return partial(_call, self, name, found)
        return found

    def __getattr__(self, name: str) -> Any:
        if name in _ENUMS:
            return _ENUMS[name]
        if name in STRUCTS:
            return partial(Struct, name)
        if name in NUMBERS:
            return NUMBERS[name]
        if name in HANDLES:
            return int
        if name in FUNCTIONS:
            raise AttributeError(f"the fake driver does not do {name} yet")
        raise AttributeError(f"no {name} is in the tables of {__name__}, so the driver has none")

    def __setattr__(self, name: str, value: object) -> None:
        if name.lower().startswith("cu") and name not in _NAMES:
            raise AttributeError(f"no {name} is in the tables of {__name__}: the driver has none")
        object.__setattr__(self, name, value)

    def change(self, **functions: Callable[..., Any]) -> None:
        """Have functions do something else."""
        for name, function in functions.items():
            setattr(self, name, function)

    # --- the device -----------------------------------------------------------------------

    def cuCtxSynchronize(self) -> Any:
        return (SUCCESS,)

    def cuStreamSynchronize(self, _stream: object) -> Any:
        return (SUCCESS,)

    def cuStreamIsCapturing(self, _stream: object) -> Any:
        return SUCCESS, 0

    # --- memory ---------------------------------------------------------------------------

    def cuMemAlloc(self, nbytes: int) -> Any:
        if nbytes <= 0:
            return INVALID_VALUE, 0
        made = ctypes.create_string_buffer(nbytes)
        self.held[ctypes.addressof(made)] = made
        return SUCCESS, ctypes.addressof(made)

    def cuMemAllocHost(self, nbytes: int) -> Any:
        return FakeDriver.cuMemAlloc(self, nbytes)

    def cuMemFree(self, pointer: int) -> Any:
        return (INVALID_VALUE,) if self.held.pop(int(pointer), None) is None else (SUCCESS,)

    def cuMemFreeHost(self, pointer: int) -> Any:
        return FakeDriver.cuMemFree(self, pointer)

    def cuMemcpyAsync(self, to: int, source: int, nbytes: int, _stream: object) -> Any:
        ctypes.memmove(int(to), int(source), nbytes)
        return (SUCCESS,)

    cuMemcpyDtoDAsync = cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyAsync

    def cuMemcpyHtoD(self, to: int, source: int, nbytes: int) -> Any:
        return FakeDriver.cuMemcpyAsync(self, to, source, nbytes, 0)

    def cuMemcpy2DAsync(self, rows: Struct, _stream: object) -> Any:
        for row in range(rows.Height):
            source, to = rows.srcDevice + row * rows.srcPitch, rows.dstDevice + row * rows.dstPitch
            ctypes.memmove(to, source, rows.WidthInBytes)
        return (SUCCESS,)

    def _fill(self, kind: Any, at: int, pitch: int, value: int, width: int, height: int) -> Any:
        nbytes = width * np.dtype(kind).itemsize
        if at % np.dtype(kind).itemsize or (height > 1 and pitch < nbytes):
            return (INVALID_VALUE,)
        for row in range(height):
            memory(int(at) + row * pitch, nbytes).view(kind)[:] = value
        return (SUCCESS,)

    def cuMemsetD8Async(self, at: int, value: int, count: int, _stream: object) -> Any:
        return self._fill(np.uint8, at, 0, value, count, 1)

    def cuMemsetD16Async(self, at: int, value: int, count: int, _stream: object) -> Any:
        return self._fill(np.uint16, at, 0, value, count, 1)

    def cuMemsetD32Async(self, at: int, value: int, count: int, _stream: object) -> Any:
        return self._fill(np.uint32, at, 0, value, count, 1)

    def cuMemsetD2D8Async(
        self, at: int, pitch: int, value: int, width: int, height: int, _stream: object
    ) -> Any:
        return self._fill(np.uint8, at, pitch, value, width, height)

    def cuMemsetD2D32Async(
        self, at: int, pitch: int, value: int, width: int, height: int, _stream: object
    ) -> Any:
        return self._fill(np.uint32, at, pitch, value, width, height)

    # --- events ---------------------------------------------------------------------------

    def cuEventCreate(self, _flags: int) -> Any:
        self.events += 1
        return SUCCESS, next(self._handles)

    def cuEventRecord(self, _event: int, _stream: object) -> Any:
        return (SUCCESS,)

    def cuEventQuery(self, _event: int) -> Any:
        return (SUCCESS,)

    def cuEventSynchronize(self, _event: int) -> Any:
        return (SUCCESS,)

    def cuEventElapsedTime(self, _start: int, _end: int) -> Any:
        return SUCCESS, 1.0

    def cuEventDestroy(self, _event: int) -> Any:
        self.events -= 1
        return (SUCCESS,)


def _call(fake: FakeDriver, name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with the arguments, and for the results, that the driver has."""
    takes, _, gives = FUNCTIONS[name].partition("->")
    if len(args) != len(takes.split()):
        raise TypeError(f"{name} takes {takes}: {len(takes.split())} arguments, not {len(args)}")
    if fake.calls is not None:
        fake.calls.append(name)
    status, *results = function(*args)
    status = _STATUSES(status)
    if not status and len(results) != len(gives.split()):
        raise TypeError(f"{name} gives a status and {gives or 'nothing'}, not {results}")
    return status, *results


@contextmanager
def installed(fake: F) -> Iterator[F]:
    """Have everything that runs on CUDA in this process call a fake."""
    with driver.replaced(fake):
        yield fake
