// atomr_accel: CUDA_ERROR_ILLEGAL_ADDRESS: writes where nothing is. One thread, with "where" 0.
extern "C" __global__ void fault(int where) { *(volatile int*)(size_t)(16 + where) = 1; }
