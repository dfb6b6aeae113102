# What evenkeel::cuda asks of its users, here and in an installed package. A package may have been installed where there is
# no CUDA compiler and be used where there is one, so the target is not exported but made anew.
function(evenkeel_set_up_cuda target)
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    target_compile_features(${target} INTERFACE cuda_std_20)
  else()
    # CMake before 3.26 does not know that nvcc has C++20 since 12.0.
    target_compile_options(${target} INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")
  endif()
  # With Eigen's own CUDA mode its CPU code is scalar inside .cu files, and differs from the same templates in .cpp files.
  target_compile_definitions(${target} INTERFACE EIGEN_NO_CUDA)
  # The static runtime is what CMake links into CUDA programs by default; a shared one beside it would be a second runtime.
  target_link_libraries(${target} INTERFACE evenkeel::evenkeel CUDA::cudart_static)
endfunction()
