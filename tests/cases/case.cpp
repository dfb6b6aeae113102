#include "cases/case.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>

namespace cases_test {

using support::Json;
using Pointer = Json::json_pointer;

namespace {

double number_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const auto text = json.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::runtime_error("not a number: " + text);
}

void append(const Json& json, std::size_t depth, Tensor& tensor) {
  if (!json.is_array()) return tensor.values.push_back(number_of(json));
  const auto extent = static_cast<Eigen::Index>(json.size());
  if (tensor.shape.size() == depth) tensor.shape.push_back(extent);
  if (tensor.shape[depth] != extent) throw std::runtime_error("an array with rows of different lengths");
  for (const Json& part : json) append(part, depth + 1, tensor);
}

// The formulas that have no parameters of their own, as the cases spell them; r and c count rows and columns.
using Formula = std::function<double(std::int64_t r, std::int64_t c)>;

const Formula& formula(const std::string& text) {
  static const std::map<std::string, Formula> formulas{
      {"x[r][c] = (r+1) * (((37*c + 11) mod 64) - 32) / 64",
       [](auto r, auto c) { return double((r + 1) * ((37 * c + 11) % 64 - 32)) / 64; }},
      {"x[r][c] = ((r mod 1000) - 500)/4 + [0,1,3,8][c]",
       [](auto r, auto c) {
         return double(r % 1000 - 500) / 4 + (c == 0 ? 0 : c == 1 ? 1 : c == 2 ? 3 : 8);
       }},
      {"x[r][c] = (((13*r + 5*c) mod 31) - 15)/4",
       [](auto r, auto c) { return double((13 * r + 5 * c) % 31 - 15) / 4; }},
      {"dy[r][c] = ((5*r + 3*c) mod 7) - 3", [](auto r, auto c) { return double((5 * r + 3 * c) % 7 - 3); }},
  };
  const auto found = formulas.find(text);
  if (found == formulas.end()) throw std::runtime_error("a formula that case.cpp does not know: " + text);
  return found->second;
}

Tensor generated(const Json& json) {
  Tensor tensor;
  tensor.shape = json.at("shape").get<Shape>();
  std::int64_t size = 1;
  for (const Eigen::Index extent : tensor.shape) size *= extent;
  if (json.contains("values")) {
    for (const Json& value : json.at("values")) tensor.values.push_back(number_of(value));
  } else if (json.contains("constant")) {
    tensor.values.assign(static_cast<std::size_t>(size), json.at("constant").get<double>());
  } else if (json.value("kind", "") == "lcg") {
    const auto a = json.at("a").get<std::int64_t>(), b = json.at("b").get<std::int64_t>(),
               m = json.at("m").get<std::int64_t>();
    const double s = json.at("s").get<double>(), offset = json.at("offset").get<double>();
    for (std::int64_t i = 0; i < size; ++i) tensor.values.push_back(offset + double((a * i + b) % m - (m - 1) / 2) / s);
  } else {
    const Formula& f = formula(json.at("formula").get<std::string>());
    for (Eigen::Index r = 0; r < tensor.shape.at(0); ++r)
      for (Eigen::Index c = 0; c < tensor.shape.at(1); ++c) tensor.values.push_back(f(r, c));
  }
  if (std::ssize(tensor.values) != size) throw std::runtime_error("values that do not fill their shape");
  return tensor;
}

void leaves(const Json& json, const std::string& pointer, std::vector<std::string>& all) {
  if (!json.is_structured() || json.empty()) return all.push_back(pointer);
  if (json.is_array()) {
    for (std::size_t i = 0; i < json.size(); ++i) leaves(json[i], pointer + "/" + std::to_string(i), all);
  } else {
    for (const auto& [key, value] : json.items()) leaves(value, pointer + "/" + key, all);
  }
}

}  // namespace

std::string Case::id() const { return json_->at("id").get<std::string>(); }
std::string Case::title() const { return json_->at("title").get<std::string>(); }
std::string Case::op() const { return json_->at("op").get<std::string>(); }

bool Case::has(const std::string& pointer) const { return json_->contains(Pointer(pointer)); }

const Json& Case::at(const std::string& pointer) const {
  read_.push_back(pointer);
  return json_->at(Pointer(pointer));
}

Tensor Case::tensor(const std::string& pointer) const {
  const Json& json = at(pointer);
  if (json.is_object()) return generated(json);
  Tensor tensor;
  append(json, 0, tensor);
  return tensor;
}

double Case::number(const std::string& pointer) const { return number_of(at(pointer)); }
std::string Case::text(const std::string& pointer) const { return at(pointer).get<std::string>(); }
bool Case::boolean(const std::string& pointer) const { return at(pointer).get<bool>(); }
bool Case::is_null(const std::string& pointer) const { return at(pointer).is_null(); }
bool Case::is_text(const std::string& pointer) const { return at(pointer).is_string(); }
std::size_t Case::size(const std::string& pointer) const { return json_->at(Pointer(pointer)).size(); }

std::vector<std::string> Case::keys(const std::string& pointer) const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_->at(Pointer(pointer)).items()) keys.push_back(key);
  return keys;
}

std::vector<std::string> Case::types() const {
  std::vector<std::string> types;
  for (const auto& [key, value] : json_->at("tol").items())
    if (value.is_object()) types.push_back(key);
  return types;
}

Limit Case::limit(const std::string& type, const std::string& result) const {
  const Json& tol = json_->at("tol").at(type);
  if (tol.contains(result)) {
    if (tol.at(result) != "exact") throw std::runtime_error("a tolerance that case.cpp does not know");
    return {};
  }
  const auto of = [&](const std::string& kind) { return tol.value(result + "_" + kind, tol.value(kind, 0.0)); };
  return {of("rtol"), of("atol")};
}

bool Case::y_only(const std::string& type) const { return json_->at("tol").at(type).value("y_only", false); }

std::vector<std::string> Case::unread() const {
  std::vector<std::string> all;
  for (const char* part : {"params", "inputs", "expected"})
    if (!json_->at(part).empty()) leaves(json_->at(part), std::string("/") + part, all);
  std::erase_if(all, [&](const std::string& leaf) {
    return std::any_of(read_.begin(), read_.end(),
                       [&](const std::string& r) { return leaf == r || leaf.starts_with(r + "/"); });
  });
  return all;
}

std::string difference(const Values& got, const Values& expected, const Limit& limit) {
  std::ostringstream text;
  text.precision(10);
  if (got.size() != expected.size()) {
    text << got.size() << " values, expected " << expected.size();
    return text.str();
  }
  double worst = 0;
  std::size_t place = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))) continue;
    const double allowed = limit.atol + limit.rtol * std::abs(expected[i]);
    double excess = std::abs(got[i] - expected[i]) / allowed;
    if (std::isnan(excess)) excess = INFINITY;
    if (excess <= worst) continue;
    worst = excess;
    place = i;
  }
  if (worst > 1)
    text << "at " << place << ": got " << got[place] << ", expected " << expected[place] << ", " << worst
         << " times what is allowed";
  return text.str();
}

std::string bit_difference(const Values& got, const Values& expected) {
  std::ostringstream text;
  text.precision(17);
  if (got.size() != expected.size()) {
    text << got.size() << " values, expected " << expected.size();
    return text.str();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<std::uint64_t>(got[i]) == std::bit_cast<std::uint64_t>(expected[i])) continue;
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    text << "at " << i << ": got " << got[i] << ", expected the bits of " << expected[i];
    break;
  }
  return text.str();
}

}  // namespace cases_test
