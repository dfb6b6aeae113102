# Runs planted_faults for one fault: the sound kernel must end with 0 and print nothing, the other must end otherwise and
# print what the regular expression SAYS.
#
#   cmake -D PROGRAM= -D FAULT= -D SAYS= -P planted_fault.cmake

cmake_policy(VERSION 3.25)
set(ENV{UBSAN_OPTIONS} print_stacktrace=1)

execute_process(COMMAND "${PROGRAM}" "${FAULT}" sound RESULT_VARIABLE status OUTPUT_VARIABLE output
                ERROR_VARIABLE output)
if(NOT status STREQUAL "0" OR output)
  message(FATAL_ERROR "the sound kernel ended with ${status} and said:\n${output}")
endif()

execute_process(COMMAND "${PROGRAM}" "${FAULT}" planted RESULT_VARIABLE status OUTPUT_VARIABLE output
                ERROR_VARIABLE output)
if(status STREQUAL "0" OR NOT output MATCHES "${SAYS}")
  message(FATAL_ERROR "the fault must be found with the words\n${SAYS}\nstatus ${status}:\n${output}")
endif()
if(SAYS MATCHES "^KernelFault" AND output MATCHES "Sanitizer")
  message(FATAL_ERROR "the launch that ended with a fault left something behind:\n${output}")
endif()
