"""cuBLASLt in NumPy, behind the same symbols: what runs ``CudaBlasLt`` without a GPU.

Column-major, with descriptions, layouts and preferences by handle, and with the rules of a
device of compute capability 9.0: fp8 is multiplied as a.T @ b only, and rows are aligned.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.numbers import CUDA_TYPES
from atomr_accel.libraries.blaslt.host import _prototypes as prototypes
from atomr_accel.libraries.blaslt.host.cpu import gelu, gelu_slope, saturate

from .cublas import matrix, number, op, vector
from .driver import FakeDriver
from .lapack import memory
from .vendor import FakeCuda, FakeVendor

Array = np.ndarray[Any, Any]

DTYPE_OF = {value: DTYPES[name] for name, value in CUDA_TYPES.items()}
NAMES = {value: name for name, value in prototypes.ENUMS.items() if "_DESC_" in name}
EPILOGUES = {
    value: name.removeprefix("CUBLASLT_EPILOGUE_")
    for name, value in prototypes.ENUMS.items()
    if "_EPILOGUE_" in name and "_DESC_" not in name
}
FORMATS = {1: "b", 4: "i", 8: "q"}
INVALID_VALUE, NOT_SUPPORTED = 7, 15
FP8 = ("float8_e4m3fn", "float8_e5m2")


class Thing(dict[str, Any]):
    """A description, a layout or a preference, with its attributes by name."""


class FakeLt(FakeVendor):
    """Stands in for the ``VendorLibrary`` of ``CudaBlasLt``."""

    library = "cublasLt"

    def __init__(self) -> None:
        self.things: dict[int, Thing] = {}
        self.launched: list[str] = []
        self.set: list[str] = []
        self.events: FakeEvents
        self.functions: dict[str, Callable[..., int]] = {
            "cublasLtCreate": lambda made: self.make(made),
            "cublasLtDestroy": self.destroy,
            "cublasLtMatmulDescCreate": lambda made, compute, scale: self.make(
                made, compute=compute, scale=scale
            ),
            "cublasLtMatmulDescDestroy": self.destroy,
            "cublasLtMatmulDescSetAttribute": self.set_description,
            "cublasLtMatrixLayoutCreate": lambda made, kind, rows, columns, ld: self.make(
                made, kind=kind, rows=rows, columns=columns, ld=ld, count=1, step=0
            ),
            "cublasLtMatrixLayoutDestroy": self.destroy,
            "cublasLtMatrixLayoutSetAttribute": self.set_layout,
            "cublasLtMatmulPreferenceCreate": lambda made: self.make(made),
            "cublasLtMatmulPreferenceDestroy": self.destroy,
            "cublasLtMatmulPreferenceSetAttribute": lambda *_: 0,
            "cublasLtMatmulAlgoGetHeuristic": self.heuristic,
            "cublasLtMatmulAlgoConfigGetAttribute": self.number_of,
            "cublasLtMatmul": self.matmul,
        }

    def make(self, made: Any, **attributes: Any) -> int:
        handle = len(self.things) + 1
        self.things[handle] = Thing(attributes)
        made._obj.value = handle
        return 0

    def destroy(self, handle: int) -> int:
        self.things[handle].clear()
        return 0

    def set_description(self, handle: int, name: int, value: Any, size: int) -> int:
        key = NAMES[name].removeprefix("CUBLASLT_MATMUL_DESC_")
        self.set.append(key)
        (self.things[handle][key],) = struct.unpack(FORMATS[size], bytes(value._obj))
        return 0

    def set_layout(self, handle: int, name: int, value: Any, size: int) -> int:
        key = {5: "count", 6: "step"}[name]
        (self.things[handle][key],) = struct.unpack(FORMATS[size], bytes(value._obj))
        return 0

    def heuristic(self, _handle: int, *arguments: Any) -> int:
        description, a, b, c, d = (self.things[each] for each in arguments[:5])
        _preference, most, results, found = arguments[5:]
        narrow = DTYPE_OF[a["kind"]].name in FP8
        if narrow and (description["TRANSA"], description["TRANSB"]) != (1, 0):
            return NOT_SUPPORTED
        if narrow and (a["ld"] % 16 or b["ld"] % 16 or d["rows"] % 16):
            return NOT_SUPPORTED
        found._obj.value = min(2, most)
        for i in range(found._obj.value):
            record = struct.pack("64sQifiiii", b"algorithm %d" % i, 256 * i, 0, 1.0, *(0,) * 4)
            assert len(record) == prototypes.RESULT_BYTES
            results[i * len(record) : (i + 1) * len(record)] = record
        assert c["rows"] == d["rows"]
        return 0

    @staticmethod
    def number_of(algorithm: bytes, name: int, value: Any, size: int, written: Any) -> int:
        assert (name, size) == (0, 4)
        value._obj.value = 60 + int(algorithm[10:11])
        written._obj.value = size
        return 0

    def matmul(self, _handle: int, *arguments: Any) -> int:
        handle, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout = arguments[:11]
        algorithm, workspace, nbytes, _stream = arguments[11:]
        assert algorithm.startswith(b"algorithm")
        if algorithm.startswith(b"algorithm 1"):
            assert workspace
            assert nbytes >= 256
            memory(workspace, 256)[:] = 0x7F
        self.launched.append(algorithm.rstrip(b"\0").decode())
        description = self.things[handle]
        scale = DTYPE_OF[description["scale"]]
        count = self.things[d_layout]["count"]
        for i in range(count):
            places = []
            for pointer, layout in ((a, a_layout), (b, b_layout), (c, c_layout), (d, d_layout)):
                thing = self.things[layout]
                assert thing["count"] == count
                size = DTYPE_OF[thing["kind"]].itemsize
                places.append((pointer + i * thing["step"] * size if pointer else 0, thing))
            self.one(
                description,
                vector(alpha, self.things[d_layout]["rows"], 1, scale)[:, None]
                if description.get("POINTER_MODE") == 4
                else number(alpha, scale),
                number(beta, scale),
                places,
                i,
            )
        return 0

    def one(self, t: Thing, alpha: Any, beta: Any, places: list[tuple[int, Thing]], i: int) -> None:
        """One product of a batch."""

        def read(place: tuple[int, Thing]) -> Array:
            pointer, thing = place
            kind = DTYPE_OF[thing["kind"]]
            rows, columns, ld = thing["rows"], thing["columns"], thing["ld"]
            if kind.name == "float4_e2m1fn":  # two to a byte, the first one low
                pairs = matrix(pointer, rows // 2, columns, ld // 2, DTYPES["uint8"])
                codes = np.stack([pairs & 15, pairs >> 4], 1).reshape(rows, columns)
                return codes.view(kind)
            return matrix(pointer, rows, columns, ld, kind)

        stored = DTYPE_OF[places[0][1]["kind"]]
        wide = DTYPE_OF[t["scale"]]
        if wide.itemsize == 2 or (stored.name == "int8" and wide.kind == "f"):
            wide = DTYPES["float32" if wide.itemsize == 2 else "float64"]
        a = op(read(places[0]).astype(wide), t["TRANSA"])
        b = op(read(places[1]).astype(wide), t["TRANSB"])
        d = read(places[3])
        m, n = d.shape
        blocks: Any = {1: ("float8_e4m3fn", 16), 2: ("float8_e8m0fnu", 32)}.get(
            t.get("A_SCALE_MODE", 0)
        )
        if blocks:
            a = a * block_scales(t["A_SCALE_POINTER"], *a.shape, *blocks)
            b = b * block_scales(t["B_SCALE_POINTER"], *b.shape[::-1], *blocks).T
        value = alpha * (a @ b)
        rows = t.get("A_SCALE_MODE") == 3
        for side, size, shape in (("A", m, (-1, 1)), ("B", n, (1, -1))):
            if f"{side}_SCALE_POINTER" in t and not blocks:
                pointer = t[f"{side}_SCALE_POINTER"]
                scales = vector(pointer, size if rows else 1, 1, DTYPES["float32"])
                value = value * scales.reshape(shape)
        if beta != 0:
            value = value + beta * read(places[2]).astype(wide)
        value = self.after(t, value.astype(wide), a, b, i, DTYPE_OF[places[2][1]["kind"]])
        if "AMAX_D_POINTER" in t:
            vector(t["AMAX_D_POINTER"], 1, 1, DTYPES["float32"])[0] = np.abs(value).max()
        if "D_SCALE_POINTER" in t:
            value = value * vector(t["D_SCALE_POINTER"], 1, 1, DTYPES["float32"])[0]
        d[...] = saturate(value, d.dtype)

    def after(self, t: Thing, value: Array, a: Array, b: Array, i: int, kept: Any) -> Array:
        """The epilogue; rows of the result have a bias each."""
        name = EPILOGUES[t["EPILOGUE"]]
        m, n = value.shape
        if "BIAS_POINTER" in t:
            kind = DTYPE_OF[t["BIAS_DATA_TYPE"]]
            at = t["BIAS_POINTER"] + i * t.get("BIAS_BATCH_STRIDE", 0) * kind.itemsize
            if name.endswith("BIAS"):
                value = value + vector(at, m, 1, kind).astype(value.dtype)[:, None]
        aux: Any = None
        if "EPILOGUE_AUX_POINTER" in t:
            ld, step = t["EPILOGUE_AUX_LD"], t.get("EPILOGUE_AUX_BATCH_STRIDE", 0)
            if "RELU" in name:
                assert ld % 128 == 0
                at_aux = t["EPILOGUE_AUX_POINTER"] + i * step // 8
                aux = memory(at_aux, n * ld // 8).reshape(n, ld // 8)
            else:
                assert ld % 8 == 0
                at_aux = t["EPILOGUE_AUX_POINTER"] + i * step * kept.itemsize
                aux = matrix(at_aux, m, n, ld, kept)
        if name.startswith("RELU_AUX"):
            bits = np.packbits(value.T > 0, axis=-1, bitorder="little")
            aux[:, : bits.shape[-1]] = bits
        elif name.startswith("GELU_AUX"):
            aux[...] = value.astype(kept)
        elif name.startswith("DRELU"):
            value = np.where(np.unpackbits(aux, axis=-1, count=m, bitorder="little").T, value, 0)
        elif name.startswith("DGELU"):
            value = value * gelu_slope(aux.astype(value.dtype))
        if "GRAD" in name or name.endswith("BGRAD"):
            sums = {"BGRADA": a.sum(-1), "BGRADB": b.sum(-2)}.get(name)
            sums = value.sum(-1) if sums is None else sums
            vector(at, len(sums), 1, kind)[:] = sums.astype(kind)
        if name.startswith("RELU"):
            return np.maximum(value, 0)
        return gelu(value) if name.startswith("GELU") else value


def block_scales(pointer: int, rows: int, k: int, dtype: str, block: int) -> Array:
    """Scales of blocks along k, from tiles of 128 rows and four columns."""
    down, across = -(-rows // 128), -(-(k // block) // 4)
    tiles = memory(pointer, down * across * 512)
    # By row of tiles, column of tiles, row % 32, row // 32, column.
    parts = tiles.reshape(down, across, 32, 4, 4).transpose(0, 3, 2, 1, 4)
    whole = parts.reshape(down * 128, across * 4)
    assert not whole[rows:].any()
    assert not whole[:, k // block :].any()
    scales = np.ascontiguousarray(whole[:rows, : k // block]).view(getattr(ml_dtypes, dtype))
    widened: Array = scales.astype(np.float32).repeat(block, -1)
    return widened


class FakeEvents:
    """The driver's events in use. The number of launches serves as the clock.

    Attributes:
        milliseconds: what an algorithm takes; 1 unless it is here.
    """

    def __init__(self, driver: FakeDriver, library: FakeLt) -> None:
        self.milliseconds: dict[str, float] = {}
        numbers, records = itertools.count(), dict[int, int]()

        def record(event: int, _stream: object) -> tuple[int]:
            records[event] = len(library.launched)
            return (0,)

        def elapsed(start: int, end: int) -> tuple[int, float]:
            between = library.launched[records[start] : records[end]]
            return 0, sum(self.milliseconds.get(name, 1.0) for name in between)

        driver.change(
            cuEventCreate=lambda _flags: (0, next(numbers)),
            cuEventRecord=record,
            cuEventElapsedTime=elapsed,
            cuEventDestroy=lambda _event: (0,),
        )


class FakeCudaBlasLt(FakeCuda):
    """``CudaBlasLt`` on host memory."""

    executor = "atomr_accel.libraries.blaslt.host._cuda:CudaBlasLt"
