# README.md shows what stands between the [quickstart] marks of examples/quickstart.cpp.
#
#   cmake -P cmake/readme_snippet.cmake              fails where the two differ
#   cmake -D UPDATE=ON -P cmake/readme_snippet.cmake writes the README anew
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
file(READ "${root}/examples/quickstart.cpp" source)
file(READ "${root}/README.md" readme)

string(REGEX MATCH "// \\[quickstart\\]\n(.*)  // \\[/quickstart\\]" found "${source}")
if(NOT found)
  message(FATAL_ERROR "examples/quickstart.cpp has no [quickstart] marks")
endif()
# From two spaces inside main to the four of a code block.
string(REPLACE "\n" "\n  " snippet "  ${CMAKE_MATCH_1}")
string(REGEX REPLACE "\n +\n" "\n\n" snippet "${snippet}")
string(REGEX REPLACE " +$" "" snippet "${snippet}")
set(begin "<!-- quickstart.cpp -->\n\n")
set(end "\n<!-- /quickstart.cpp -->")

string(FIND "${readme}" "${begin}${snippet}${end}" place)
if(NOT place EQUAL -1)
  return()
endif()
string(FIND "${readme}" "${begin}" first)
string(FIND "${readme}" "${end}" last)
if(first EQUAL -1 OR last EQUAL -1)
  message(FATAL_ERROR "README.md has no place for the snippet")
endif()
if(NOT UPDATE)
  message(FATAL_ERROR "README.md shows another text than examples/quickstart.cpp; "
    "cmake -D UPDATE=ON -P cmake/readme_snippet.cmake writes it anew")
endif()
string(SUBSTRING "${readme}" 0 ${first} head)
string(SUBSTRING "${readme}" ${last} -1 tail)
file(WRITE "${root}/README.md" "${head}${begin}${snippet}${tail}")
