# find_package(CUDAToolkit) of a HIP build: hip.cmake has made the targets.
set(CUDAToolkit_FOUND TRUE)
set(CUDAToolkit_VERSION 12.0)
set(CUDAToolkit_VERSION_MAJOR 12)
set(CUDAToolkit_INCLUDE_DIRS "${CMAKE_CURRENT_LIST_DIR}/include")
