# What the installed package in FOLDER/prefix refuses, and in which words: versions of Eigen, asked with packages that are
# nothing but a version; a version of evenkeel; components.
#
#   cmake -D FOLDER= -D GENERATOR= -P refusals.cmake
cmake_policy(VERSION 3.25)
set(folder "${FOLDER}/refusals")
file(REMOVE_RECURSE "${folder}")
file(WRITE "${folder}/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)\nproject(asks LANGUAGES NONE)\n"
  "find_package(evenkeel \${ASKED} CONFIG REQUIRED)\n")
foreach(version IN ITEMS 3.3.9 3.4.0 3.4.1 5.0.1 6.0.0)
  set(eigen "${folder}/eigen-${version}")
  file(WRITE "${eigen}/Eigen3Config.cmake" "add_library(Eigen3::Eigen INTERFACE IMPORTED)\n")
  # Eigen's own version files refuse more than one who asks for a version would think; none is asked for.
  file(WRITE "${eigen}/Eigen3ConfigVersion.cmake" "set(PACKAGE_VERSION ${version})\n"
    "if(PACKAGE_FIND_VERSION)\n  set(PACKAGE_VERSION_COMPATIBLE FALSE)\nelse()\n  set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n")
  execute_process(COMMAND "${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${folder}" -B "${folder}/build-${version}"
    "-DEigen3_DIR=${eigen}" "-DCMAKE_PREFIX_PATH=${FOLDER}/prefix" -DASKED=0.1 RESULT_VARIABLE status
    OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(version MATCHES "^(3[.]4|5)")
    if(NOT status EQUAL 0)
      message(FATAL_ERROR "Eigen ${version} was refused:\n${output}")
    endif()
  elseif(status EQUAL 0 OR NOT output MATCHES "evenkeel needs Eigen >= 3.4 and < 6, found ${version}")
    message(FATAL_ERROR "Eigen ${version} was not refused in our words:\n${output}")
  endif()
endforeach()

# ask(<what find_package is asked for> <expected words>)
function(ask asked words)
  execute_process(COMMAND "${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${folder}" -B "${folder}/build-asked"
    "-DEigen3_DIR=${folder}/eigen-3.4.0" "-DCMAKE_PREFIX_PATH=${FOLDER}/prefix" "-DASKED=${asked}" RESULT_VARIABLE status
    OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(status EQUAL 0 OR NOT output MATCHES "${words}")
    message(FATAL_ERROR "find_package(evenkeel ${asked}) was not refused with '${words}':\n${output}")
  endif()
endfunction()
ask("99.0" "compatible with requested version \"99.0\"")
ask("0.1;COMPONENTS;cuda" "evenkeel has no component cuda here; cuda needs the language CUDA")
ask("0.1;COMPONENTS;rocm" "evenkeel has no component rocm here")
