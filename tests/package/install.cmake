# Installs into FOLDER/prefix by way of another place, from which nothing may be needed later.
#
#   cmake -D BINARY= -D SOURCE= -D FOLDER= -P install.cmake
cmake_policy(VERSION 3.25)
file(REMOVE_RECURSE "${FOLDER}/prefix" "${FOLDER}/installed")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BINARY}" --prefix "${FOLDER}/installed" OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${FOLDER}/installed" "${FOLDER}/prefix")

file(GLOB_RECURSE files "${FOLDER}/prefix/share/*")
file(GLOB_RECURSE headers RELATIVE "${FOLDER}/prefix/include" "${FOLDER}/prefix/include/*")
file(GLOB_RECURSE own_headers RELATIVE "${SOURCE}/include" "${SOURCE}/include/*")
if(NOT headers STREQUAL own_headers)
  message(FATAL_ERROR "the installed headers are not those of include/: ${headers}")
endif()
foreach(file IN LISTS files)
  file(STRINGS "${file}" lines)
  foreach(place IN ITEMS "${SOURCE}" "${BINARY}" "${FOLDER}")
    if(lines MATCHES "${place}")
      message(FATAL_ERROR "${file} names ${place}")
    endif()
  endforeach()
endforeach()
