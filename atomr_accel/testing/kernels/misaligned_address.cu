// CUDA_ERROR_MISALIGNED_ADDRESS: writes an int at an odd address. One thread, with "where" 0.
extern "C" __global__ void fault(int where) {
  __shared__ volatile int cells[4];
  *(volatile int*)((char*)cells + where + 1) = 1;
}
