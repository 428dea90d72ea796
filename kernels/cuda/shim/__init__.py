"""The CUDA kernels on a machine without a GPU: compiled as C++, threads as fibers. Read `runtime.cpp` for how."""
