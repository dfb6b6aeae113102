# Run after a test binary is linked: asks it for its test cases and writes the file that gives each of them to ctest.
# A test case gets the binary's LABELS and those of its tags that are listed in TAGS. Catch2's own catch_discover_tests
# cannot do the latter, and differs between Catch2 2 and 3.
#
#   cmake -D EXECUTABLE= -D NAME= -D LABELS=a,b -D TAGS=a,b,c -D CATCH_MAJOR=2|3 -D OUTPUT= -P discover_tests.cmake

cmake_policy(VERSION 3.25)

if(CATCH_MAJOR EQUAL 2)
  set(list_arguments --list-test-names-only)
  set(run_arguments "--warn NoTests")  # a filter that matches nothing is an error, as it is in Catch2 3 by default
else()
  set(list_arguments --list-tests --verbosity quiet)
  set(run_arguments "")
endif()

# Unbalanced brackets and semicolons would break CMake's lists, so they travel as control characters.
string(ASCII 1 open)
string(ASCII 2 close)
string(ASCII 3 semicolon)

function(list_test_cases result)
  execute_process(COMMAND "${EXECUTABLE}" ${list_arguments} ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE errors
                  RESULT_VARIABLE status)
  # Catch2 2 exits with the number of test cases, so a number says nothing; a word is a signal.
  if(NOT status MATCHES "^[0-9]+$" OR (CATCH_MAJOR GREATER 2 AND NOT status EQUAL 0))
    message(FATAL_ERROR "${EXECUTABLE} cannot list its test cases: ${status}\n${output}${errors}")
  endif()
  string(REPLACE "[" "${open}" output "${output}")
  string(REPLACE "]" "${close}" output "${output}")
  string(REPLACE ";" "${semicolon}" output "${output}")
  string(REGEX REPLACE "\r?\n" ";" output "${output}")
  list(REMOVE_ITEM output "")
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

list_test_cases(cases)
if(NOT cases)
  message(FATAL_ERROR "${EXECUTABLE} has no test cases")
endif()
string(REPLACE "," ";" LABELS "${LABELS}")
string(REPLACE "," ";" TAGS "${TAGS}")
foreach(tag IN LISTS TAGS)
  list_test_cases(tagged_${tag} "[${tag}]")
endforeach()

set(script "")
foreach(case IN LISTS cases)
  set(labels ${LABELS})
  foreach(tag IN LISTS TAGS)
    if(case IN_LIST tagged_${tag})
      list(APPEND labels ${tag})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES labels)

  set(name "${case}")
  string(REPLACE "${open}" "[" name "${name}")
  string(REPLACE "${close}" "]" name "${name}")
  string(REPLACE "${semicolon}" ";" name "${name}")
  string(REGEX REPLACE [[([][\,])]] [[\\\1]] filter "${name}")
  string(APPEND script
    "add_test([==[${NAME}: ${name}]==] [==[${EXECUTABLE}]==] [==[${filter}]==] ${run_arguments})\n"
    "set_tests_properties([==[${NAME}: ${name}]==] PROPERTIES LABELS \"${labels}\"\n"
    "  ENVIRONMENT \"UBSAN_OPTIONS=print_stacktrace=1\" SKIP_RETURN_CODE 4)\n")
endforeach()
file(WRITE "${OUTPUT}" "${script}")
