"""Small builds, each with one everyday way to build CUDA: files by name, for the test of the real build.

The first five are those of issue 55. KERNEL and HOST are the program of most: a kernel's unit and a host's unit.
"""

from __future__ import annotations

KERNEL = """#include <cuda_runtime.h>
__global__ void k(float* x) { x[threadIdx.x] += 1; }
void go(float* x) { k<<<1, 64>>>(x); cudaDeviceSynchronize(); }
"""
HOST = """#include <cuda_runtime.h>
void go(float*);
int main() { float* x; if (cudaMalloc(&x, 256) != cudaSuccess) return 1; go(x); return 0; }
"""
APART = """#include <cuda_runtime.h>
__device__ float twice(float v);
__global__ void k(float* x) { x[threadIdx.x] = twice(x[threadIdx.x]); }
void go(float* x) { k<<<1, 64>>>(x); cudaDeviceSynchronize(); }
"""
TWICE = "__device__ float twice(float v) { return v + v; }\n"
_CMAKE = "cmake_minimum_required(VERSION 3.18)\nproject(x LANGUAGES CXX CUDA)\n"
_TWO = {"a.cu": KERNEL, "b.cpp": HOST}
_THREE = {"a.cu": APART, "b.cpp": HOST, "c.cu": TWICE}

IDIOMS: dict[str, dict[str, str]] = {
    "plain_cudart": {
        "CMakeLists.txt": f"{_CMAKE}add_executable(a a.cu b.cpp)\ntarget_link_libraries(a PRIVATE cudart)\n", **_TWO,
    },
    "find_cuda": {
        "CMakeLists.txt": """cmake_minimum_required(VERSION 3.10)
project(x CXX)
find_package(CUDA REQUIRED)
include_directories(${CUDA_INCLUDE_DIRS})
set(CUDA_NVCC_FLAGS "${CUDA_NVCC_FLAGS} -arch=sm_70 -std=c++14")
cuda_add_executable(a a.cu b.cpp)
target_link_libraries(a ${CUDA_LIBRARIES})
""", **_TWO,
    },
    "cuda_alone": {
        "CMakeLists.txt": """cmake_minimum_required(VERSION 3.10)
project(x CUDA)
add_executable(a a.cu b.cu)
""", "a.cu": KERNEL, "b.cu": HOST,
    },
    "separable": {
        "CMakeLists.txt": f"""{_CMAKE}find_package(CUDAToolkit REQUIRED)
add_executable(a a.cu b.cpp c.cu)
set_target_properties(a PROPERTIES CUDA_SEPARABLE_COMPILATION ON)
target_link_libraries(a PRIVATE CUDA::cudart)
""", **_THREE,
    },
    "check_language": {
        "CMakeLists.txt": """cmake_minimum_required(VERSION 3.18)
project(x LANGUAGES CXX)
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  add_executable(a a.cu b.cpp)
else()
  add_executable(a empty.cpp)
endif()
""", "empty.cpp": "int main() { return 0; }\n", **_TWO,
    },
    "host_by_gcc": {
        "Makefile": """NVCC ?= nvcc
CUDA_PATH ?= /usr/local/cuda
a: a.o b.o
	g++ -o $@ $^ -L$(CUDA_PATH)/lib64 -lcudart
a.o: a.cu
	$(NVCC) -O3 -arch=sm_70 --expt-relaxed-constexpr -c -o $@ $<
b.o: b.cpp
	g++ -O2 -I$(CUDA_PATH)/include -c -o $@ $<
""", **_TWO,
    },
    "language_of_a_source": {
        "CMakeLists.txt": f"""{_CMAKE}add_executable(a kernels.cpp b.cpp)
set_source_files_properties(kernels.cpp PROPERTIES LANGUAGE CUDA)
""", "kernels.cpp": KERNEL, "b.cpp": HOST,
    },
    "compiler_version": {
        "CMakeLists.txt": f"""{_CMAKE}if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 9)
  message(FATAL_ERROR "CUDA 9 or later")
endif()
if(NOT CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA")
  message(FATAL_ERROR "nvcc only")
endif()
include_directories(${{CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}})
add_executable(a a.cu b.cpp)
""", **_TWO,
    },
    "options_by_language": {
        "CMakeLists.txt": f"""{_CMAKE}set(CMAKE_CUDA_FLAGS "${{CMAKE_CUDA_FLAGS}} -lineinfo -DSTEP=1")
add_executable(a a.cu b.cpp)
set_property(TARGET a PROPERTY CUDA_ARCHITECTURES 70 80)
target_compile_features(a PUBLIC cxx_std_14 cuda_std_14)
target_compile_options(a PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xptxas=-v --use_fast_math>)
target_compile_definitions(a PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:NEEDED=1>)
""", "a.cu": "#if !defined(STEP) || !defined(NEEDED)\n#error the build's macros are lost\n#endif\n" + KERNEL,
        "b.cpp": "#ifdef NEEDED\n#error not of this language\n#endif\n" + HOST,
    },
    "library_apart": {
        "CMakeLists.txt": f"""{_CMAKE}add_library(kernels STATIC a.cu c.cu)
set_target_properties(kernels PROPERTIES CUDA_SEPARABLE_COMPILATION ON CUDA_RESOLVE_DEVICE_SYMBOLS ON
                                         POSITION_INDEPENDENT_CODE ON)
add_executable(a b.cpp)
target_link_libraries(a PRIVATE kernels)
""", **_THREE,
    },
    "project_below": {
        "CMakeLists.txt": """cmake_minimum_required(VERSION 3.18)
project(top LANGUAGES CXX)
add_subdirectory(gpu)
add_executable(a b.cpp)
target_link_libraries(a PRIVATE gpu)
""",
        "gpu/CMakeLists.txt": """cmake_minimum_required(VERSION 3.18)
project(gpu VERSION 1.0 LANGUAGES CXX CUDA)
find_package(CUDAToolkit 11.0 REQUIRED)
file(GLOB sources *.cu)
add_library(gpu SHARED ${sources})
target_link_libraries(gpu PUBLIC CUDA::cudart_static)
""", "gpu/a.cu": KERNEL, "b.cpp": HOST,
    },
    "found_library": {
        "CMakeLists.txt": f"""{_CMAKE}find_path(CUDART_INCLUDE cuda_runtime.h)
find_library(CUDART_LIBRARY NAMES cudart_static cudart REQUIRED)
add_executable(a a.cu b.cpp)
target_include_directories(a PRIVATE ${{CUDART_INCLUDE}})
target_link_libraries(a ${{CUDART_LIBRARY}})
""", **_TWO,
    },
    "nvcc_by_name": {
        "Makefile": """all: a
a: a.cu b.cpp
	nvcc -ccbin g++ -m64 -Xcompiler -Wall,-O2 -gencode arch=compute_70,code=sm_70 -o $@ a.cu b.cpp -lcudart
""", **_TWO,
    },
    "device_compile": {
        "Makefile": """NVCC = /usr/local/cuda/bin/nvcc
TOOLKIT ?= /usr/local/cuda
OBJECTS = a.o b.o c.o
a: $(OBJECTS)
	$(NVCC) -arch=sm_70 $^ -o $@
%.o: %.cu
	$(NVCC) -arch=sm_70 -dc $< -o $@
%.o: %.cpp
	$(CXX) -I$(TOOLKIT)/include -c $< -o $@
""", **_THREE,
    },
    "device_link": {
        "Makefile": """NVCC = nvcc
FLAGS = -arch=sm_52 -rdc=true
a: a.cu b.cpp c.cu
	$(NVCC) $(FLAGS) -c a.cu -o a.o
	$(NVCC) $(FLAGS) -c c.cu -o c.o
	$(NVCC) $(FLAGS) -dlink -o device.o a.o c.o -lcudadevrt -lcudart
	$(CXX) -o $@ b.cpp device.o a.o c.o -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcuda -lcudart
""", **_THREE,
    },
    "makefile_below": {
        "Makefile": "all:\n\t$(MAKE) -C src\n",
        "src/Makefile": """CUDA_DIR = /usr/local/cuda
CUDACC = $(CUDA_DIR)/bin/nvcc
../a: a.o b.o
	$(CXX) -o $@ $^ -L$(CUDA_DIR)/lib64 -lcudart
.SUFFIXES: .cu
.cu.o:
	$(CUDACC) -std=c++11 -rdc=false -c $< -o $@
b.o: b.cpp
	$(CXX) -I$(CUDA_DIR)/include -c b.cpp
""", "src/a.cu": KERNEL, "src/b.cpp": HOST,
    },
    "library_by_nvcc": {
        "Makefile": """NVCC := nvcc
a: b.cpp libk.a
	$(NVCC) -o $@ b.cpp -L. -lk
libk.a: a.o
	$(NVCC) -lib -o $@ $^
a.o: a.cu
	$(NVCC) -x cu -O2 --compiler-options -fPIC -c $< -o $@
""", **_TWO,
    },
}  # fmt: skip
