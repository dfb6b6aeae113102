# What our tests, examples and benchmarks are built with. None of it reaches a consumer of evenkeel::evenkeel.
include(CheckCXXCompilerFlag)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_EXTENSIONS OFF)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  find_program(EVENKEEL_CCACHE ccache)
  mark_as_advanced(EVENKEEL_CCACHE)
  if(EVENKEEL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Without these two allowances ccache does not cache units that use a precompiled header; with the base directory, and
    # without the working directory in the hash, another clone of the same sources finds what this one has compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
        "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${EVENKEEL_CCACHE}")
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
endif()

find_package(Threads REQUIRED)

add_library(evenkeel_warnings INTERFACE)
target_compile_options(evenkeel_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow;-Werror>"
  "SHELL:$<$<COMPILE_LANGUAGE:CUDA>:-Werror all-warnings -Xcompiler=-Wall,-Wextra>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # It takes the undefined register that its AVX-512 intrinsics start from for a value of ours.
  target_compile_options(evenkeel_warnings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-uninitialized>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-maybe-uninitialized,-Wno-uninitialized>")
endif()

add_library(evenkeel_own INTERFACE)
target_link_libraries(evenkeel_own INTERFACE evenkeel::evenkeel evenkeel_warnings Threads::Threads)
target_compile_definitions(evenkeel_own INTERFACE EIGEN_USE_THREADS)
if(EVENKEEL_NATIVE)
  check_cxx_compiler_flag(-march=native EVENKEEL_HAS_MARCH_NATIVE)
  if(EVENKEEL_HAS_MARCH_NATIVE)
    target_compile_options(evenkeel_own INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:-march=native>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=native>")
  endif()
endif()
