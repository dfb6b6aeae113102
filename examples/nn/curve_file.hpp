#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace nn {

/// A CSV file that appears whole: rows go to FILE.part, which takes FILE's name at the end. Does nothing without a
/// name.
class CurveFile {
 public:
  CurveFile(const std::string& path, const std::string& header) : path_(path), part_(path + ".part") {
    if (path_.empty()) return;
    std::error_code ignored;
    const auto status = std::filesystem::status(path_, ignored);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
      throw std::runtime_error(path_ + ": is not a regular file");  // a rename would replace a device such as /dev/null
    }
    file_.open(part_);
    if (!file_) throw std::runtime_error(path_ + ": cannot be written: " + std::strerror(errno));
    file_ << header << std::endl;
  }
  ~CurveFile() {
    if (!file_.is_open()) return;
    file_.close();
    std::error_code ignored;
    std::filesystem::remove(part_, ignored);
  }
  CurveFile(const CurveFile&) = delete;
  CurveFile& operator=(const CurveFile&) = delete;

  void row(const std::string& line) {
    if (file_.is_open()) file_ << line << std::endl;
  }

  void finish() {
    if (!file_.is_open()) return;
    file_.close();
    if (!file_) throw std::runtime_error(path_ + ": cannot be written: " + std::strerror(errno));
    std::filesystem::rename(part_, path_);
  }

 private:
  std::string path_, part_;
  std::ofstream file_;
};

}  // namespace nn
