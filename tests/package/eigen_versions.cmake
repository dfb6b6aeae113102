# Which versions of Eigen the installed package accepts, asked with packages that are nothing but a version. FOLDER/prefix
# holds an installed evenkeel.
#
#   cmake -D FOLDER= -P eigen_versions.cmake
cmake_policy(VERSION 3.25)
set(folder "${FOLDER}/eigen_versions")
file(REMOVE_RECURSE "${folder}")
file(WRITE "${folder}/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)\nproject(asks LANGUAGES NONE)\n"
  "find_package(evenkeel 0.1 CONFIG REQUIRED)\n")
foreach(version IN ITEMS 3.3.9 3.4.0 3.4.1 5.0.1 6.0.0)
  set(eigen "${folder}/eigen-${version}")
  file(WRITE "${eigen}/Eigen3Config.cmake" "add_library(Eigen3::Eigen INTERFACE IMPORTED)\n")
  # Eigen's own version files refuse more than one who asks for a version would think; none is asked for.
  file(WRITE "${eigen}/Eigen3ConfigVersion.cmake" "set(PACKAGE_VERSION ${version})\n"
    "if(PACKAGE_FIND_VERSION)\n  set(PACKAGE_VERSION_COMPATIBLE FALSE)\nelse()\n  set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n")
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${folder}" -B "${folder}/build-${version}" "-DEigen3_DIR=${eigen}"
    "-DCMAKE_PREFIX_PATH=${FOLDER}/prefix" RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(version MATCHES "^(3[.]4|5)")
    if(NOT status EQUAL 0)
      message(FATAL_ERROR "Eigen ${version} was refused:\n${output}")
    endif()
  elseif(status EQUAL 0 OR NOT output MATCHES "evenkeel needs Eigen >= 3.4 and < 6, found ${version}")
    message(FATAL_ERROR "Eigen ${version} was not refused in our words:\n${output}")
  endif()
endforeach()
