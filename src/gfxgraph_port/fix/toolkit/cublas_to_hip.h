// cuBLAS: hipBLAS with CUDA's types of data and of computation, and half as a type.
#pragma once
#include "cuda_to_hip.h"
#define HIPBLAS_V2
#define HIPBLAS_USE_HIP_HALF
#define HIPBLAS_USE_HIP_BFLOAT16
#include <hipblas/hipblas.h>
#ifdef __cplusplus
// CUDA also takes a type of data for what is computed in, as it did before version 11.
inline hipblasComputeType_t cuda_compute_type(hipDataType type) {
  return type == HIP_R_64F || type == HIP_C_64F   ? HIPBLAS_COMPUTE_64F
         : type == HIP_R_16F || type == HIP_C_16F ? HIPBLAS_COMPUTE_16F
         : type == HIP_R_32I                      ? HIPBLAS_COMPUTE_32I
                                                  : HIPBLAS_COMPUTE_32F;
}
inline hipblasStatus_t hipblasGemmEx(
    hipblasHandle_t handle, hipblasOperation_t ta, hipblasOperation_t tb, int m, int n, int k, const void* alpha,
    const void* a, hipDataType at, int lda, const void* b, hipDataType bt, int ldb, const void* beta, void* c,
    hipDataType ct, int ldc, hipDataType compute, hipblasGemmAlgo_t algo) {
  return hipblasGemmEx(handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc,
                       cuda_compute_type(compute), algo);
}
inline hipblasStatus_t hipblasGemmBatchedEx(
    hipblasHandle_t handle, hipblasOperation_t ta, hipblasOperation_t tb, int m, int n, int k, const void* alpha,
    const void* const a[], hipDataType at, int lda, const void* const b[], hipDataType bt, int ldb, const void* beta,
    void* const c[], hipDataType ct, int ldc, int count, hipDataType compute, hipblasGemmAlgo_t algo) {
  return hipblasGemmBatchedEx(handle, ta, tb, m, n, k, alpha, const_cast<const void**>(a), at, lda,
                              const_cast<const void**>(b), bt, ldb, beta, const_cast<void**>(c), ct, ldc, count,
                              cuda_compute_type(compute), algo);
}
inline hipblasStatus_t hipblasGemmStridedBatchedEx(
    hipblasHandle_t handle, hipblasOperation_t ta, hipblasOperation_t tb, int m, int n, int k, const void* alpha,
    const void* a, hipDataType at, int lda, long long sa, const void* b, hipDataType bt, int ldb, long long sb,
    const void* beta, void* c, hipDataType ct, int ldc, long long sc, int count, hipDataType compute,
    hipblasGemmAlgo_t algo) {
  return hipblasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc,
                                     sc, count, cuda_compute_type(compute), algo);
}
#endif
