#pragma once

#include <stdio.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#ifndef EVENKEEL_EIGEN_INCLUDE_DIR
#define EVENKEEL_EIGEN_INCLUDE_DIR "/usr/include/eigen3"
#endif

namespace nn {

inline std::string read_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw std::runtime_error(path.string() + ": is a directory");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": " + std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) throw std::runtime_error(path.string() + ": is empty");
  return text;
}

/// The King James Bible from Debian's package bible-kjv, one verse a line; empty where the package is not installed.
/// Without the references ("Ge1:1 "): counting verses is no matter of language, and they would be a tenth of a sample.
inline std::string king_james_bible() {
  if (!std::filesystem::exists("/usr/bin/bible")) return {};
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen("/usr/bin/bible -f 'gen1:1-rev22:21' 2>/dev/null", "r"),
                                                   pclose);
  if (!pipe) return {};
  std::string printed;
  char buffer[1 << 16];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe.get())) > 0;) printed.append(buffer, n);

  std::string text;
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) text.append(line, space + 1).push_back('\n');
  }
  return text;
}

/// Every file under Eigen/src, in the order of their names.
inline std::string eigen_headers() {
  std::vector<std::filesystem::path> paths;
  std::error_code missing;
  const std::filesystem::path root = std::filesystem::path(EVENKEEL_EIGEN_INCLUDE_DIR) / "Eigen" / "src";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root, missing)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  if (text.empty()) throw std::runtime_error(root.string() + ": no text there; name a file with --data");
  return text;
}

}  // namespace nn
