"""Names that others have, and the code to write for each of them here.

Others are array libraries, and the Rust toolkit's package for Python. These are the only tables of
such names. Errors about attributes, imports and NumPy's functions use them.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from ._torch_names import INSTEAD

_FETCH = "await device.get(x)"
_UNNEEDED = "it is not needed, because "
_GRADIENT = (
    "there is no automatic differentiation; compute gradients with functions that have them, or "
    "let another library do it in the device's memory: await device.run(function, x)"
)

WRITE: Final[dict[str, str]] = {
    # values
    "asnumpy": _FETCH,
    "cpu": _FETCH,
    "fetch": _FETCH,
    "get": _FETCH,
    "item": f"({_FETCH}).item()",
    "numpy": _FETCH,
    "tobytes": f"({_FETCH}).tobytes()",
    "tolist": f"({_FETCH}).tolist()",
    "tofile": f"({_FETCH}).tofile(path)",
    "dump": f"({_FETCH}).dump(path)",
    "dumps": f"({_FETCH}).dumps()",
    "data": _FETCH,
    "flat": "x.reshape(-1)",
    "base": f"{_UNNEEDED}a view and its buffer share x.block",
    "flags": "x.contiguous and x.sealed",
    "setflags": "await device.seal(x)",
    "ctypes": "await device.run(function, x), or np.from_dlpack(x)",
    # transfers, copies and lifetimes
    "asarray": "await device.put(array)",
    "clone": "await device.copy(x)",
    "copy": "await device.copy(x)",
    "copyto": "await device.copy(y, x)",
    "cuda": "await device.put(array)",
    "fill": "await device.fill(x, value)",
    "free": "await device.free(x)",
    "put": "await device.array.setitem(x, index, values)",
    "putmask": "await device.array.setitem(x, mask, values)",
    "to": "await device.put(array)",
    "to_device": "await device.put(array)",
    "upload": "await device.put(array)",
    # creation
    "empty": "await device.empty(shape)",
    "full": "await device.full(shape, value)",
    "rand": "await device.rng.uniform(size=shape)",
    "randn": "await device.rng.normal(size=shape)",
    "random": "device.rng",
    "zeros": "await device.zeros(shape)",
    # shapes
    "concat": "await device.array.concatenate([x, y])",
    "byteswap": f"await device.put(({_FETCH}).byteswap())",
    "choose": "await device.array.select([x == 0, x == 1], [y, z])",
    "conjugate": "x.conj()",
    "diagonal": "x.diagonal()",
    "flatten": "x.reshape(-1)",
    "getfield": "x.view(dtype)[..., start]",
    "itemsize": "x.dtype.itemsize",
    "matrix_transpose": "x.mT",
    "permute": "x.transpose(axes)",
    "permute_dims": "x.transpose(axes)",
    "ravel": "x.reshape(-1)",
    "reshape": "x.reshape(shape)",
    "resize": "x.reshape(shape), or for more elements await device.array.pad(x, width)",
    "setfield": "await device.copy(y, x.view(dtype)[..., start])",
    "unsqueeze": "np.expand_dims(x, axis)",
    "view": "x.view(dtype)",
    "fill_diagonal": "await device.fill(x.diagonal(), value)",
    # mathematics
    "cumulative_prod": "await device.array.cumprod(x)",
    "cumulative_sum": "await device.array.cumsum(x)",
    "dot": "x @ y",
    "gemm": "await device.blas.gemm(x, y)",
    "nancumprod": "await device.array.cumprod(np.where(np.isnan(x), 1, x))",
    "nanpercentile": "await device.array.nanquantile(x, q / 100)",
    "schur": f"await device.put(scipy.linalg.schur({_FETCH})[0])",
    "setxor1d": (
        "await device.array.setdiff1d(await device.array.union1d(x, y), "
        "await device.array.intersect1d(x, y))"
    ),
    "vecdot": "(x.conj() * y).sum(-1)",
    # sparse matrices and solvers
    **{f"{of}_matrix": f"await device.sparse.{of}_array(...)" for of in ("coo", "csc", "csr")},
    **{of: f"await atomr_accel.solvers.{of}(...)" for of in ("bicgstab", "cg", "gmres", "minres")},
    "eigsh": "await atomr_accel.solvers.lobpcg(...)",
    "matmul": "x @ y",
    "mm": "x @ y",
    "relu": "await device.dnn.relu(x)",
    "sigmoid": "scipy.special.expit(x)",
    "softmax": "await device.dnn.softmax(x)",
    # gradients
    "backward": _GRADIENT,
    "detach": f"{_UNNEEDED}no history of a buffer is kept",
    "grad": _GRADIENT,
    "requires_grad": _GRADIENT,
    "requires_grad_": _GRADIENT,
    # devices
    "close": f"{_UNNEEDED}the 'async with' block closes the device",
    "compile": "await device.nvrtc.compile(code, name)",
    "eval": "await device.evaluate(expression)",
    "stream": f"{_UNNEEDED}a device orders ops by their buffers",
    "sync": f"{_UNNEEDED}an op that was awaited is done",
    "synchronize": f"{_UNNEEDED}an op that was awaited is done",
}
"""The code to write for a name. Libraries add the names of NumPy's functions that they have."""

_TYPES: Final = ("f32", "f64", "i32", "u32", "u8", "complex64", "complex128")
"""Types that end the names of the toolkit's methods."""

_ENDS: Final = ("", *(f"_{of}" for of in _TYPES))

_HOST_DRAWS: Final = "wald zipf logistic pareto triangular logseries noncentral_chisquare"
"""Distributions of NumPy's generators that ``device.rng`` does not have."""

for _name, _write in INSTEAD.items():
    WRITE.setdefault(_name, _write)  # PyTorch's functions

WRITE.update(
    {
        **{of: f"await device.put(np_rng.{of}(...))" for of in _HOST_DRAWS.split()},
        # the toolkit's devices
        **{f"allocate_{of}": "await device.zeros(shape, dtype)" for of in _TYPES},
        **{f"copy_from_numpy{of}": "await device.put(array)" for of in _ENDS},
        **{f"copy_to_numpy{of}": _FETCH for of in _ENDS},
        "compile_kernel": WRITE["compile"],
        "cudnn": "device.dnn",
        "libraries_ready": f"{_UNNEEDED}a library starts with its first op",
        "sgemm": WRITE["gemm"],
        "solver": "device.linalg",
        "stats": "device.statistics()",
        # its libraries
        "activation_fwd": "await device.dnn.relu(x)",
        "conv2d_bwd_data": "await device.dnn.conv_input_grad(...)",
        "conv2d_bwd_filter": "await device.dnn.conv_weight_grad(...)",
        "conv2d_fwd": "await device.dnn.conv(x, weights)",
        "dropout_fwd": "await device.dnn.dropout(...)",
        "exec_1d_c2c_f32": "await device.fft.fft(x)",
        "forward_1d_r2c_f32": "await device.fft.rfft(x)",
        "forward_2d_r2c_f32": "await device.fft.rfft2(x)",
        "gemm_f32": WRITE["gemm"],
        "gemm_f64": WRITE["gemm"],
        "gemm_strided_batched": "await device.blas.gemm_batched(x, y)",
        "gesvdj_batched": "await device.linalg.svd(x)",
        "iamax": "await device.blas.amax(x)",
        "iamin": "await device.blas.amin(x)",
        "inverse_1d_c2r_f32": "await device.fft.irfft(x)",
        "log_normal": "await device.rng.lognormal(size=shape)",
        "lrn_fwd": "await device.dnn.local_response_norm(...)",
        "multihead_attn_bwd": "await device.dnn.flash_attention_grad(...)",
        "multihead_attn_fwd": "await device.dnn.flash_attention(...)",
        "pool2d_bwd": "await device.dnn.max_pool_grad(...)",
        "pool2d_fwd": "await device.dnn.max_pool(...)",
        "potrf_batched": "await device.linalg.cholesky(x)",
        "reduce_sum_f32": "await device.array.sum(x)",
        "rnn_fwd": "await device.dnn.rnn(...)",
        "set_generator": "device.rng.default_rng(seed, ...)",
        "set_seed": "device.rng.seed(...)",
        "softmax_fwd": WRITE["softmax"],
        "uniform_u32": "await device.rng.integers(...)",
        # its buffers and kernels
        "launch_async": "await kernel.launch(grid, block, ...)",
        "advise_f32": "await device.advise(...)",
        "prefetch_f32": "await device.prefetch(...)",
    }
)

SYSTEM: Final[dict[str, str]] = {
    "close": f"{_UNNEEDED}the 'async with' block closes the system",
    "open": "async with open_system(name) as system:",
    "open_device": "await system.spawn_device(index)",
    "spawn_device": (
        "async with atomr_accel.open_system(name) as system:, because only its systems have "
        "system.spawn_device(index)"
    ),
}
"""The code to write for a name of the toolkit's systems, and for what only some systems have."""

_BUFFERS: Final = ("F32", "F64", "I32", "U32", "U8", "C64", "C128")

PACKAGE: Final[dict[str, str]] = {
    **{f"GpuBuffer{of}": "atomr_accel.GpuRef" for of in _BUFFERS},
    "AskTimeout": "trio.TooSlowError, which 'with trio.fail_after(seconds):' raises",
    "Blas": "device.blas",
    "Collective": "async with atomr_accel.worlds.open_world(devices) as world:",
    "Cub": "device.cub",
    "Cudnn": "device.dnn",
    "CuptiSession": "atomr_accel.telemetry.activity(...)",
    "Cutlass": "device.cutlass",
    "DynamicBatchingServer": "async with atomr_accel.patterns.open_batcher(...) as batcher:",
    "FairShareScheduler": "async with atomr_accel.patterns.open_fair_share(...) as shares:",
    "Fft": "device.fft",
    "FlashAttn": "device.flash_attention",
    "GpuError": "atomr_accel.AccelError",
    "GpuRuntimeError": "atomr_accel.AccelError",
    "GraphCapture": "async with device.record() as recording:",
    "GraphHandle": "await recording.replay()",
    "GraphScript": "async with device.record() as recording:",
    "HotSwapServer": "async with atomr_accel.patterns.open_hot_swap(...) as server:",
    "InferenceCascade": "async with atomr_accel.patterns.open_cascade(...) as cascade:",
    "IpcMemHandle": "await device.share(ref)",
    "IpcOpenedMem": "await device.adopt(shared)",
    "KernelArg": "await kernel.launch(grid, block, *arguments)",
    "ManagedBufferF32": "await device.managed(shape, np.float32)",
    "Memory": "await device.managed(shape, dtype)",
    "ModelReplicaPool": "async with atomr_accel.patterns.open_replica_pool(...) as pool:",
    "MoeRouter": "async with atomr_accel.patterns.open_moe(...) as experts:",
    "NvmlActor": "async with atomr_accel.telemetry.open_nvml(...) as nvml:",
    "NvrtcKernel": "await device.nvrtc.compile(code, name)",
    "NvtxKernelTrace": "atomr_accel.telemetry.mark_ranges(...)",
    "RngGenerator": "device.rng",
    "Solver": "device.linalg",
    "SpeculativeDecoder": "async with atomr_accel.patterns.open_speculative(...) as decoder:",
    "Timeout": "trio.TooSlowError, which 'with trio.fail_after(seconds):' raises",
    "Unrecoverable": "atomr_accel.DeviceLost",
}
"""The code to write for a name of the toolkit's package."""


def _said(write: str) -> str:
    return write if write.startswith((_UNNEEDED, _GRADIENT)) else f"write: {write}"


def said(name: str) -> str:
    """Return the advice about a name of the table, as the end of a message."""
    return _said(WRITE[name])


class OtherName:
    """Attribute that programs look for, because other libraries have it."""

    # A descriptor, because a ``__getattr__`` would slow down each access to any attribute.

    def __init__(self, name: str, write: str) -> None:
        self.name: Final = name
        self.write: Final = write
        self.__doc__ = None

    def __repr__(self) -> str:
        return f"<{_said(self.write)}>"

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise an AttributeError, because a class was asked for the name."""
        raise AttributeError(f"no attribute {self.name!r}; {_said(self.write)}")

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the descriptor of a class, and raise an AttributeError for an instance."""
        if instance is None:
            return self
        kind = type(instance).__name__
        raise AttributeError(f"{kind!r} object has no attribute {self.name!r}; {_said(self.write)}")


class _HidesOtherNames:
    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not is_other_name(type(self), name)]


class HasOtherNames(_HidesOtherNames):
    """Base of classes whose missing attributes have an error that names the code to write."""

    __slots__ = ()


class HasOtherSystemNames(_HidesOtherNames):
    """Base of systems, for the same purpose."""

    __slots__ = ()


def is_other_name(kind: type, name: str) -> bool:
    """Return True if a class has a name only to raise the error about it."""
    return isinstance(getattr(kind, name, None), OtherName)


def add_other_name(name: str, write: str) -> None:
    """Add a name to the table, unless the table has it."""
    if WRITE.setdefault(name, write) is write:
        setattr(HasOtherNames, name, OtherName(name, write))


def not_in_package(name: str, *, imported: bool) -> AttributeError | ImportError:
    """Return the error about a name that the package does not have.

    Args:
        name: the name.
        imported: whether ``from atomr_accel import name`` asks for it, which would replace an
            AttributeError by one without advice.
    """
    write = PACKAGE.get(name)
    if write is None:
        return AttributeError(f"module 'atomr_accel' has no attribute {name!r}")
    if imported:
        return ImportError(
            f"cannot import name {name!r} from 'atomr_accel'; write: {write}", name="atomr_accel"
        )
    return AttributeError(f"module 'atomr_accel' has no attribute {name!r}; write: {write}")


for _name, _write in WRITE.items():
    setattr(HasOtherNames, _name, OtherName(_name, _write))
for _name, _write in SYSTEM.items():
    setattr(HasOtherSystemNames, _name, OtherName(_name, _write))
