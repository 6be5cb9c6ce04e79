// atomr_accel: CUDA_ERROR_MISALIGNED_ADDRESS: writes an int at an odd address; one thread.
extern "C" __global__ void fault(int where) {
  __shared__ volatile int cells[4];
  volatile int* odd = (volatile int*)((char*)cells + where + 1);
  *odd = 1;
  // Nothing waits for a write to shared memory: the kernel could be done before the exception is
  // raised. A read is waited for where its value is used, and then the kernel lasts a second.
  cells[0] = *odd;
  for (int i = 0; i < 1000000; ++i) __nanosleep(1000);
}
