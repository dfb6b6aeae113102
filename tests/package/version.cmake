# The files that other tools read name the version of include/evenkeel/config.hpp.
#
#   cmake -D SOURCE= -D VERSION= -P version.cmake
cmake_policy(VERSION 3.25)
foreach(file IN ITEMS vcpkg.json cmake/vcpkg/evenkeel/vcpkg.json CITATION.cff)
  file(STRINGS "${SOURCE}/${file}" version REGEX "^ *\"?version\"?: ")
  string(REGEX REPLACE ".*version\"?: *\"?([0-9.]+).*" "\\1" version "${version}")
  if(NOT version STREQUAL VERSION)
    message(FATAL_ERROR "${file} names version ${version}, config.hpp ${VERSION}")
  endif()
endforeach()
