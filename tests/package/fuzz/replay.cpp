// Runs a target over a corpus without a fuzzer: a file with one input a line, in hexadecimal digits.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i]);
    for (std::string line; std::getline(file, line); ++inputs) {
      std::vector<std::uint8_t> input;
      for (std::size_t at = 0; at + 1 < line.size(); at += 2)
        input.push_back(static_cast<std::uint8_t>(std::stoi(line.substr(at, 2), nullptr, 16)));
      LLVMFuzzerTestOneInput(input.data(), input.size());
    }
  }
  std::printf("%zu inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
