"""Build CUB's algorithms for an absent device, and call them up to the driver.

Runs as a program, in a process of its own, and pretends to have a driver if none is installed.
Each argument is an encoded spec in hexadecimal. For each spec the program writes a line: where
the build came from, its seconds, and the result of a call.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

from atomr_accel.libraries.cub.host._builds import BuildStore
from atomr_accel.libraries.cub.host._calls import QUERY
from atomr_accel.libraries.cub.wire._spec import decode

DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuGetErrorString(int status, const char** text) { *text = "an error"; return 0; }
int cuCtxGetCurrent(void** context) { *context = (void*)16; return 0; }
int cuCtxGetDevice(int* device) { *device = 0; return 0; }
int cuCtxPopCurrent_v2(void** context) { *context = (void*)16; return 0; }
int cuCtxPushCurrent_v2(void* context) { return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)16; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132
         : attribute == 8 ? 49152 : attribute == 97 ? 232448 : 2048;
  return 0;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  *value = attribute == 5 || attribute == 6 ? 90 : 0;
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
int cuKernelGetFunction(void** function, void* kernel) { *function = kernel; return 0; }
int cuLibraryLoadData(void** library) { *library = (void*)16; return 0; }
int cuLibraryUnload(void* library) { return 0; }
int cuLibraryGetKernel(void** kernel) { *kernel = (void*)16; return 0; }
int cuLaunchKernel(void) { return 0; }
int cuLaunchKernelEx(void) { return 0; }
int cuMemcpyAsync(void) { return 0; }
int cuMemsetD8Async(void) { return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks) { *blocks = 2; return 0; }
"""
"""Driver functions that the bindings look up; all of them do nothing."""


def pretend_driver(folder: Path) -> None:
    """Load a library that is found in the place of the driver's."""
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    flags = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *flags, "-o", str(library), str(source)], check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def call(store: BuildStore, encoded: bytes) -> str:
    """Call a build, and return its origin, its seconds, and the result of each call."""
    sizes, number = (1000, 3), bytes(16)
    built, origin, seconds = store.find(encoded, sizes)
    made = store.call(decode(encoded))
    values = [number[: made.number_bytes]] * 2
    said = []
    for scratch in (QUERY, (1 << 12, 1 << 20)):
        try:
            said.append(str(made.run(built, (made.stand_ins(), sizes, values, scratch, 0))))
        except RuntimeError as error:
            said.append(str(error))
    return f"{origin} {seconds:.1f} {made.spec.algorithm}: {'; '.join(said)}"


def main() -> None:
    """For all that is asked for."""
    try:
        ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    except OSError:
        pretend_driver(Path(tempfile.mkdtemp()))
    store = BuildStore((9, 0), load=True)
    for encoded in sys.argv[1:]:
        sys.stdout.write(f"{call(store, bytes.fromhex(encoded))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
