// The norms against PyTorch's own numbers. A new norm: write the function that runs it on a golden::Case in a file of
// its family, add it there to the table, and take its name off the waiting list.
#include "golden/expect.hpp"
#include "support/catch.hpp"

#include <cstdio>
#include <set>
#include <string>

namespace {

const std::set<std::string>& waiting() {
  static const std::set<std::string> ops;
  return ops;
}

golden::Table make_table() {
  golden::Table table;
  golden::add_row_norms(table);
  golden::add_channel_norms(table);
  golden::add_module_steps(table);
  golden::add_weight_norms(table);
  golden::add_pointwise_norms(table);
  return table;
}

}  // namespace

TEST_CASE("the norms have PyTorch's numbers", "[norms][golden]") {
  const golden::Table table = make_table();
  std::size_t checked = 0, waits = 0;
  std::set<std::string> met;
  for (const golden::Case& c : golden::cases()) {
    met.insert(c.op);
    if (c.op == "standard_normal") continue;  // of the facts in tests/invariants
    INFO(c.text());
    if (const auto check = table.find(c.op); check != table.end()) {
      ++checked;
      check->second(c);
    } else if (waiting().count(c.op) > 0) {
      ++waits;
    } else {
      FAIL_CHECK("no check for this operation, and it is not on the waiting list");
    }
  }
  for (const auto& [op, check] : table)
    if (!met.count(op)) FAIL_CHECK("no case has the operation " << op);
  std::string names;
  for (const std::string& op : waiting()) {
    if (!met.count(op) || table.count(op)) FAIL_CHECK("no case waits for " << op);
    names += (names.empty() ? "" : ", ") + op;
  }
  std::printf("golden: %zu of %zu cases of PyTorch %s, %zu waiting%s%s\n", checked, checked + waits,
              golden::torch_version().c_str(), waits, waits > 0 ? ": " : "", names.c_str());
}
