#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace nn {

/// The commit of the working directory, with a + where files differ from it; "unknown" outside of a checkout.
inline std::string commit() {
  const auto first_line = [](const char* command) {
    std::string line;
    if (std::FILE* pipe = popen(command, "r")) {
      std::array<char, 128> buffer{};
      if (std::fgets(buffer.data(), int(buffer.size()), pipe)) line = buffer.data();
      pclose(pipe);
    }
    return line.substr(0, line.find('\n'));
  };
  const std::string hash = first_line("git rev-parse --short=12 HEAD 2>/dev/null");
  if (hash.empty()) return "unknown";
  return hash + (first_line("git status --porcelain --untracked-files=no 2>/dev/null").empty() ? "" : "+");
}

/// A program's arguments as they could be typed again.
inline std::string command_line(int argc, char** argv) {
  std::string line = argv[0];
  line = line.substr(line.rfind('/') + 1);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    line += argument.find_first_of(" \"'$\\") == std::string::npos ? " " + argument : " '" + argument + "'";
  }
  return line;
}

}  // namespace nn
