# Writes all of evenkeel into one header, for those who would rather copy a file than a folder. It serves .cpp and .cu files;
# do not mix it with the headers of include/ in one unit.
#
#   cmake [-D OUTPUT=evenkeel.hpp] -P cmake/amalgamate.cmake
cmake_policy(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
if(NOT DEFINED OUTPUT)
  set(OUTPUT evenkeel.hpp)
endif()
cmake_path(ABSOLUTE_PATH OUTPUT BASE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")

set_property(GLOBAL PROPERTY seen "")
set_property(GLOBAL PROPERTY text "")

# Appends the header after those that it includes, each of them once; but the kernels (.ipp), as often as they are
# included. No header of evenkeel includes another one conditionally, but for those.
function(append_header header)
  get_property(seen GLOBAL PROPERTY seen)
  if(header IN_LIST seen AND NOT header MATCHES "[.]ipp$")
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY seen "${header}")
  file(READ "${root}/include/${header}" rest)
  string(REPLACE "#pragma once\n" "" rest "${rest}")
  set_property(GLOBAL APPEND_STRING PROPERTY text "\n// ${header}\n")
  while(rest MATCHES "(^|\n)#include \"(evenkeel/[^\"]+)\"\n")
    set(included "${CMAKE_MATCH_2}")
    set(line "#include \"${included}\"\n")
    string(FIND "${rest}" "${line}" place)
    string(LENGTH "${line}" length)
    string(SUBSTRING "${rest}" 0 ${place} before)
    math(EXPR place "${place} + ${length}")
    string(SUBSTRING "${rest}" ${place} -1 rest)
    set_property(GLOBAL APPEND_STRING PROPERTY text "${before}")
    append_header("${included}")
  endwhile()
  set_property(GLOBAL APPEND_STRING PROPERTY text "${rest}")
endfunction()

append_header(evenkeel/evenkeel.hpp)
append_header(evenkeel/tensor.hpp)
set_property(GLOBAL APPEND_STRING PROPERTY text "\n#if defined(__CUDACC__)\n")
append_header(evenkeel/cuda.hpp)
set_property(GLOBAL APPEND_STRING PROPERTY text "\n#endif\n")

get_property(text GLOBAL PROPERTY text)
file(READ "${root}/LICENSE" license)
file(WRITE "${OUTPUT}" "// evenkeel in one file, written by cmake/amalgamate.cmake.\n/*\n${license}*/\n#pragma once\n${text}")
