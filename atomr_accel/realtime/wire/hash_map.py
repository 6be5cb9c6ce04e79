"""Kernels of a hash map with open addressing and linear probing."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .kernels import KernelSource

Array: TypeAlias = np.ndarray[Any, Any]

EMPTY: Final = -(2**63)
GONE: Final = EMPTY + 1
"""Keys of slots that are free, or whose entry was deleted."""

SOURCE: Final = r"""
typedef long long int64;
#define EMPTY ((long long)0x8000000000000000ull)
#define GONE (EMPTY + 1)

__device__ __forceinline__ int64 home(long long key, long long mask) {
    unsigned long long x = (unsigned long long)key;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (int64)((x ^ (x >> 31)) & (unsigned long long)mask);
}

// Each key takes a slot; of equal keys the last one becomes the owner of theirs.
extern "C" __global__ void claim(
    long long* table, int* owner, int* slots, int* used, const long long* keys, int n,
    long long mask
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long key = keys[i];
    slots[i] = -1;
    if (key == EMPTY || key == GONE) return;  // of a rebuild
    long long slot = home(key, mask);
    for (;;) {
        unsigned long long found = ((volatile unsigned long long*)table)[slot];
        if (found == (unsigned long long)EMPTY) {
            found = atomicCAS((unsigned long long*)table + slot, (unsigned long long)EMPTY,
                              (unsigned long long)key);
            if (found == (unsigned long long)EMPTY) { atomicAdd(used, 1); break; }
        }
        if (found == (unsigned long long)key) break;
        slot = (slot + 1) & mask;
    }
    slots[i] = (int)slot;
    atomicMax(owner + slot, i + 1);
}

extern "C" __global__ void store(
    long long* values, const int* owner, const int* slots, const long long* given, int n
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && slots[i] >= 0 && owner[slots[i]] == i + 1) values[slots[i]] = given[i];
}

extern "C" __global__ void release(int* owner, const int* slots, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && slots[i] >= 0) owner[slots[i]] = 0;
}

extern "C" __global__ void find(
    long long* out, unsigned char* found, int* slots, const long long* table,
    const long long* values, const long long* keys, int n, long long mask
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long key = keys[i], slot = home(key, mask);
    while (table[slot] != key && table[slot] != EMPTY) slot = (slot + 1) & mask;
    bool here = table[slot] == key;
    out[i] = here ? values[slot] : 0;
    found[i] = here;
    slots[i] = here ? (int)slot : -1;
}

extern "C" __global__ void erase(long long* table, int* erased, const int* slots, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || slots[i] < 0) return;
    unsigned long long* place = (unsigned long long*)table + slots[i];
    if (atomicExch(place, (unsigned long long)GONE) != (unsigned long long)GONE)
        atomicAdd(erased, 1);
}
"""


def home(keys: Any, mask: int) -> Any:
    """Return the slots where the search for keys begins."""
    x = keys.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) & np.uint64(mask)).astype(np.int64)


def claim(
    table: Array, owner: Array, slots: Array, used: Array, keys: Array, n: int, mask: int
) -> None:
    """Take a slot for each key."""
    slots[...] = -1
    left = np.flatnonzero((keys != EMPTY) & (keys != GONE))
    slot = home(keys[left], int(mask))
    while left.size:
        free = np.flatnonzero(table[slot] == EMPTY)
        _, first = np.unique(slot[free], return_index=True)
        taken = free[first]
        table[slot[taken]] = keys[left[taken]]
        used += taken.size
        done = table[slot] == keys[left]
        slots[left[done]] = slot[done]
        left, slot = left[~done], (slot[~done] + 1) & int(mask)
    here = slots >= 0
    np.maximum.at(owner, slots[here], np.flatnonzero(here).astype(np.int32) + 1)


def store(values: Array, owner: Array, slots: Array, given: Array, n: int) -> None:
    """Let owners write their values."""
    at = np.flatnonzero(slots >= 0)
    at = at[owner[slots[at]] == at + 1]
    values[slots[at]] = given[at]


def release(owner: Array, slots: Array, n: int) -> None:
    """Take ownership back."""
    owner[slots[slots >= 0]] = 0


def find(
    out: Array,
    found: Array,
    slots: Array,
    table: Array,
    values: Array,
    keys: Array,
    n: int,
    mask: int,
) -> None:
    """Find keys."""
    slot = home(keys, int(mask))
    left = np.arange(n)
    while left.size:
        seen = table[slot[left]]
        left = left[(seen != keys[left]) & (seen != EMPTY)]
        slot[left] = (slot[left] + 1) & int(mask)
    here = table[slot] == keys
    found[...] = here
    slots[...] = np.where(here, slot, -1)
    out[...] = np.where(here, values[slot], 0)


def erase(table: Array, erased: Array, slots: Array, n: int) -> None:
    """Delete the keys that were found."""
    at = np.unique(slots[slots >= 0])
    erased += at.size
    table[at] = GONE


HASH_MAP: Final = KernelSource(
    SOURCE, {each.__name__: each for each in (claim, store, release, find, erase)}
)
