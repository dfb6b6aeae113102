// Runs every case of cases.json. A new operation: write its check in a family file, add it there to the table, and take
// its name off the waiting list.
#include "cases/table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <set>
#include <string>

#ifndef EVENKEEL_TESTS_DIR  // compiled by hand from the root of the project
#define EVENKEEL_TESTS_DIR "tests"
#endif

using namespace cases_test;

namespace {

// Operations that the library does not have yet, or has in part: those with a check are run as far as they exist.
const std::set<std::string>& waiting() {
  static const std::set<std::string> ops{};
  return ops;
}

Table make_table() {
  Table table;
  add_layer_norm_cases(table);
  add_rms_norm_cases(table);
  add_row_norm_cases(table);
  add_channel_cases(table);
  add_group_norm_cases(table);
  add_gradient_cases(table);
  add_running_cases(table);
  add_determinism_cases(table);
  add_weight_cases(table);
  add_pointwise_cases(table);
  add_qk_norm_cases(table);
  add_moments_cases(table);
  add_init_cases(table);
  add_residual_cases(table);
  add_fold_cases(table);
  add_taper_cases(table);
  add_synchronized_cases(table);
  return table;
}

support::Json read_cases() {
  const std::string path = EVENKEEL_TESTS_DIR "/cases/cases.json";
  std::ifstream file(path);
  if (!file) FAIL("cannot read " << path);
  return support::Json::parse(file);
}

}  // namespace

TEST_CASE("every case of cases.json has its right value", "[norms][cases]") {
  const support::Json cases = read_cases();
  const Table table = make_table();
  std::set<std::string> met;
  std::size_t checked = 0, waits = 0;
  for (const support::Json& json : cases) {
    const Case c(json);
    INFO(c.id() << " " << c.title() << " (" << c.op() << ")");
    met.insert(c.op());
    const bool is_waiting = waiting().count(c.op()) > 0;
    ++(is_waiting ? waits : checked);
    const auto check = table.find(c.op());
    if (check == table.end()) {
      if (!is_waiting) FAIL_CHECK("no check for this operation, and it is not on the waiting list");
      continue;
    }
    try {
      check->second(c);
      if (!is_waiting) {
        for (const std::string& pointer : c.unread()) FAIL_CHECK("no check has looked at " << pointer);
      }
    } catch (const std::exception& error) {
      FAIL_CHECK("an exception: " << error.what());
    }
  }
  for (const auto& [op, check] : table)
    if (!met.count(op)) FAIL_CHECK("no case has the operation " << op);
  std::string names;
  for (const std::string& op : waiting()) {
    if (!met.count(op)) FAIL_CHECK("no case waits for " << op);
    names += (names.empty() ? "" : ", ") + op;
  }
  if (waits == 0)
    std::printf("cases: %zu of %zu, 0 skipped\n", checked, checked);
  else
    std::printf("cases: %zu of %zu, %zu waiting: %s\n", checked, checked + waits, waits, names.c_str());
}
