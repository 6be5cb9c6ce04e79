// atomr_accel: Spins for as long as "go" is not 0, which is for ever. One thread.
extern "C" __global__ void hang(int go) { while (go) { __nanosleep(1000); } }
