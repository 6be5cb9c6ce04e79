// atomr_accel: CUDA_ERROR_ASSERT: what assert() does where it fails. One thread, with "where" 0.
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
extern "C" __global__ void fault(int where) {
  if (where == 0) __assertfail("where != 0", "assert.cu", 4, "fault", 1);
}
