#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace nn {

/// A file of named arrays of numbers, written or read in one order: the same walk over a program's state does both.
/// For the machine that wrote it: numbers are stored as they lie in memory. A file that is written appears whole, when
/// finish() is called.
class Checkpoint {
 public:
  enum class Mode { save, load };

  Checkpoint(Mode mode, const std::string& path) : path_(path), mode_(mode) {
    if (saving())
      out_.open(part(), std::ios::binary);
    else
      in_.open(path_, std::ios::binary);
    if (saving() ? !out_ : !in_)
      fail(std::string(saving() ? "cannot be written: " : "cannot be read: ") + std::strerror(errno));
  }

  bool saving() const { return mode_ == Mode::save; }

  /// Writes the numbers, or reads them where `data` points. The name and the count must be those that were written.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void values(const std::string& name, T* data, std::ptrdiff_t count) {
    const std::string head = name + " " + std::to_string(count) + " x " + std::to_string(sizeof(T)) + "\n";
    if (saving()) {
      out_ << head;
      out_.write(reinterpret_cast<const char*>(data), std::streamsize(std::size_t(count) * sizeof(T)));
      return;
    }
    std::string found;
    std::getline(in_, found);
    if (found + "\n" != head)
      fail("holds '" + found + "', expected '" + head.substr(0, head.size() - 1) +
           "': it is of another program or model");
    in_.read(reinterpret_cast<char*>(data), std::streamsize(std::size_t(count) * sizeof(T)));
    if (!in_) fail("ends within '" + name + "'");
  }
  template <class T>
  void value(const std::string& name, T& data) {
    values(name, &data, 1);
  }

  void finish() {
    if (!saving()) return;
    out_.close();
    if (!out_) fail(std::string("cannot be written: ") + std::strerror(errno));
    std::filesystem::rename(part(), path_);
  }

 private:
  std::string part() const { return path_ + ".part"; }
  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error(path_ + ": " + what); }

  std::string path_;
  Mode mode_;
  std::ofstream out_;
  std::ifstream in_;
};

}  // namespace nn
