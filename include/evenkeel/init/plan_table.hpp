/// A plan as text.
#pragma once

#include "evenkeel/init/plan.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

namespace evenkeel {
namespace detail {

/// "Xavier normal * 0.379918", "N(0, 0.02)", "0".
inline std::string start_text(const StartRule& start) {
  std::string text;
  double scale = start.number * start.factor;
  switch (start.draw) {
    case Draw::constant:
      return value_text(start.number);
    case Draw::normal:
      return "N(0, " + value_text(scale) + ")";
    case Draw::xavier_normal:
      text = "Xavier normal";
      break;
    case Draw::xavier_uniform:
      text = "Xavier uniform";
      break;
    case Draw::kaiming_normal:
      text = start.mode == FanMode::out ? "N(0, 1/sqrt(fan_out))" : "N(0, 1/sqrt(fan_in))";
      break;
    case Draw::torch_uniform:
      text = "U(+-1/sqrt(fan_in))";
      break;
  }
  if (start.in_ratio != 1 || start.out_ratio != 1) text += " at the base";
  if (scale != 1) text += " * " + value_text(scale);
  return text;
}

inline bool same_scales(const BlockScales& a, const BlockScales& b) {
  return a.skip == b.skip && a.branch == b.branch && a.beta == b.beta && a.learned_scale == b.learned_scale &&
         a.transition == b.transition;
}

using TableRow = std::array<std::string, 6>;

/// The rows, every column as wide as its widest cell.
inline std::string aligned(const std::vector<TableRow>& rows) {
  std::array<std::size_t, 6> width{};
  for (const TableRow& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  std::string text;
  for (const TableRow& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) line += row[c] + std::string(width[c] - row[c].size() + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

/// A row for each run of equal blocks, counted from 0 as Plan::block does.
inline void add_blocks(std::vector<TableRow>& rows, const char* stack, const std::vector<BlockScales>& blocks) {
  for (std::size_t first = 0, last = 0; first < blocks.size(); first = last) {
    for (last = first + 1; last < blocks.size() && same_scales(blocks[first], blocks[last]);) ++last;
    const BlockScales& b = blocks[first];
    rows.push_back({std::string(stack) + "block " + std::to_string(first) +
                        (last > first + 1 ? " to " + std::to_string(last - 1) : ""),
                    value_text(b.skip), value_text(b.branch), value_text(b.beta),
                    b.learned_scale ? value_text(*b.learned_scale) : "none", b.transition ? "yes" : "no"});
  }
}

}  // namespace detail

/// All of the plan as aligned text: a line for each role, one for each run of equal blocks, one for attention.
inline std::string plan_table(const Plan& plan) {
  const detail::PlanParts& parts = plan.parts();
  std::string text = parts.title + "\n\n";
  std::vector<detail::TableRow> rows{{"role", "starts from", "learning rate", "weight decay", "forward", ""}};
  for (const auto& entry : parts.entries)
    rows.push_back({role_text(entry.of), detail::start_text(entry.plan.start),
                    detail::value_text(entry.plan.learning_rate), detail::value_text(entry.plan.weight_decay),
                    detail::value_text(entry.plan.forward), ""});
  text += detail::aligned(rows) + "\nx_next = " + parts.formula + "\n\n";
  const bool two = !parts.encoder.empty() && !parts.decoder.empty();
  rows = {{"block", "skip", "branch", "beta", "learned scale", "transition"}};
  detail::add_blocks(rows, two ? "encoder " : "", parts.encoder);
  detail::add_blocks(rows, two ? "decoder " : "", parts.decoder);
  text += detail::aligned(rows);
  if (parts.attention_scale) text += "\nattention logits = q.k * " + detail::value_text(*parts.attention_scale) + "\n";
  return text;
}

/// Writes plan_table(plan).
inline std::ostream& operator<<(std::ostream& stream, const Plan& plan) { return stream << plan_table(plan); }

}  // namespace evenkeel
