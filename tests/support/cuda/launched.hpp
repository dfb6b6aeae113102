#pragma once

// Which kernels of a header the emulator has not launched in this program. A test that launches all of them calls
// never_launched("detail/row_kernels.cuh"); kernels_test.cpp looks for that call for every header that has kernels.

#include "evenkeel/detail/launch.cuh"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

namespace emulator {

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read " + file.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The functions that `source` declares __global__: __global__ void __launch_bounds__(...) name(
inline std::set<std::string> kernels_in(const std::string& source) {
  std::string code;
  std::istringstream lines(source);
  for (std::string line; std::getline(lines, line);) code += line.substr(0, line.find("//")) + " ";
  const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::set<std::string> names;
  const std::string word = "__global__", bounds = "__launch_bounds__";
  for (std::size_t at = code.find(word); at != std::string::npos; at = code.find(word, at + 1)) {
    std::size_t open = code.find('(', at);
    if (const std::size_t bound = code.find(bounds, at); bound < open) open = code.find('(', code.find(')', open));
    std::size_t end = open;
    while (end > at && !is_name(code[end - 1])) --end;
    std::size_t begin = end;
    while (begin > at && is_name(code[begin - 1])) --begin;
    names.insert(code.substr(begin, end - begin));
  }
  return names;
}

// "void evenkeel::detail::row_kernel<...>(...)" is row_kernel.
inline std::string function_name(const std::string& kernel) {
  const std::string name = kernel.substr(0, kernel.find_first_of("<("));
  return name.substr(name.find_last_of(": ") + 1);
}

// `header` as in #include "evenkeel/<header>".
inline std::set<std::string> never_launched(const std::string& header) {
  std::set<std::string> names = kernels_in(text_of(std::filesystem::path(EVENKEEL_INCLUDE_DIR) / "evenkeel" / header));
  if (names.empty()) throw std::runtime_error(header + " has no kernels");
  for (const auto& [kernel, count] : record().kernels) names.erase(function_name(kernel));
  return names;
}

}  // namespace emulator
