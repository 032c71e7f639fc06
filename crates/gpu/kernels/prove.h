// A kernel that shows that compiling, loading and starting kernels works.

struct prove_args {
    unsigned long long *out;
    unsigned long long count;
    unsigned long long begin;
};

// out[i] = begin + i, for i below count.
extern "C" __global__ void prove(const struct prove_args a) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.out[i] = a.begin + i;
}
