# evenkeel::cuda exists where a CUDA compiler does, and evenkeel::nccl where NCCL is as well. A parent project that has
# CUDA enabled already gets them without asking.
if(EVENKEEL_CUDA AND NOT CMAKE_CUDA_COMPILER_LOADED)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    # The toolkit's installer does not put nvcc on the PATH.
    find_program(EVENKEEL_NVCC nvcc HINTS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(EVENKEEL_NVCC)
    if(EVENKEEL_NVCC)
      set(CMAKE_CUDA_COMPILER "${EVENKEEL_NVCC}")
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Code for the oldest supported architecture and its PTX: one quick compile that newer devices translate when they load it.
    set(CMAKE_CUDA_ARCHITECTURES 75)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
  endif()
endif()

if(CMAKE_CUDA_COMPILER_LOADED)
  find_package(CUDAToolkit REQUIRED)
  add_library(evenkeel_cuda INTERFACE)
  add_library(evenkeel::cuda ALIAS evenkeel_cuda)
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    target_compile_features(evenkeel_cuda INTERFACE cuda_std_20)
  else()
    # CMake before 3.26 does not know that nvcc has C++20 since 12.0.
    target_compile_options(evenkeel_cuda INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")
  endif()
  # With Eigen's own CUDA mode its CPU code is scalar inside .cu files, and differs from the same templates in .cpp files.
  target_compile_definitions(evenkeel_cuda INTERFACE EIGEN_NO_CUDA)
  # The static runtime is what CMake links into CUDA programs by default; a shared one beside it would be a second runtime.
  target_link_libraries(evenkeel_cuda INTERFACE evenkeel CUDA::cudart_static)

  find_path(EVENKEEL_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(EVENKEEL_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  mark_as_advanced(EVENKEEL_NCCL_INCLUDE_DIR EVENKEEL_NCCL_LIBRARY)
  if(EVENKEEL_NCCL_INCLUDE_DIR AND EVENKEEL_NCCL_LIBRARY)
    add_library(evenkeel_nccl INTERFACE)
    add_library(evenkeel::nccl ALIAS evenkeel_nccl)
    target_include_directories(evenkeel_nccl SYSTEM INTERFACE "${EVENKEEL_NCCL_INCLUDE_DIR}")
    target_link_libraries(evenkeel_nccl INTERFACE evenkeel_cuda "${EVENKEEL_NCCL_LIBRARY}")
  endif()
endif()
