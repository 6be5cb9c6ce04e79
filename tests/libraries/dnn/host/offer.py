"""Offer graphs to cuDNN for an absent H200.

Runs as a program, in a process of its own, and pretends to have a driver. It reads encoded graphs
from its input (a msgpack array) and writes a verdict for each (a JSON array). A verdict is the
names of the parts that cuDNN or this package's kernels take, or the reason for a refusal.

cuDNN plans for a device that is only described, so everything is checked except the kernels.
The frontend must take each node with its names and attributes. Shapes and dtypes must be those
that cuDNN infers. Some engine must support each part on that device.

With ``--deterministic`` it takes only plans that give the same bits each time. With
``--workshop`` it makes plans instead, as the process of ``_workshop`` does.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

DEVICE = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "multiProcessorCount": 132,
    "smCountOrigin": 0,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "oversizedSharedMemoryPerBlock": 0,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 150_000_000_000,
    "smClockRateKHz": 1_980_000,
    "memClockRateKHz": 3_201_000,
    "memoryBusWidth": 6144,
    "l2CacheSize": 62_914_560,
    "cudaDeviceId": 0,
    "deviceVer": 900,
    "driverVer": 13000,
    "deviceName": "NVIDIA H200",
}

# Driver functions that cuDNN looks up before it plans; here they do no work.
DRIVER = (
    *("CtxGetCurrent", "CtxGetLimit", "CtxPopCurrent", "CtxPushCurrent", "DeviceGet"),
    *("DeviceGetCount", "DriverGetVersion", "GetErrorName", "GetErrorString"),
    *("KernelGetAttribute", "KernelGetFunction", "KernelSetAttribute"),
    *("LaunchCooperativeKernel", "LaunchKernel", "LaunchKernelEx"),
    *("LibraryGetKernel", "LibraryLoadData", "LibraryLoadFromFile", "LibraryUnload"),
    *("LinkAddData", "LinkComplete", "LinkCreate", "LinkDestroy"),
    *("ModuleGetFunction", "ModuleLoadData", "ModuleUnload"),
    *("OccupancyMaxPotentialClusterSize", "StreamGetCtx"),
    *("TensorMapEncodeIm2col", "TensorMapEncodeTiled"),
)


def pretend_driver(folder: Path) -> None:
    """Load a library that is found in the place of the driver's."""
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text("".join(f"int cu{name}(void) {{ return 100; }}\n" for name in DRIVER))
    flags = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *flags, "-o", str(library), str(source)], check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def load_libraries() -> None:
    """Load the libraries that cuDNN looks up by name, from the folders of their wheels."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    for name in ("nvrtc", "cublasLt", "cublas"):
        load_nvidia_dynamic_lib(name)


def offer(graphs: list[bytes], *, deterministic: bool) -> list[str]:
    """A verdict for each graph."""
    from atomr_accel import AccelError
    from atomr_accel.libraries.dnn.host._lowering import load_frontend
    from atomr_accel.libraries.dnn.host._plans import DnnPlanStore
    from atomr_accel.libraries.dnn.host.fallback._fallback import computes
    from atomr_accel.libraries.dnn.wire._graph import decode

    properties = load_frontend().create_device_properties(json.dumps(DEVICE))
    store = DnnPlanStore(
        *("H200", (9, 0), None, computes, {"device_property": properties}),
        deterministic=deterministic,
    )
    verdicts = []
    for encoded in graphs:
        try:
            verdicts.append("takes " + " | ".join(store.parts(decode(encoded), 0, _name)))
        except AccelError as error:
            verdicts.append(f"{type(error).__name__}: {error}")
    return verdicts


def _name(part: Any, made: Any) -> str:
    nodes = "+".join(node.op for node in part.nodes)
    return nodes if made is not None else f"own {nodes}"


if __name__ == "__main__":
    pretend_driver(Path(sys.argv[1]))
    load_libraries()
    if "--workshop" in sys.argv:
        from atomr_accel.libraries.dnn.host._plan_compiler import main

        main()
    else:
        graphs = msgspec.msgpack.decode(sys.stdin.buffer.read())
        json.dump(offer(graphs, deterministic="--deterministic" in sys.argv), sys.stdout)
