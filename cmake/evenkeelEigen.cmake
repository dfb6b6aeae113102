# Sets evenkeel_eigen_refusal to a sentence where the Eigen that was found is not one that evenkeel knows. find_package is
# not asked for versions: Eigen 5 refuses whoever asks for 3.4, and the version file of 3.4.0 refuses ranges. An Eigen that
# another project brings as a target has no version here; there the headers look.
set(evenkeel_eigen_refusal "")
if(Eigen3_VERSION AND (Eigen3_VERSION VERSION_LESS 3.4 OR Eigen3_VERSION VERSION_GREATER_EQUAL 6))
  set(evenkeel_eigen_refusal "evenkeel needs Eigen >= 3.4 and < 6, found ${Eigen3_VERSION} in ${Eigen3_DIR}")
endif()
