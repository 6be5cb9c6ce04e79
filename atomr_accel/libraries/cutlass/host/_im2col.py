"""The C++ of convolutions: CUTLASS's product with a mainloop that finds its rows in images.

A convolution is a product whose a is never in memory: each of its rows holds the elements that all
taps of the filter meet at one position. CUTLASS's own mainloops for that have no persistent kernels
for Hopper. ``Mainloop`` here is therefore the mainloop of a product, with its stages, its ``wgmma``
and its accumulators; only the loads differ. TMA gathers the elements that one tap meets in some
channels, at as many positions as a tile has rows (im2col). Outside of the image it gathers zeros.
The product sums over taps, and for each tap over tiles of channels. b, the filters, is a matrix for
each tap.

The gradient by images is the same with the gradient instead of images, and with taps in reverse.
For the gradient by filters there is a product for each tap. Its a is the gradient, whose rows are
filters. Its b is gathered, and has the positions that are summed over as rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..wire._spec import CutlassSpec

_HEAD: Final = """\
struct Window {{  // axes from the innermost
  int tiles, taps, flipped;  // tiles of channels; whether taps are taken from the last
  int positions[{space}], corner[{space}], stride[{space}], filter[{space}], dilation[{space}];
}};
struct Mainloop : Dense {{
  struct Params : Dense::Params {{ Window window; }};

  template <class Inputs, class Coord, class Iterator>
  CUTLASS_DEVICE void load(
      Params const& params, MainloopPipeline pipeline, PipelineState state, Inputs const& inputs,
      Coord const& where, Iterator, int count, int, uint32_t rank, TensorStorage& shared) {{
    if (!cute::elect_one_sync()) return;
    const Window& w = params.window;
    // Blocks along n share what is loaded of a: each loads some rows for all. So do those along m.
    constexpr int across = size<0>(cta::Cluster{{}}), along = size<1>(cta::Cluster{{}});
    const int x = rank % across, y = rank / across;
    uint16_t to_row = 0, to_column = 0;
    for (int n = 0; n < along; ++n) to_row |= 1 << (x + across * n);
    for (int m = 0; m < across; ++m) to_column |= 1 << (m + across * y);

"""

_ROWS: Final = """\
    constexpr int tall = size<0>(cta::Tile{{}}), deep = size<2>(cta::Tile{{}});
    constexpr int wide = cute::min(deep, 128 / int(sizeof(ElementA))), rows = tall / along;
    int pixel = get<0>(where) * tall + y * rows, corner[{space} + 1];
    for (int i = 0; i < {space}; ++i) {{
      corner[i] = pixel % w.positions[i] * w.stride[i] + w.corner[i];
      pixel /= w.positions[i];
    }}
    corner[{space}] = pixel;  // the image

    auto share = params.tma_load_b.get_slice(x);
    auto filters = share.partition_S(get<1>(inputs)(_, _, get<1>(where), _, _));
    Tensor all = make_tensor(make_smem_ptr(shared.smem_B.data()), SmemLayoutB{{}});
    auto stages = share.partition_D(all);
    int tile = 0, tap = 0, place[{space}] = {{}};
    uint16_t offset[{space}] = {{}};
    CUTLASS_PRAGMA_NO_UNROLL
    for (; count > 0; --count, ++state) {{
      pipeline.producer_acquire(state);
      uint64_t* barrier = pipeline.producer_get_barrier(state);
      auto* to = shared.smem_A.data() + state.index() * tall * deep + y * rows * wide;
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < deep / wide; ++part) {{
        {load}::copy(
            params.tma_load_a.get_tma_descriptor(), barrier, {mask}to + part * tall * wide,
            tile * deep + part * wide, {corner}, {offset});
      }}
      copy(
          params.tma_load_b.with(*barrier, to_column),
          filters(_, _, _, tile, w.flipped ? w.taps - 1 - tap : tap),
          stages(_, _, _, state.index()));
      if (++tile < w.tiles) continue;
      tile = 0;
      ++tap;
      for (int i = 0; i < {space}; ++i) {{
        const bool over = ++place[i] == w.filter[i];
        if (over) place[i] = 0;
        offset[i] = place[i] * w.dilation[i];
        if (!over) break;
      }}
    }}
"""
"""a is gathered: rows are positions, and b is a matrix for each tap."""

_COLUMNS: Final = """\
    constexpr int broad = size<1>(cta::Tile{{}}), deep = size<2>(cta::Tile{{}});
    constexpr int wide = broad % 64 ? 32 : 64, pixels = deep / across;
    const int channel = get<1>(where) * broad;
    uint16_t offset[{space}];  // of the tap, which is the product's number
    int tap = get<3>(where);
    for (int i = 0; i < {space}; ++i) {{
      offset[i] = tap % w.filter[i] * w.dilation[i];
      tap /= w.filter[i];
    }}

    auto share = params.tma_load_a.get_slice(y);
    auto grads = share.partition_S(get<0>(inputs)(_, _, get<0>(where), _, 0));
    Tensor all = make_tensor(make_smem_ptr(shared.smem_A.data()), SmemLayoutA{{}});
    auto stages = share.partition_D(all);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int step = 0; step < count; ++step, ++state) {{
      int pixel = step * deep + x * pixels, corner[{space} + 1];
      for (int i = 0; i < {space}; ++i) {{
        corner[i] = pixel % w.positions[i] * w.stride[i] + w.corner[i];
        pixel /= w.positions[i];
      }}
      corner[{space}] = pixel;  // the image
      pipeline.producer_acquire(state);
      uint64_t* barrier = pipeline.producer_get_barrier(state);
      auto* to = shared.smem_B.data() + state.index() * broad * deep + x * pixels * wide;
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < broad / wide; ++part) {{
        {load}::copy(
            params.tma_load_b.get_tma_descriptor(), barrier, {mask}to + part * wide * deep,
            channel + part * wide, {corner}, {offset});
      }}
      copy(
          params.tma_load_a.with(*barrier, to_row), grads(_, _, _, step),
          stages(_, _, _, state.index()));
    }}
"""
"""A mainloop that gathers b and sums over positions; there is a product for each tap."""

PROBLEM: Final = (
    "channels, flipped, image[{space}], positions[{space}], corner[{space}], stride[{space}], "
    "filter[{space}], dilation[{space}], "
)

_FILL: Final = """\
  // Each tap has its channels in whole tiles, which TMA fills up with zeros.
  constexpr int deep = size<2>(cta::Tile{{}});
  Window window{{}};
  window.tiles = (p.channels + deep - 1) / deep;
  window.taps = 1;
  window.flipped = p.flipped;
  for (int i = 0; i < {space}; ++i) {{
    const int j = {space} - 1 - i;
    window.positions[i] = p.positions[j];
    window.corner[i] = p.corner[j];
    window.stride[i] = p.stride[j];
    window.filter[i] = p.filter[j];
    window.dilation[i] = p.dilation[j];
    window.taps *= p.filter[j];
  }}
  const Sizes sizes = make_shape({sizes});
  const long long mn = 1ll * p.m * p.n;
  const Dense::Arguments given{{
      pointer<ElementA const>(0), strides<Gemm::StrideA>(p.channels, 0),
      pointer<ElementB const>(1), strides<Gemm::StrideB>(p.k, p.channels)}};
  const Epilogue::Arguments after{{
      {fusion},
      pointer<Epilogue::ElementC const>(2), strides<Gemm::StrideC>({strides}),
      pointer<Epilogue::ElementD>(3), strides<Gemm::StrideD>({strides})}};
  *out = {{
      gemm::GemmUniversalMode::kGemm, sizes,
      Mainloop::Params{{Dense::to_underlying_arguments(sizes, given, nullptr), window}},
      Epilogue::to_underlying_arguments(sizes, after, nullptr), hardware,
      Gemm::TileScheduler::to_underlying_arguments(
          sizes, cta::Tile{{}}, cta::Cluster{{}}, hardware, scheduler, nullptr,
          Epilogue::get_store_pipe_increment(cta::Tile{{}}))}};
  const dim3 blocks = Gemm::get_grid_shape(*out);"""


def mainloop(spec: CutlassSpec) -> str:
    """The mainloop."""
    space = spec.space
    shared = spec.cluster[0 if spec.trans_a else 1] > 1  # by blocks of a cluster
    mask = "to_column, " if spec.trans_a else "to_row, "
    text = (_HEAD, _COLUMNS if spec.trans_a else _ROWS, "  }}\n}};\n")
    return "".join(text).format(
        space=space,
        load=f"SM90_TMA_LOAD_IM2COL{'_MULTICAST' * shared}_{space + 2}D",
        mask=mask * shared,
        corner=", ".join(f"corner[{axis}]" for axis in range(space + 1)),
        offset=", ".join(f"offset[{axis}]" for axis in range(space)),
    )


def fill(spec: CutlassSpec, fusion: str) -> str:
    """Return the C++ that fills the parameters."""
    return _FILL.format(
        space=spec.space,
        fusion=fusion,
        sizes="p.m, p.n, p.k, p.count"
        if spec.trans_a
        else "p.m, p.n, window.taps * window.tiles * deep, 1",
        strides=strides(spec),
    )


def strides(spec: CutlassSpec) -> str:
    """Between rows of results, and between matrices."""
    return "1ll * p.count * p.n, p.n" if spec.trans_a else "p.n, mn"
