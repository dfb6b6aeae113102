# Uses evenkeel as a project of its own would, in one of several ways, and compares what its program prints with what the
# same program prints in this build.
#
#   cmake -D WAY= -D SOURCE= -D FOLDER= -D EXPECTED= -D COMPILER= -D GENERATOR= -D EIGEN_CONFIG= -D EIGEN_FOLDERS=
#         -D CUDA_COMPILER= -D PKG_CONFIG= -P consume.cmake
#
# FOLDER/prefix holds an installed evenkeel, and FOLDER/<way> is written.
cmake_policy(VERSION 3.25)
set(folder "${FOLDER}/${WAY}")
file(REMOVE_RECURSE "${folder}")
file(MAKE_DIRECTORY "${folder}")

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${folder}" RESULT_VARIABLE status OUTPUT_VARIABLE output
                  ERROR_VARIABLE errors ECHO_ERROR_VARIABLE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${status}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(consumer "${CMAKE_CURRENT_LIST_DIR}/consumer")
set(flags -std=c++20 -O0 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
if(WAY STREQUAL "pkg-config")
  set(ENV{PKG_CONFIG_PATH} "${FOLDER}/prefix/share/pkgconfig:$ENV{PKG_CONFIG_PATH}")
  run("${PKG_CONFIG}" --cflags --libs evenkeel)
  separate_arguments(package UNIX_COMMAND "${output}")
  # Eigen's own headers are not looked at as strictly.
  list(TRANSFORM package REPLACE "^-I(.*eigen3)$" "-isystem\\1")
  run("${COMPILER}" ${flags} "${consumer}/main.cpp" ${package} -o "${folder}/consumer")
elseif(WAY STREQUAL "single_header")
  run("${CMAKE_COMMAND}" -P "${SOURCE}/cmake/amalgamate.cmake")
  # Twice: it guards itself.
  file(WRITE "${folder}/twice.cpp" "#include \"evenkeel.hpp\"\n#include \"evenkeel.hpp\"\n#include \"${consumer}/main.cpp\"\n")
  list(TRANSFORM EIGEN_FOLDERS PREPEND -isystem)
  run("${COMPILER}" ${flags} -DSINGLE_HEADER "-I${folder}" ${EIGEN_FOLDERS} "${folder}/twice.cpp" -o
      "${folder}/consumer")
else()
  set(where "-DEVENKEEL_SOURCE=${SOURCE}")
  if(WAY MATCHES "^(find_package|cuda)$")
    set(where "-DCMAKE_PREFIX_PATH=${FOLDER}/prefix")
  endif()
  run("${CMAKE_COMMAND}" -S "${consumer}" -B "${folder}" -G "${GENERATOR}" "-DWAY=${WAY}" "${where}" "-DEigen3_DIR=${EIGEN_CONFIG}"
      "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CUDA_COMPILER=${CUDA_COMPILER}" -DCMAKE_CUDA_ARCHITECTURES=75
      -DCMAKE_BUILD_TYPE=)
  run("${CMAKE_COMMAND}" --build "${folder}")
endif()

run("${folder}/consumer")
set(actual "${output}")
run("${EXPECTED}")
if(NOT actual STREQUAL output OR NOT actual MATCHES "^evenkeel [0-9.]+: [^\n]*\n$")
  message(FATAL_ERROR "${WAY}: the program prints\n${actual}and should print\n${output}")
endif()
message("${WAY}: ${actual}")
