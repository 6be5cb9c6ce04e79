// atomr_accel: CUDA_ERROR_LAUNCH_FAILED: a trap. One thread, with "where" 0.
extern "C" __global__ void fault(int where) { if (where == 0) __trap(); }
