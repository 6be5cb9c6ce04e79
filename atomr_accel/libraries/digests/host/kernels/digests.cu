// Digests of chunks: XXH64 of the XXH64 of their leaves. And of rows. See wire/messages.py.

typedef unsigned long long u64;

#define P1 0x9E3779B185EBCA87ULL
#define P2 0xC2B2AE3D27D4EB4FULL
#define P3 0x165667B19E3779F9ULL
#define P4 0x85EBCA77C2B2AE63ULL
#define P5 0x27D4EB2F165667C5ULL

__device__ __forceinline__ u64 turned(u64 value, int bits) {
    return (value << bits) | (value >> (64 - bits));
}

__device__ __forceinline__ u64 mixed(u64 sum, u64 word) {
    return turned(sum + word * P2, 31) * P1;
}

__device__ __forceinline__ u64 merged(u64 hash, u64 sum) {
    return (hash ^ mixed(0, sum)) * P1 + P4;
}

// XXH64 with seed 0. The data begins at a multiple of 8 bytes.
__device__ u64 xxh64(const unsigned char* data, unsigned size) {
    const u64* words = reinterpret_cast<const u64*>(data);
    u64 hash = P5;
    unsigned stripes = size / 32;
    if (stripes) {
        u64 a = P1 + P2, b = P2, c = 0, d = 0 - P1;
#pragma unroll 8
        for (unsigned at = 0; at < stripes; at++) {
            a = mixed(a, words[4 * at]);
            b = mixed(b, words[4 * at + 1]);
            c = mixed(c, words[4 * at + 2]);
            d = mixed(d, words[4 * at + 3]);
        }
        hash = turned(a, 1) + turned(b, 7) + turned(c, 12) + turned(d, 18);
        hash = merged(merged(merged(merged(hash, a), b), c), d);
    }
    hash += size;
    unsigned at = 32 * stripes;
    for (; at + 8 <= size; at += 8) {
        hash = turned(hash ^ mixed(0, words[at / 8]), 27) * P1 + P4;
    }
    if (at + 4 <= size) {
        u64 half = *reinterpret_cast<const unsigned*>(data + at);
        hash = turned(hash ^ half * P1, 23) * P2 + P3;
        at += 4;
    }
    for (; at < size; at++) {
        hash = turned(hash ^ data[at] * P5, 11) * P1;
    }
    hash = (hash ^ (hash >> 33)) * P2;
    hash = (hash ^ (hash >> 29)) * P3;
    return hash ^ (hash >> 32);
}

// A thread digests a row, which begins at a multiple of 8 bytes. Numbers and the answer are in
// page-locked memory.
extern "C" __global__ void digest_rows(const unsigned char* data, u64* answer, const unsigned* rows,
                                       u64 count, u64 row_bytes) {
    u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        answer[at] = xxh64(data + rows[at] * row_bytes, static_cast<unsigned>(row_bytes));
    }
}

// A block sums the digests of rows, a thread has one of them if its bit is set. The mask and the
// answer are in page-locked memory. See SUM_ROWS in wire/messages.py.
extern "C" __global__ void sum_rows(const unsigned char* data, u64* answer, const unsigned* mask,
                                    u64 row_bytes) {
    __shared__ u64 terms[SUM_ROWS];
    u64 at = static_cast<u64>(blockIdx.x) * SUM_ROWS + threadIdx.x;
    u64 term = 0;
    if (mask[at / 32] >> (at % 32) & 1) {
        u64 place = threadIdx.x;
        u64 weight = xxh64(reinterpret_cast<const unsigned char*>(&place), 8) | 1;
        term = weight * xxh64(data + at * row_bytes, static_cast<unsigned>(row_bytes));
    }
    terms[threadIdx.x] = term;
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 sum = 0;
        for (unsigned place = 0; place < SUM_ROWS; place++) {
            sum += terms[place];
        }
        answer[blockIdx.x] = sum;
    }
}

// A block digests the chunk of its number, a thread one leaf of it. The answer is page-locked.
extern "C" __global__ void digest_chunks(const unsigned char* data, u64* answer, u64 size) {
    __shared__ u64 leaves[CHUNK_BYTES / LEAF_BYTES];
    u64 begin = static_cast<u64>(blockIdx.x) * CHUNK_BYTES;
    u64 rest = size - begin;
    unsigned chunk = rest < CHUNK_BYTES ? static_cast<unsigned>(rest) : CHUNK_BYTES;
    unsigned leaf = threadIdx.x * LEAF_BYTES;
    if (leaf < chunk) {
        unsigned bytes = chunk - leaf < LEAF_BYTES ? chunk - leaf : LEAF_BYTES;
        leaves[threadIdx.x] = xxh64(data + begin + leaf, bytes);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned count = (chunk + LEAF_BYTES - 1) / LEAF_BYTES;
        answer[blockIdx.x] = xxh64(reinterpret_cast<const unsigned char*>(leaves), 8 * count);
    }
}
