#include "golden/golden.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>
#include <stdexcept>

#ifndef EVENKEEL_TESTS_DIR  // compiled by hand from the root of the project
#define EVENKEEL_TESTS_DIR "tests"
#endif

namespace golden {

namespace {

using Json = nlohmann::json;

void append(const Json& json, Values& values) {
  if (json.is_array())
    for (const Json& part : json) append(part, values);
  else
    values.push_back(json.get<double>());
}

Values values_of(const Json& json) {
  Values values;
  append(json, values);
  return values;
}

const Json& document() {
  static const Json json = [] {
    const std::string path = EVENKEEL_TESTS_DIR "/golden/golden.json";
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path);
    return Json::parse(file);
  }();
  return json;
}

Case case_of(const Json& json) {
  Case c;
  c.op = json.at("op").get<std::string>();
  c.shape = json.at("shape").get<std::vector<Eigen::Index>>();
  c.layout = json.value("layout", "contiguous");
  for (const auto& [name, value] : json.at("options").items())
    if (!value.is_null()) c.options[name] = value.is_boolean() ? value.get<bool>() : value.get<double>();
  // Nine digits are a float32; the decimals themselves are not.
  for (const auto& [name, value] : json.at("inputs").items())
    for (const double decimal : values_of(value)) c.inputs[name].push_back(double(static_cast<float>(decimal)));
  for (const auto& [type, result] : json.at("results").items()) {
    c.float32_parameters[type] = result.value("parameters", "") == "float32";
    for (const auto& [name, value] : result.items())
      if (name != "parameters") c.results[type][name] = values_of(value);
  }
  return c;
}

}  // namespace

std::string Case::text() const {
  std::ostringstream text;
  text << op << " of";
  for (const Eigen::Index extent : shape) text << ' ' << extent;
  text << ' ' << layout;
  for (const auto& [name, value] : options) text << ", " << name << ' ' << value;
  for (const auto& [name, values] : inputs) text << ", " << name;
  return text.str();
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> list;
    for (const Json& json : document().at("cases")) list.push_back(case_of(json));
    return list;
  }();
  return all;
}

std::string torch_version() { return document().at("torch").get<std::string>(); }

const Standard& standard_normal() {
  static const Standard standard = [] {
    for (const Case& c : cases()) {
      if (c.op != "standard_normal") continue;
      const Named& result = c.results.at("float32");
      return Standard{int(c.shape.at(0)), int(c.shape.at(1)), c.input("x"), result.at("layer_norm"),
                      result.at("rms_norm")};
    }
    throw std::runtime_error("golden.json has no standard_normal");
  }();
  return standard;
}

}  // namespace golden
