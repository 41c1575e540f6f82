// What a program hands to cuBLAS, with a type of data or of computation for what is computed in, and half as a type.
#include <cublas_v2.h>
#include <cuda_fp16.h>
int main() {
  cublasHandle_t h = nullptr;
  float one = 1, zero = 0;
  __half half_one = __float2half(1.f), *a = nullptr, *b = nullptr, *c = nullptr;
  const void* const* many = nullptr;
  void* const* made = nullptr;
  auto n = CUBLAS_OP_N, t = CUBLAS_OP_T;
  auto algo = CUBLAS_GEMM_DEFAULT_TENSOR_OP;
  int said = 0;
  said |= cublasGemmEx(h, n, t, 3, 4, 5, &one, a, CUDA_R_16F, 3, b, CUDA_R_16F, 4, &zero, c, CUDA_R_32F, 6, CUDA_R_32F, algo);
  said |= cublasGemmEx(h, t, n, 3, 4, 5, &one, a, CUDA_R_8I, 5, b, CUDA_R_8I, 5, &zero, c, CUDA_R_32I, 3, CUDA_R_32I, algo);
  said |= cublasGemmEx(h, n, n, 3, 4, 5, &one, a, CUDA_R_64F, 3, b, CUDA_R_64F, 5, &zero, c, CUDA_R_64F, 3, CUBLAS_COMPUTE_64F, algo);
  said |= cublasGemmBatchedEx(h, n, n, 3, 4, 5, &one, many, CUDA_R_16F, 3, many, CUDA_R_16F, 5, &zero, made, CUDA_R_16F, 3, 7, CUDA_R_16F, algo);
  said |= cublasGemmStridedBatchedEx(h, n, n, 3, 4, 5, &one, a, CUDA_R_16BF, 3, 15, b, CUDA_R_16BF, 5, 20, &zero, c, CUDA_R_16BF, 3, 12, 7, CUDA_R_32F, algo);
  said |= cublasHgemm(h, n, n, 3, 4, 5, &half_one, a, 3, b, 5, &half_one, c, 3);
  return said;
}
