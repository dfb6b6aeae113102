#pragma once

#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>

// What the programs of examples/ have in common.
namespace nn {

/// Throws what a program prints as its one line about a mistake.
inline void require(bool condition, const std::string& sentence) {
  if (!condition) throw std::runtime_error(sentence);
}

template <class Number>
void require_positive(const char* option, Number value) {
  require(value >= 1, std::string(option) + " must be at least 1, not " + std::to_string(value));
}

inline volatile std::sig_atomic_t interrupted = 0;

/// The first Ctrl-C ends the training after the current step, the second one ends the process.
inline void catch_interrupt() {
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string format(const char* pattern, auto... values) {
  char line[512];
  std::snprintf(line, sizeof line, pattern, values...);
  return line;
}

}  // namespace nn
