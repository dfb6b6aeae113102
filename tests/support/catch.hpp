#pragma once

// Debian 12 has Catch2 2.13, newer systems have 3; the tests include this header and need not know.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>

using Catch::Approx;

namespace support {

inline auto contains_text(const std::string& part) { return Catch::Matchers::ContainsSubstring(part); }

}  // namespace support
#else
#include <catch2/catch.hpp>

namespace support {

inline auto contains_text(const std::string& part) { return Catch::Matchers::Contains(part); }

}  // namespace support
#endif
