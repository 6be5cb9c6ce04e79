// Lengths and offsets of sequences ("derive"), caches in pages ("append", "clean"), "dropout",
// and queries without keys ("blank").
//
// Each is launched with one thread for each item that "count" counts, or with fewer, which take
// several in turn. LISTS, how many lists "derive" makes at most, comes from Python.

#include "conversions.cuh"
#include "philox.cuh"
#include "types.cuh"

struct Derived {
  u64 target, source;
  i64 multiplier, addend;
  i64 count, ceiling;
  int differences, wide;
};
struct Lists { Derived list[LISTS]; };

// Integers from integers, several lists at once; each has room for "longest" threads.
__global__ void derive(Lists lists, u64 longest, u64 count) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const Derived& made = lists.list[at / longest];
    const i64 index = at % longest;
    if (index >= made.count) continue;
    const int* source = (const int*)made.source;
    i64 value = index;
    if (source) value = made.differences ? source[index + 1] - source[index] : source[index];
    value = value * made.multiplier + made.addend;
    if (value > made.ceiling) value = made.ceiling;
    if (made.wide) ((i64*)made.target)[index] = value;
    else ((int*)made.target)[index] = (int)value;
  }
}

// New rows behind the old ones of a cache in pages; T is the piece that a thread copies, of
// which a row has "width". What has no page, or none that exists, is not written.
template <class T>
__global__ void append(T* cache, const T* rows, const int* lengths, const int* table, u64 count,
                       u64 width, u64 fresh, u64 page, u64 columns, u64 pages, i64 shift) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const u64 row = at / width, sequence = row / fresh;
    const i64 place = (i64)lengths[sequence] + shift + (i64)(row % fresh);
    if (place < 0 || (u64)place >= page * columns) continue;
    const i64 found = table ? table[sequence * columns + place / page] : (i64)sequence;
    if (found < 0 || (u64)found >= pages) continue;
    cache[((u64)found * page + place % page) * width + at % width] = rows[at];
  }
}

// Sequences with zeros behind their ends; T is the piece that a thread copies. "groups" blocks
// belong to a sequence, of which each row is "width" pieces. What lies behind is not even read.
// With a table the source is in pages; rows that have none, or one that does not exist, are zeros.
template <class T>
__global__ void clean(T* target, const T* source, const int* lengths, const int* table, u64 count,
                      u64 block, u64 groups, u64 width, u64 page, u64 columns, u64 pages) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const u64 number = at / block, place = at - number * block;
    const int length = lengths[number / groups];
    bool counts = length > 0 && place < (u64)length * width;
    u64 from = at;
    if (table && counts) {
      const u64 row = place / width, column = row / page;
      const i64 found = column < columns ? table[number * columns + column] : -1;
      counts = found >= 0 && (u64)found < pages;
      from = ((u64)found * page + row % page) * width + place % width;
    }
    target[at] = counts ? source[from] : T{};
  }
}

// The rows of queries that see no key become "value", or what each head has in "sinks". There is
// a thread for each query, because there are few such rows. T is as wide as an element.
template <class T>
__global__ void blank(T* target, const int* lengths_q, const int* lengths_k, const i64* offsets,
                      const T* sinks, u64 count, i64 heads, i64 rows, i64 most, i64 by_batch,
                      i64 by_head, i64 by_row, i64 width, i64 left, i64 right, i64 top_left,
                      i64 value) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const i64 row = at % rows, head = at / rows % heads, sequence = at / rows / heads;
    const i64 queries = lengths_q ? lengths_q[sequence] : rows;
    const i64 keys = lengths_k ? lengths_k[sequence] : most;
    if (row >= queries) continue;
    const i64 moved = top_left ? row : row + keys - queries;
    const i64 first = left < 0 || moved < left ? 0 : moved - left;
    const i64 end = right < 0 || moved + right + 1 > keys ? keys : moved + right + 1;
    if (first < end) continue;
    const i64 begin = offsets ? offsets[sequence] : sequence * by_batch;
    T* const there = target + begin + head * by_head + row * by_row;
    for (i64 i = 0; i < width; ++i) there[i] = sinks ? sinks[head] : (T)value;
  }
}

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ void narrow(float& target, float value) { target = value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ void narrow(double& target, double value) { target = value; }

// A thread takes the elements that one block of four words decides on. Element i is kept if
// word "position + i" is not below the threshold.
template <class T, class S>
__global__ void dropout(T* y, const T* x, u64 elements, u64 key, u64 position, u64 threshold,
                        S scale, u64 count) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const u64 block = position / 4 + at;
    const uint4 drawn = random_words(block, key);
    const u32 words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
    for (int i = 0; i < 4; ++i) {
      const u64 word = 4 * block + i;
      if (word < position || word - position >= elements) continue;
      const u64 index = word - position;
      if (words[i] < threshold) narrow(y[index], (S)0);
      else narrow(y[index], widen(x[index]) * scale);
    }
  }
}
