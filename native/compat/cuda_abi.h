// CUDA's types as libcudart 12 and 13 have them on x86-64, in CUDA's order, which is not HIP's.
//
// What is the same in both is an alias of HIP's. Sizes and offsets are those compiled from the headers
// of CUDA 12.8, 13.0 and 13.1; tests/native/test_compat.py compiles them against the headers again
// where there are any.
#pragma once

#include "../abi.h"

using cudaError_t = int;
using cudaStream_t = hipStream_t;
using cudaEvent_t = hipEvent_t;
using cudaGraph_t = hipGraph_t;
using cudaGraphNode_t = hipGraphNode_t;
using cudaGraphExec_t = hipGraphExec_t;
using cudaUserObject_t = hipUserObject_t;
using cudaHostFn_t = hipHostFn_t;
using cudaExecutionContext_t = struct cudaExecutionContext_st *;
using cudaGraphConditionalHandle = unsigned long long;
using cudaKernelNodeAttrID = int;
using cudaKernelNodeAttrValue = hipLaunchAttributeValue;
using cudaMemcpy3DParms = hipMemcpy3DParms;
using cudaHostNodeParams = hipHostNodeParams;
using cudaMemAllocNodeParams = hipMemAllocNodeParams;
using cudaExternalSemaphoreSignalNodeParams = hipExternalSemaphoreSignalNodeParams;
using cudaExternalSemaphoreWaitNodeParams = hipExternalSemaphoreWaitNodeParams;

struct cudaKernelNodeParams {
  void *func;
  dim3 gridDim, blockDim;
  unsigned int sharedMemBytes;
  void **kernelParams;
  void **extra;
};

struct cudaMemsetParams {
  void *dst;
  size_t pitch;
  unsigned int value, elementSize;
  size_t width, height;
};

struct cudaGraphInstantiateParams {
  unsigned long long flags;
  cudaStream_t uploadStream;
  cudaGraphNode_t errNode_out;
  int result_out;
};

struct cudaGraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};

struct cudaGraphExecUpdateResultInfo {
  int result;
  cudaGraphNode_t errorNode, errorFromNode;
};

struct cudaMemcpyNodeParams {
  int flags, reserved[3];  // from 13.1 the last two are a context
  cudaMemcpy3DParms copyParams;
};

struct cudaChildGraphNodeParams {
  cudaGraph_t graph;
  int ownership;  // 0 cloned, 1 moved
};

struct cudaGraphNodeParams {
  int type;
  int reserved0[3];
  union {
    long long reserved1[29];
    cudaKernelNodeParams kernel;  // 13.1 appends a context to these two, which HIP has not
    cudaMemsetParams memset;
    cudaMemcpyNodeParams memcpy;
    cudaHostNodeParams host;
    cudaChildGraphNodeParams graph;
    cudaEvent_t event;  // of both event nodes
    char semaphores[24];
    char alloc[120];
    void *free;
  };
  long long reserved2;
};

static_assert(sizeof(cudaKernelNodeParams) == 56 && offsetof(cudaKernelNodeParams, gridDim) == 8 &&
              offsetof(cudaKernelNodeParams, blockDim) == 20 && offsetof(cudaKernelNodeParams, sharedMemBytes) == 32 &&
              offsetof(cudaKernelNodeParams, kernelParams) == 40 && offsetof(cudaKernelNodeParams, extra) == 48);
static_assert(sizeof(cudaMemsetParams) == 40 && offsetof(cudaMemsetParams, pitch) == 8 &&
              offsetof(cudaMemsetParams, value) == 16 && offsetof(cudaMemsetParams, elementSize) == 20 &&
              offsetof(cudaMemsetParams, width) == 24 && offsetof(cudaMemsetParams, height) == 32);
static_assert(sizeof(cudaGraphInstantiateParams) == 32 && offsetof(cudaGraphInstantiateParams, uploadStream) == 8 &&
              offsetof(cudaGraphInstantiateParams, errNode_out) == 16 &&
              offsetof(cudaGraphInstantiateParams, result_out) == 24);
static_assert(sizeof(cudaGraphEdgeData) == 8 && sizeof(cudaGraphExecUpdateResultInfo) == 24);
static_assert(sizeof(cudaGraphNodeParams) == 256 && offsetof(cudaGraphNodeParams, kernel) == 16 &&
              offsetof(cudaGraphNodeParams, reserved2) == 248 && sizeof(cudaMemcpyNodeParams) == 176);
