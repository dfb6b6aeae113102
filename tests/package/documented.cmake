# Fails where doxygen has a warning about the headers or the pages, and where it has none about a function without a comment,
# which would mean that it does not look.
#
#   cmake -D DOXYGEN= -D PYTHON= -D SOURCE= -D FOLDER= -P documented.cmake
cmake_policy(VERSION 3.25)
file(READ "${SOURCE}/cmake/Doxyfile" settings)
string(APPEND settings "\nOUTPUT_DIRECTORY = ${FOLDER}/reference\nGENERATE_HTML = NO\nGENERATE_XML = YES\n")
# Filtered once for all: a process for each header takes longer than doxygen itself.
file(REMOVE_RECURSE "${FOLDER}/filtered")
execute_process(COMMAND "${PYTHON}" "${SOURCE}/cmake/doxygen_filter.py" "${SOURCE}/include" "${FOLDER}/filtered/include"
                COMMAND_ERROR_IS_FATAL ANY)
string(APPEND settings "FILTER_PATTERNS =\n")

function(run_doxygen more_settings)
  file(WRITE "${FOLDER}/Doxyfile" "${settings}${more_settings}")
  execute_process(COMMAND "${DOXYGEN}" "${FOLDER}/Doxyfile" WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE output
                  ERROR_VARIABLE output RESULT_VARIABLE status)
  set(status ${status} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(WRITE "${FOLDER}/planted/planted.hpp"
  "/// A header with a fault.\n#pragma once\n\nnamespace evenkeel {\n\ninline int planted_fault() { return 1; }\n\n}\n")
run_doxygen("INPUT = ${FOLDER}/planted\nUSE_MDFILE_AS_MAINPAGE =\n")
if(status EQUAL 0 OR NOT output MATCHES "planted_fault.*is not documented")
  message(FATAL_ERROR "doxygen does not see an undocumented function:\n${output}")
endif()
string(REGEX MATCH "\nINPUT *= include ([^\n]+)" input "${settings}")
run_doxygen("INPUT = ${FOLDER}/filtered/include ${CMAKE_MATCH_1}\nSTRIP_FROM_PATH = ${FOLDER}/filtered/include\n")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${output}")
endif()
