// HIP's types as its binary interface has them on x86-64, written down here so that no SDK is needed.
//
// Members are in HIP's order, which is not CUDA's. Sizes and offsets are those compiled from the
// headers of HIP 5.2.3 and 7.1, unchanged in 7.15; the assertions below hold them.
#pragma once

#include <cstddef>
#include <cstdint>

using hipError_t = int;
using hipStreamCaptureMode = int;
using hipStreamCaptureStatus = int;
using hipGraphNodeType = int;
using hipGraphExecUpdateResult = int;
using hipGraphMemAttributeType = int;
using hipMemcpyKind = int;
using hipFunction_attribute = int;
using hipLaunchAttributeID = int;
using hipDriverProcAddressQueryResult = int;

// Distinct types, so that a handle of one kind cannot be passed for another.
using hipStream_t = struct ihipStream_t *;
using hipEvent_t = struct ihipEvent_t *;
using hipGraph_t = struct ihipGraph *;
using hipGraphNode_t = struct hipGraphNode *;
using hipGraphExec_t = struct hipGraphExec *;
using hipFunction_t = struct ihipModuleSymbol_t *;
using hipKernel_t = struct ihipKernel_t *;
using hipLibrary_t = struct ihipLibrary_t *;
using hipModule_t = struct ihipModule_t *;
using hipUserObject_t = struct hipUserObject *;
using hipCtx_t = struct ihipCtx_t *;
using hipArray_t = struct hipArray *;
using hipDeviceptr_t = void *;
using hipHostFn_t = void (*)(void *);
using hipStreamCallback_t = void (*)(hipStream_t, hipError_t, void *);

// Only ever passed through by address.
struct HIP_LAUNCH_CONFIG_st;
struct HIP_MEMCPY3D;
struct hipBatchMemOpNodeParams;
struct hipExternalSemaphoreSignalNodeParams;
struct hipExternalSemaphoreWaitNodeParams;
struct hipFuncAttributes;
struct hipGraphEdgeData;
struct hipGraphNodeParams;
struct hipJitOption;
struct hipLaunchAttributeValue;
struct hipLaunchConfig_st;
struct hipLibraryOption_e;
struct hipMemAllocNodeParams;

struct dim3 {
  uint32_t x, y, z;
};

struct hipKernelNodeParams {
  dim3 blockDim;
  void **extra;
  void *func;
  dim3 gridDim;
  void **kernelParams;
  unsigned int sharedMemBytes;
};

struct hipMemsetParams {
  void *dst;
  unsigned int elementSize;
  size_t height;
  size_t pitch;
  unsigned int value;
  size_t width;
};

struct hipHostNodeParams {
  hipHostFn_t fn;
  void *userData;
};

struct hipPos {
  size_t x, y, z;
};
struct hipExtent {
  size_t width, height, depth;
};
struct hipPitchedPtr {
  void *ptr;
  size_t pitch, xsize, ysize;
};
struct hipMemcpy3DParms {
  hipArray_t srcArray;
  hipPos srcPos;
  hipPitchedPtr srcPtr;
  hipArray_t dstArray;
  hipPos dstPos;
  hipPitchedPtr dstPtr;
  hipExtent extent;
  hipMemcpyKind kind;
};

struct hipGraphInstantiateParams {
  hipGraphNode_t errNode_out;
  unsigned long long flags;
  int result_out;
  hipStream_t uploadStream;
};

// CUDA's driver, whose structs have other layouts; as in cuda.h of CUDA 13.0.
struct cuKernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2; v1 ends before `kern`
  void *func;
  dim3 grid, block;
  unsigned int sharedMemBytes;
  void **kernelParams;
  void **extra;
  void *kern;
  void *ctx;
};
constexpr size_t kKernelNodeParamsV1 = offsetof(cuKernelNodeParams, kern);
struct cuMemsetParams {  // CUDA_MEMSET_NODE_PARAMS_v1
  void *dst;
  size_t pitch;
  unsigned int value, elementSize;
  size_t width, height;
};
struct cuGraphInstantiateParams {
  unsigned long long flags;
  hipStream_t uploadStream;
  hipGraphNode_t errNode_out;
  int result_out;
};
struct cuGraphExecUpdateResultInfo {
  int result;
  hipGraphNode_t errorNode, errorFromNode;
};
struct cuMemcpy3D {  // CUDA_MEMCPY3D_v2, passed on whole
  size_t words[25];
};
struct cuLaunchAttribute {
  int id;
  char pad[4];
  uint64_t value[8];
};
struct cuLaunchConfig {
  unsigned int grid[3], block[3], sharedMemBytes;
  hipStream_t stream;
  cuLaunchAttribute *attrs;
  unsigned int n_attrs;
};

static_assert(sizeof(cuKernelNodeParams) == 72 && offsetof(cuKernelNodeParams, kernelParams) == 40 &&
              kKernelNodeParamsV1 == 56);
static_assert(sizeof(cuMemsetParams) == 40 && sizeof(cuGraphInstantiateParams) == 32 && sizeof(cuMemcpy3D) == 200);
static_assert(sizeof(cuLaunchAttribute) == 72 && offsetof(cuLaunchConfig, stream) == 32);

static_assert(sizeof(hipKernelNodeParams) == 64 && offsetof(hipKernelNodeParams, func) == 24 &&
              offsetof(hipKernelNodeParams, kernelParams) == 48);
static_assert(sizeof(hipMemsetParams) == 48 && offsetof(hipMemsetParams, value) == 32);
static_assert(sizeof(hipHostNodeParams) == 16);
static_assert(sizeof(hipMemcpy3DParms) == 160 && offsetof(hipMemcpy3DParms, kind) == 152);
static_assert(sizeof(hipGraphInstantiateParams) == 32 &&
              offsetof(hipGraphInstantiateParams, uploadStream) == 24);

namespace gfx {

// Statuses that the code itself returns or looks for; the rest are data in statuses.inc.
enum Status : hipError_t {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kLibraryInitFailed = 303,
  kIllegalState = 401,
  kLaunchFailure = 719,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureImplicit = 906,
  kCaptureWrongThread = 908,
  kUpdateFailure = 910,
};

enum CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };
enum CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

// hipGraphNodeType from 5.5 on; older numberings are not served by the preload library.
enum NodeType : int {
  kKernel = 0,
  kMemcpy = 1,
  kMemset = 2,
  kHost = 3,
  kChild = 4,
  kEmpty = 5,
  kWaitEvent = 6,
  kEventRecord = 7,
  kSemaphoreSignal = 8,
  kSemaphoreWait = 9,
  kMemAlloc = 10,
  kMemFree = 11,
  kBatchMemOp = 12,  // 14 in HIP; what the C API and the compat library say
};

}  // namespace gfx
