"""Runtime or driver call without a HIP counterpart."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX210",
    code="unmapped-runtime-api",
    severity=Severity.HIGH,
    phase=2,
    versions="judged against HIP as of ROCm 6.3; check newer headers",
    en=Text(
        "Runtime or driver call without a HIP counterpart",
        "{name}",
        "It does not compile after hipify.",
        "Guard it, or drop the feature on ROCm. Check the installed HIP headers first: the list grows with each release.",
    ),
    zh=Text(
        "HIP 中没有对应的运行时或驱动调用",
        "{name}",
        "hipify 之后无法编译。",
        "加条件，或在 ROCm 上去掉该功能。先查看所装 HIP 头文件：每个版本都在增加。",
    ),
    path="launch.cu",
    bad="void f(cudaLaunchConfig_t* c) { cudaLaunchKernelExC(c, k, 0); }\n",
    good="// cudaLaunchKernelExC is not used\nvoid f();\n",
    needs=("cu",),
)
_NAMES = (
    r"cudaLaunchKernelEx[C]?|cuLaunchKernelEx|cudaOccupancyMaxActiveClusters|cudaOccupancyMaxPotentialClusterSize|cuOccupancyMax(Active|PotentialCluster)\w*|cudaLaunchAttribute\w*|cudaLaunchConfig_t|cudaGraphConditional\w+|"
    r"cudaErrorApiFailureBase|cuTensorMap\w+|CUtensorMap\w*|cudaGetDriverEntryPointByVersion|cudaFuncAttribute(NonPortableClusterSizeAllowed|RequiredCluster\w+|ClusterDimMustBeSet)|"
    r"cudaDevAttrClusterLaunch|cudaTriggerProgrammaticLaunchCompletion|cudaGridDependencySynchronize|cudaCtxResetPersistingL2Cache|cudaStreamAttributeAccessPolicyWindow|"
    r"cudaLimitPersistingL2CacheSize|cudaLimitMaxL2FetchGranularity|cudaExternalSemaphoreHandleTypeNvSci\w*|cuMulticast\w+|CU_MULTICAST\w+|cuGreenCtx\w+|cudaGreenCtx\w*|cudaStreamUpdateCaptureDependencies_v2|cudaMemAdvise_v2|cudaMemPrefetchAsync_v2|"
    r"cublasLtMatmulAlgoCapGetAttribute|cublasGemmGroupedBatchedEx|cublasSetSmCountTarget|cusparseSpMMOp\w*|cusparseLt\w+|cudaArrayGetSparseProperties|cudaGraphKernelNodePortProgrammatic|cudaMemcpyBatchAsync"
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    known = ctx.project.macros.known
    for h in ident_hits(f, _NAMES):
        if known.get(h.values["name"]) != (True, False):
            yield h
