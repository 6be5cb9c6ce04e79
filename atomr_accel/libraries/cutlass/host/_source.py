"""The C++ of a build: a kernel by CUTLASS's collective builders, and one that fills its parameters.

CUTLASS makes the parameters of a kernel on the host, in C++, which needs a compiler there. Here the
same functions are compiled for the device (NVRTC's ``-default-device``), into a second kernel of
one thread, ``fill``. It writes the parameters for the sizes that it gets. In the places of a call's
pointers and numbers it writes marks, which the executor finds and replaces (``_plans``). Only the
driver encodes tensor maps, and CUTLASS leaves them empty under NVRTC. Their offsets and boxes
follow from the types. The array ``facts`` holds them, and is read from the cubin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...._dtypes import DTYPES
from ..wire._spec import ACCUMULATOR, COOPERATIVE, FUNCTIONS, SOURCE
from . import _im2col

if TYPE_CHECKING:
    from ..wire._spec import CutlassSpec, EpilogueNode

POINTER_MARK: Final = 0x7E57AB1E
"""The upper half of what stands for a pointer; the lower is 256 times its number."""
NUMBER_MARK: Final = 0x7E57AB00
"""Mark of a float32; its number, below ``MOST_NUMBERS``, is added."""

OPERANDS: Final = 4
"""Pointers with numbers below this are a, b, c and the result; the epilogue's follow."""

FACTS: Final = ("params", "shared", "threads", "stages", "shared_by_a", "shared_by_b")
"""First numbers of ``facts``. ``params`` and ``shared`` are the bytes of parameters and of shared
memory, and ``threads`` those of a block. ``stages`` is the number of tiles that are loaded ahead.
``shared_by_a`` and ``shared_by_b`` are the blocks of a cluster that share tiles of a, and of b.

Six numbers for each tensor map follow: see ``_images``.
"""

_TYPES: Final = {
    "float16": "cutlass::half_t",
    "bfloat16": "cutlass::bfloat16_t",
    "float32": "float",
    "int8": "int8_t",
    "int32": "int32_t",
    "float8_e4m3fn": "cutlass::float_e4m3_t",
    "float8_e5m2": "cutlass::float_e5m2_t",
}

_VECTOR: Final = "Stride<_0, _1, _0>"
_SUM: Final = "cutlass::plus, cutlass::plus, cutlass::atomic_add"

_HEAD: Final = """\
#include <cuda/std/cstdint>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
// What CUTLASS takes from headers of the host, which NVRTC does not have.
namespace std {
using cuda::std::is_const_v;
using cuda::std::is_pointer_v;
using cuda::std::void_t;
}
struct CUstream_st;
typedef CUstream_st* cudaStream_t;
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
namespace std {  // structured bindings of what is const
template <class... T>
struct tuple_size<const cute::tuple<T...>> : tuple_size<cute::tuple<T...>> {};
template <size_t I, class... T>
struct tuple_element<I, const cute::tuple<T...>> {
  using type = const typename tuple_element<I, cute::tuple<T...>>::type;
};
}
using namespace cute;
namespace gemm = cutlass::gemm;
namespace epilogue = cutlass::epilogue;
namespace fusion = cutlass::epilogue::fusion;
constexpr auto ROUND = cutlass::FloatRoundStyle::round_to_nearest;

template <class T>
struct Same {
  T operator()(T const& a) const { return a; }
};
template <class T>
struct Larger {  // of magnitudes; NaN is larger than all
  T operator()(T a, T b) const {
    b = fabsf(b);
    return a != a ? a : (b != b || b > a) ? b : a;
  }
};
"""

_UNARY: Final = """\
template <class T>
struct F_{name} {{
  T operator()(T const& x) const {{
    T y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < T::kElements; ++i) {{ float a = x[i]; y[i] = {code}; }}
    return y;
  }}
}};
"""

_BINARY: Final = """\
template <class T>
struct F_{name} {{
  T operator()(T const& x, T const& z) const {{
    T y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < T::kElements; ++i) {{ float a = x[i], b = z[i]; y[i] = {code}; }}
    return y;
  }}
}};
"""


_KERNEL: Final = """\
using Epilogue = epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, cta::Tile, cta::Cluster,
    epilogue::collective::EpilogueTileAuto, Accumulator, float,
    ElementC, cutlass::layout::RowMajor{each}, {align_c},
    ElementD, cutlass::layout::RowMajor{each}, {align_d},
    epilogue::{epilogue_schedule}, Fusion>::CollectiveOp;
using {mainloop} = gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp,
    ElementA, cutlass::layout::{layout_a}{each}, {align_a},
    ElementB, cutlass::layout::{layout_b}{each}, {align_b}, Accumulator,
    cta::Tile, cta::Cluster, gemm::collective::{stages}, gemm::{schedule}>::CollectiveOp;
{window}using Sizes = {sizes};
using Gemm = gemm::kernel::GemmUniversal<Sizes, Mainloop, Epilogue>;
using MainloopParams = Mainloop::Params;
using EpilogueParams = Epilogue::Params;

extern "C" __global__ void __launch_bounds__(Gemm::MaxThreadsPerBlock, 1)
product(const __grid_constant__ Gemm::Params params) {{
  extern __shared__ char memory[];
  Gemm{{}}(params, memory);
}}

struct Problem {{
  int m, n, k, count, {problem}processors, swizzle;
}};

template <class S>
S strides(long long row, long long matrix) {{
  S s{{}};
  if constexpr (!is_static<decltype(get<0>(s))>::value) get<0>(s) = row;
  if constexpr (!is_static<decltype(get<1>(s))>::value) get<1>(s) = row;
  if constexpr (!is_static<decltype(get<2>(s))>::value) get<2>(s) = matrix;
  return s;
}}

template <class T>
T* pointer(int number) {{
  return reinterpret_cast<T*>(({pointer_mark}ull << 32) + 256 * number);
}}

float number(int number) {{ return __uint_as_float({number_mark}u + number); }}

extern "C" __global__ void fill(const Problem p, Gemm::Params* out, int* grid) {{
  cutlass::KernelHardwareInfo hardware{{}};
  hardware.sm_count = p.processors;
  Gemm::TileSchedulerArguments scheduler{{}};
  scheduler.max_swizzle_size = p.swizzle;
{fill}
  grid[0] = blocks.x;
  grid[1] = blocks.y;
  grid[2] = blocks.z;
}}

template <class Copy>
struct Map {{  // a tensor map's box, innermost first, and its swizzle
  using Aux = typename Copy::Traits::AuxParams;
  using Basis = typename Aux::TmaGmemBasis;
  template <int B, int M, int S>
  static constexpr int bits(Swizzle<B, M, S>) {{ return B; }}
  static constexpr int swizzle = bits(typename Aux::TmaSwizzle{{}});
  static constexpr int modes = decltype(rank(Basis{{}}))::value;
  template <int I>
  static constexpr int box() {{
    if constexpr (I < modes) return decltype(size<I>(Basis{{}}))::value;
    else return 1;
  }}
}};
template <class Copy, int Cut>
constexpr unsigned long long shared_by = cute::is_same_v<Copy, SM90_TMA_LOAD> ? 1 : Cut;
#define MAP(part, Part, copy) \\
  __INTADDR__(&((Gemm::Params*)0)->part) + __INTADDR__(&((Part*)0)->copy), \\
  Map<decltype(Part::copy)>::modes, Map<decltype(Part::copy)>::template box<0>(), \\
  Map<decltype(Part::copy)>::template box<1>(), Map<decltype(Part::copy)>::template box<2>(), \\
  Map<decltype(Part::copy)>::swizzle
extern "C" __device__ const unsigned long long facts[] = {{
    sizeof(Gemm::Params), Gemm::SharedStorageSize, Gemm::MaxThreadsPerBlock,
    Mainloop::DispatchPolicy::Stages,
    shared_by<Mainloop::GmemTiledCopyA, size<1>(cta::Cluster{{}})>,
    shared_by<Mainloop::GmemTiledCopyB, size<0>(cta::Cluster{{}})>,
    MAP(mainloop, MainloopParams, tma_load_a), MAP(mainloop, MainloopParams, tma_load_b),
    MAP(epilogue, EpilogueParams, tma_load_c), MAP(epilogue, EpilogueParams, tma_store_d)}};
"""

_FILL: Final = """\
  // As Gemm::to_underlying_arguments, which asks for processors by a function that is not there.
  const Sizes sizes = make_shape(p.m, p.n, p.k, p.count);
  const long long mk = 1ll * p.m * p.k, nk = 1ll * p.n * p.k, mn = 1ll * p.m * p.n;
  const Mainloop::Arguments mainloop{{
      pointer<ElementA const>(0), strides<Gemm::StrideA>({row_a}, mk),
      pointer<ElementB const>(1), strides<Gemm::StrideB>({row_b}, nk)}};
  const Epilogue::Arguments after{{
      {fusion},
      pointer<Epilogue::ElementC const>(2), strides<Gemm::StrideC>(p.n, mn),
      pointer<Epilogue::ElementD>(3), strides<Gemm::StrideD>(p.n, mn)}};
  *out = {{
      gemm::GemmUniversalMode::kGemm, sizes,
      Mainloop::to_underlying_arguments(sizes, mainloop, nullptr),
      Epilogue::to_underlying_arguments(sizes, after, nullptr), hardware,
      Gemm::TileScheduler::to_underlying_arguments(
          sizes, cta::Tile{{}}, cta::Cluster{{}}, hardware, scheduler, nullptr,
          Epilogue::get_store_pipe_increment(cta::Tile{{}}))}};
  const dim3 blocks = Gemm::get_grid_shape(*out);"""

_FILL_GROUPED: Final = """\
  // Arrays, by product: pointers to a, b, what is added and the result; strides of rows; sizes.
  const Sizes sizes{{p.count, pointer<Sizes::UnderlyingProblemShape>(8)}};
  const Mainloop::Arguments mainloop{{
      pointer<ElementA const*>(0), pointer<Gemm::InternalStrideA>(4),
      pointer<ElementB const*>(1), pointer<Gemm::InternalStrideB>(5)}};
  const Epilogue::Arguments after{{
      {fusion}, pointer<Epilogue::ElementC const*>(2), pointer<Gemm::InternalStrideC>(6),
      pointer<Epilogue::ElementD*>(3), pointer<Gemm::InternalStrideD>(7)}};
  // And where each multiprocessor writes its tensor maps: of results, of operands.
  *out = {{
      gemm::GemmUniversalMode::kGrouped, sizes,
      Mainloop::to_underlying_arguments(sizes, mainloop, pointer<void>(10)),
      Epilogue::to_underlying_arguments(sizes, after, pointer<void>(9)), hardware,
      Gemm::TileScheduler::to_underlying_arguments(
          sizes, cta::Tile{{}}, cta::Cluster{{}}, hardware, scheduler, nullptr)}};
  const dim3 blocks = Gemm::get_grid_shape(*out);"""


def source_of(spec: CutlassSpec) -> str:
    """The C++ of a build."""
    writer = _EpilogueFusion(spec)
    kind, arguments = writer.root()
    array = "PtrArray" if spec.grouped else ""
    kind_of_schedule = spec.schedule.capitalize()
    schedule = f"Kernel{array}TmaWarpSpecialized{kind_of_schedule}"
    if spec.fast:
        schedule += "FP8FastAccum"
    if not spec.grouped and spec.schedule != COOPERATIVE:
        kind_of_schedule = ""
    source = _TYPES[spec.source] if spec.source else "void"
    if spec.space:
        fill = _im2col.fill(spec, arguments)
    else:
        fill = (_FILL_GROUPED if spec.grouped else _FILL).format(
            row_a="p.m" if spec.trans_a else "p.k",
            row_b="p.k" if spec.trans_b else "p.n",
            fusion=arguments,
        )
    return "".join(
        (
            _HEAD,
            *writer.functions(),
            "namespace cta {\n",
            f"using Tile = Shape<{_shape(spec.tile)}>;\n",
            f"using Cluster = Shape<{_shape(spec.cluster)}>;\n}}\n",
            f"using ElementA = {_TYPES[spec.a]};\n",
            f"using ElementB = {_TYPES[spec.b]};\n",
            f"using ElementC = {source};\n",
            f"using ElementD = {_TYPES[spec.out]};\n",
            f"using Accumulator = {_TYPES[spec.accumulator]};\n",
            "using Matrix = Stride<int64_t, _1, int64_t>;\n",
            f"using Fusion = {kind};\n",
            _KERNEL.format(
                each="*" if spec.grouped else "",
                align_a=_aligned(spec.a),
                align_b=_aligned(spec.b),
                align_c=_aligned(spec.source or spec.out),
                align_d=_aligned(spec.out),
                layout_a="ColumnMajor" if spec.trans_a else "RowMajor",
                layout_b="ColumnMajor" if spec.trans_b else "RowMajor",
                sizes="gemm::GroupProblemShape<Shape<int, int, int>>"
                if spec.grouped
                else "Shape<int, int, int, int>",
                stages=f"StageCount<{spec.stages}>"
                if spec.stages
                else "StageCountAutoCarveout<int(sizeof(Epilogue::SharedStorage))>",
                schedule=schedule,
                epilogue_schedule=f"{array}TmaWarpSpecialized{kind_of_schedule}",
                mainloop="Dense" if spec.space else "Mainloop",
                window=_im2col.mainloop(spec) if spec.space else "",
                problem=_im2col.PROBLEM.format(space=spec.space) if spec.space else "",
                pointer_mark=hex(POINTER_MARK),
                number_mark=hex(NUMBER_MARK),
                fill=fill,
            ),
        )
    )


def _shape(sizes: tuple[int, ...]) -> str:
    return ", ".join(f"Int<{size}>" for size in sizes)


def _aligned(dtype: str) -> int:
    """Elements in 16 bytes, at multiples of which rows begin."""
    return 16 // DTYPES[dtype].itemsize


class _EpilogueFusion:
    """An epilogue as a visitor tree: its type, and its arguments with marks in them."""

    def __init__(self, spec: CutlassSpec) -> None:
        self._spec = spec
        self._used: dict[str, None] = {}
        self._strides = _im2col.strides(spec) if spec.space else "p.n, mn"

    def functions(self) -> list[str]:
        """Return the C++ functions that the epilogue uses."""
        return [
            (_UNARY if FUNCTIONS[name].arity == 1 else _BINARY).format(
                name=name, code=FUNCTIONS[name].code
            )
            for name in self._used
        ]

    def root(self) -> tuple[str, str]:
        """Return the whole epilogue, whose result has the result's dtype, and its arguments."""
        tree = self._spec.epilogue
        if tree.op in FUNCTIONS:
            return self._of(tree, "ElementD")
        kind, arguments = self._of(tree, "")
        # Sums of int8 go through no float, which does not hold all of them.
        through = "Accumulator" if tree.op == ACCUMULATOR else "float"
        compute = f"fusion::Sm90Compute<Same, ElementD, {through}, ROUND>"
        return f"fusion::Sm90EVT<{compute}, {kind}>", f"{{{arguments}, {{}}}}"

    def _of(self, node: EpilogueNode, result: str = "float") -> tuple[str, str]:
        op, slot = node.op, OPERANDS + node.slot
        if op == ACCUMULATOR:
            return "fusion::Sm90AccFetch", "{}"
        if op == SOURCE:
            return "fusion::Sm90SrcFetch<ElementC>", "{}"
        if op == "number":
            return "fusion::Sm90ScalarBroadcast<float>", f"{{{{number({node.slot})}}}}"
        if op == "scalar":
            return (
                "fusion::Sm90ScalarBroadcast<float>",
                f"{{{{0.f}}, {{pointer<float const>({slot})}}}}",
            )
        inputs = [self._of(each) for each in node.inputs]
        types = "".join(f", {kind}" for kind, _ in inputs)
        before = "".join(f"{arguments}, " for _, arguments in inputs)
        if op in FUNCTIONS:
            self._used[op] = None
            compute = f"fusion::Sm90Compute<F_{op}, {result}, float, ROUND>"
            return f"fusion::Sm90EVT<{compute}{types}>", f"{{{before}{{}}}}"
        kind = _TYPES[node.dtype]
        # Rows begin where those of the result do, and vectors are as long.
        aligned = min(_aligned(node.dtype), _aligned(self._spec.out))
        read = f"pointer<{kind} const>({slot})"
        if op == "row":
            return (
                f"fusion::Sm90RowBroadcast<0, cta::Tile, {kind}, float, {_VECTOR}, {aligned}>",
                f"{{{read}}}",
            )
        if op == "column":
            return f"fusion::Sm90ColBroadcast<0, cta::Tile, {kind}, float>", f"{{{read}}}"
        if op == "full":
            return (
                f"fusion::Sm90AuxLoad<0, void, {kind}, Matrix, void, void, {aligned}, false>",
                f"{{{read}, {kind}(0), strides<Matrix>({self._strides})}}",
            )
        write = f"pointer<{kind}>({slot})"
        visitor, given = {
            "store": (
                f"Sm90AuxStore<0, void, {kind}, ROUND, Matrix, void, void, {aligned}, false>",
                f"{{{write}, strides<Matrix>({self._strides})}}",
            ),
            "amax": (
                "Sm90ScalarReduction<Larger, cutlass::atomic_maximum, float, float, ROUND>",
                f"{{{write}}}",
            ),
            "sum_rows": (
                f"Sm90RowReduction<{_SUM}, 0, cta::Tile, float, float, ROUND>",
                f"{{{write}}}",
            ),
            "sum_columns": (
                f"Sm90ColReduction<{_SUM}, 0, cta::Tile, float, float, ROUND>",
                f"{{{write}}}",
            ),
        }[op]
        return f"fusion::Sm90EVT<fusion::{visitor}{types}>", f"{{{before}{given}}}"
