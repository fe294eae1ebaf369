"""The CUDA backend: circuits to fused Triton kernels. Its rules shape plans already; its kernels are not here yet."""
