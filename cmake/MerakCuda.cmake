# The CUDA toolkit, for runtime/backends/cuda and runtime/comm/nccl.
#
# MERAK_CUDA: AUTO builds them where nvcc and the headers are found, ON insists,
# OFF does without. Sets MERAK_HAS_CUDA, MERAK_HAS_NCCL, MERAK_HAS_CUDNN,
# MERAK_NVCC and MERAK_CUDA_INCLUDE.
set(MERAK_CUDA AUTO CACHE STRING "CUDA backend: AUTO, ON or OFF")
set_property(CACHE MERAK_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MERAK_HAS_CUDA OFF)
set(MERAK_HAS_NCCL OFF)
set(MERAK_HAS_CUDNN OFF)
if(MERAK_CUDA)
  find_program(MERAK_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin)
  get_filename_component(nvccFolder "${MERAK_NVCC}" REALPATH)
  get_filename_component(nvccFolder "${nvccFolder}" DIRECTORY)
  find_path(MERAK_CUDA_INCLUDE cublasLt.h
    HINTS ${nvccFolder}/../include PATHS /usr/local/cuda/include)
  find_path(MERAK_NCCL_INCLUDE nccl.h
    HINTS ${MERAK_CUDA_INCLUDE} PATHS /usr/local/cuda/include)
  if(MERAK_NVCC AND MERAK_CUDA_INCLUDE)
    set(MERAK_HAS_CUDA ON)
    if(MERAK_NCCL_INCLUDE)
      set(MERAK_HAS_NCCL ON)
    endif()
    # cuDNN's headers and, from PyPI (scripts/install-deps), its frontend's.
    find_path(MERAK_CUDNN_INCLUDE cudnn.h HINTS ${MERAK_CUDA_INCLUDE})
    find_path(MERAK_CUDNN_FRONTEND cudnn_frontend.h
      HINTS ${PROJECT_SOURCE_DIR}/build/cudnn-frontend/include)
    if(MERAK_CUDNN_INCLUDE AND MERAK_CUDNN_FRONTEND)
      set(MERAK_HAS_CUDNN ON)
    endif()
  elseif(NOT MERAK_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "MERAK_CUDA is ON, but nvcc or cublasLt.h was not found")
  endif()
endif()
message(STATUS "CUDA backend: ${MERAK_HAS_CUDA}, NCCL: ${MERAK_HAS_NCCL}, "
  "cuDNN: ${MERAK_HAS_CUDNN}")
