#pragma once

#include <stdio.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace nn {

/// One line on stderr, redrawn in place; silent when stderr is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(long total) : total_(total), drawn_on_(isatty(STDERR_FILENO) == 1) {}

  void show(long done, double loss, double per_second, const char* what = "tokens") {
    const auto now = std::chrono::steady_clock::now();
    if (!drawn_on_ || (now - last_ < std::chrono::milliseconds(100) && done < total_)) return;
    last_ = now;
    constexpr long cells = 24;
    const long filled = done * cells / total_;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const long left = long(seconds / double(done) * double(total_ - done));
    fprintf(stderr, "\r[%s%s] %ld/%ld  loss %.3f  %.0f %s/s  %ld:%02ld left  ",
            std::string(std::size_t(filled), '#').c_str(), std::string(std::size_t(cells - filled), '.').c_str(), done,
            total_, loss, per_second, what, left / 60, left % 60);
    fflush(stderr);
  }

  /// Before anything else is printed.
  void clear() const {
    if (drawn_on_) fprintf(stderr, "\r%79s\r", "");
  }

 private:
  long total_;
  bool drawn_on_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_{};
};

}  // namespace nn
