// Programs as their users meet them: a process with arguments, two streams and an exit status.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace process {

namespace fs = std::filesystem;

/// A folder that is gone with the test.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("evenkeel_command_line_" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return *this / name;
  }

 private:
  fs::path path_;
};

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Outcome {
  int status;
  std::string out, err;
};

/// A program of examples/. `before` stands before it on the command line.
inline Outcome run(const Folder& folder, const std::string& program, const std::string& arguments,
                   const std::string& before = "") {
  const std::string command = before + " '" EVENKEEL_EXAMPLES_DIR "/" + program + "' " + arguments + " >'" +
                              folder / "out" + "' 2>'" + folder / "err" + "'";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(folder / "out"), read(folder / "err")};
}

inline std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  const std::size_t begin = text.rfind('\n', end);
  return text.substr(begin + 1, end - begin);
}

inline std::string value_of(const std::string& result, const std::string& key) {
  const std::size_t begin = result.find(" " + key + "=");
  if (begin == std::string::npos) return {};
  const std::size_t value = begin + key.size() + 2;
  return result.substr(value, result.find(' ', value) - value);
}

}  // namespace process
