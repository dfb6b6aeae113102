# What nvcc shows on a machine without a GPU, all of it with the label cuda:
#
#   surface/       every public function with a CUDA overload compiles without a warning, for sm_90, and a few of them
#                  (small.cu) for every architecture
#   machine_code/  the kernels in these objects are as rules.py says, and the check finds planted faults
#   link/          a plain C++ unit and a CUDA unit in one program, whose launch is refused where there is no device
#   nccl/          SyncBatchNorm over NCCL, where NCCL is installed

set(tests_of_nvcc
  "cuda: the machine code of the surface"
  "cuda: the machine code for every architecture"
  "cuda: the machine code check finds planted faults"
  "cuda: a plain unit and a CUDA unit in one program")

if(NOT TARGET evenkeel::cuda)
  if(EVENKEEL_CUDA)
    foreach(name IN LISTS tests_of_nvcc)
      add_test(NAME "${name}: no nvcc, skipped" COMMAND "${CMAKE_COMMAND}" -E echo skipped)
      set_tests_properties("${name}: no nvcc, skipped" PROPERTIES LABELS cuda SKIP_REGULAR_EXPRESSION skipped)
    endforeach()
  endif()
  return()
endif()

find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND)
  message(FATAL_ERROR
    "The CUDA tests need Python 3 (Debian: python3); or configure with EVENKEEL_CUDA=OFF")
endif()

set(architectures 75-real 80-real 86-real 89-real)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  list(APPEND architectures 100-real 120-real)
endif()

# machine_code(<target> ARCHITECTURES <architecture>... SOURCES <file>... [DEVICE]): object files whose cubins can be read;
# DEVICE: of one architecture, cubins without a host's half, in half the time. The other halves are those of small.cu,
# link/ and the tests of *.cu, and g++ compiles them all in the emulator.
function(machine_code target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "DEVICE" "" "ARCHITECTURES;SOURCES")
  add_library(${target} OBJECT ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${arg_ARCHITECTURES}")
  target_link_libraries(${target} PRIVATE evenkeel_test_flags evenkeel::cuda)
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  # Nothing of it runs: the host code is not worth optimizing.
  target_compile_options(${target} PRIVATE --no-compress -Xcompiler=-O0 $<$<BOOL:${arg_DEVICE}>:-cubin>)
  tests_need(${target} LABELS cuda)
endfunction()

# machine_code_test(<name> <script> <target>)
function(machine_code_test name script target)
  add_test(NAME "${name}" COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/machine_code/${script}"
    $<TARGET_OBJECTS:${target}> COMMAND_EXPAND_LISTS)
  set_tests_properties("${name}" PROPERTIES LABELS cuda ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endfunction()

file(GLOB sources CONFIGURE_DEPENDS surface/*.cu)
list(FILTER sources EXCLUDE REGEX "/small\\.cu$")
machine_code(cuda_surface ARCHITECTURES 90-real SOURCES ${sources} DEVICE)
machine_code(cuda_small_surface ARCHITECTURES ${architectures} SOURCES surface/small.cu)
machine_code(cuda_machine_code_probe ARCHITECTURES ${architectures} 90-real SOURCES machine_code/probe.cu)
machine_code_test("cuda: the machine code of the surface" check.py cuda_surface)
machine_code_test("cuda: the machine code for every architecture" check.py cuda_small_surface)
machine_code_test("cuda: the machine code check finds planted faults" check_test.py cuda_machine_code_probe)

add_executable(cuda_link link/main.cpp link/device.cu)
target_link_libraries(cuda_link PRIVATE evenkeel_test_flags evenkeel::cuda)
tests_need(cuda_link LABELS cuda)
add_test(NAME "cuda: a plain unit and a CUDA unit in one program" COMMAND cuda_link)
set_tests_properties("cuda: a plain unit and a CUDA unit in one program" PROPERTIES LABELS cuda)

if(TARGET evenkeel::nccl)
  add_executable(cuda_nccl nccl/main.cu)
  target_link_libraries(cuda_nccl PRIVATE evenkeel_test_flags evenkeel::nccl)
  tests_need(cuda_nccl LABELS cuda)
  add_test(NAME "cuda: SyncBatchNorm over NCCL" COMMAND cuda_nccl)
  set_tests_properties("cuda: SyncBatchNorm over NCCL" PROPERTIES LABELS cuda)
else()
  add_test(NAME "cuda: SyncBatchNorm over NCCL: no NCCL, skipped" COMMAND "${CMAKE_COMMAND}" -E echo skipped)
  set_tests_properties("cuda: SyncBatchNorm over NCCL: no NCCL, skipped" PROPERTIES LABELS cuda
    SKIP_REGULAR_EXPRESSION skipped)
endif()
