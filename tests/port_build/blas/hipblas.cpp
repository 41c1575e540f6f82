// In hipBLAS's place: functions that say what they were given.
#include <cstdio>
#include <hip/hip_fp16.h>
#define HIPBLAS_V2
#define HIPBLAS_USE_HIP_HALF
#include <hipblas/hipblas.h>
#define TO hipblasHandle_t, hipblasOperation_t ta, hipblasOperation_t tb, int m, int n, int k
#define SAY(...) return std::printf(__VA_ARGS__), HIPBLAS_STATUS_SUCCESS
extern "C" {
hipblasStatus_t hipblasGemmEx(TO, const void*, const void*, hipDataType a, int lda, const void*, hipDataType b, int ldb,
    const void*, void*, hipDataType c, int ldc, hipblasComputeType_t as, hipblasGemmAlgo_t) {
  SAY("one %d%d %d%d%d %d.%d %d.%d %d.%d %d\n", ta == HIPBLAS_OP_T, tb == HIPBLAS_OP_T, m, n, k, a, lda, b, ldb, c, ldc, as);
}
hipblasStatus_t hipblasGemmBatchedEx(TO, const void*, const void**, hipDataType a, int lda, const void**, hipDataType b,
    int ldb, const void*, void**, hipDataType c, int ldc, int count, hipblasComputeType_t as, hipblasGemmAlgo_t) {
  SAY("many %d %d.%d %d.%d %d.%d %d\n", count, a, lda, b, ldb, c, ldc, as);
}
hipblasStatus_t hipblasGemmStridedBatchedEx(TO, const void*, const void*, hipDataType a, int lda, hipblasStride sa,
    const void*, hipDataType b, int ldb, hipblasStride sb, const void*, void*, hipDataType c, int ldc, hipblasStride sc,
    int count, hipblasComputeType_t as, hipblasGemmAlgo_t) {
  SAY("strided %d %d.%d.%d %d.%d.%d %d.%d.%d %d\n", count, a, lda, int(sa), b, ldb, int(sb), c, ldc, int(sc), as);
}
hipblasStatus_t hipblasHgemm(TO, const hipblasHalf* one, const hipblasHalf*, int lda, const hipblasHalf*, int ldb,
    const hipblasHalf*, hipblasHalf*, int ldc) {
  SAY("half %g %d %d %d\n", double(__half2float(*one)), lda, ldb, ldc);
}
}
