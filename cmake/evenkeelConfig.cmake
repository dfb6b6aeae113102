include(CMakeFindDependencyMacro)
# Without a version for the reason that CMakeLists.txt gives: Eigen 5 refuses whoever asks for 3.4.
find_dependency(Eigen3 NO_MODULE)
if(Eigen3_VERSION AND (Eigen3_VERSION VERSION_LESS 3.4 OR Eigen3_VERSION VERSION_GREATER_EQUAL 6))
  set(evenkeel_FOUND FALSE)
  set(evenkeel_NOT_FOUND_MESSAGE "evenkeel needs Eigen >= 3.4 and < 6, found ${Eigen3_VERSION}")
  return()
endif()
include("${CMAKE_CURRENT_LIST_DIR}/evenkeelTargets.cmake")
