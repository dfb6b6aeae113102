// Every library that was found, on the same buffers in one process, one thread: the order of the peers changes every
// round, outputs are reused, and each result is checked against double first. "Limit" is the fastest way to copy the same
// bytes (forward) or to add them up in a triad (backward) in the same round.
#include "paired.hpp"
#include "peers/peer.hpp"

#include <Eigen/Core>

#include <CLI/CLI.hpp>
#include <dlfcn.h>
#include <malloc.h>
#include <nlohmann/json.hpp>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using namespace peers;

struct Options {
  std::string grid, out = "compare";
  std::vector<std::string> peers;
  int rounds = 21;
  bool quick = false;
};

/// A line of the grid: the operation, and how many times the limit it must and may take (0: nobody said).
struct Cell {
  Operation operation;
  std::string norm, pass, type;
  double must, edge;
  bool dispatch_bound;

  std::string label() const {
    std::string text =
        norm + ' ' + pass + ' ' + type + ' ' + std::to_string(operation.n) + 'x' + std::to_string(operation.c);
    if (operation.space > 1) text += 'x' + std::to_string(operation.space);
    return text;
  }
};

template <class T>
T word(const std::map<std::string, T>& words, const std::string& name) {
  const auto at = words.find(name);
  if (at == words.end()) throw std::runtime_error("the grid has an unknown word: " + name);
  return at->second;
}

std::vector<Cell> read_grid(const std::string& path) {
  const std::map<std::string, Norm> norms{
      {"layer_norm", Norm::layer_norm}, {"rms_norm", Norm::rms_norm},
      {"batch_norm", Norm::batch_norm}, {"batch_norm_inference", Norm::batch_norm_inference},
      {"group_norm", Norm::group_norm}, {"weight_norm", Norm::weight_norm}};
  const std::map<std::string, Pass> passes{{"forward", Pass::forward}, {"backward", Pass::backward}};
  const std::map<std::string, Type> types{{"float32", Type::float32}, {"bfloat16", Type::bfloat16}};
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path + ": cannot be read");
  std::vector<Cell> cells;
  std::string line;
  for (std::getline(in, line); std::getline(in, line);) {
    std::istringstream fields(line);
    std::vector<std::string> field;
    for (std::string f; std::getline(fields, f, ',');) field.push_back(f);
    if (field.size() != 10) throw std::runtime_error(path + ": 10 fields expected in: " + line);
    cells.push_back({{word(norms, field[0]), word(passes, field[1]), word(types, field[2]), std::stol(field[3]),
                      std::stol(field[4]), std::stol(field[5]), std::stol(field[6])},
                     field[0],
                     field[1],
                     field[2],
                     std::stod(field[7]),
                     std::stod(field[8]),
                     field[9] == "1"});
  }
  return cells;
}

/// Memory aligned to 64 bytes, touched once.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : memory_(bytes + 64, '\0') {
    start_ = memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64;
  }
  template <class T = char>
  T* data() {
    return reinterpret_cast<T*>(start_);
  }

 private:
  std::vector<char> memory_;
  char* start_;
};

struct Arrays {
  explicit Arrays(const Operation& o)
      : x(bytes(o)), dy(bytes(o)), y(bytes(o)), dx(bytes(o)), rows(vector_size(o)), vectors(6 * rows * sizeof(float)) {
    Eigen::ArrayXf first = Eigen::ArrayXf::Random(o.size()), second = Eigen::ArrayXf::Random(o.size());
    first = first * 1.7f + 0.3f;
    put(first, x, o);
    put(second, dy, o);
    float* const v = vectors.data<float>();
    const auto at = [&](std::size_t k) { return Eigen::Map<Eigen::ArrayXf>(v + k * rows, Eigen::Index(rows)); };
    at(0) = Eigen::ArrayXf::LinSpaced(Eigen::Index(rows), 0.5f, 1.5f);
    at(1) = at(0) - 1;
    at(4) = 0.3f;
    at(5) = at(0);
    buffers = {x.data(), dy.data(),    y.data(),     dx.data(),    v,
               v + rows, v + 2 * rows, v + 3 * rows, v + 4 * rows, v + 5 * rows};
  }
  static std::size_t bytes(const Operation& o) { return std::size_t(o.size() * o.bytes_per_value()); }
  static std::size_t vector_size(const Operation& o) { return std::size_t((std::max(o.n, o.c) + 15) / 16 * 16); }
  static void put(const Eigen::ArrayXf& from, Memory& to, const Operation& o) {
    if (o.type == Type::float32)
      std::copy_n(from.data(), o.size(), to.data<float>());
    else
      std::transform(from.data(), from.data() + o.size(), to.data<Eigen::bfloat16>(),
                     [](float f) { return Eigen::bfloat16(f); });
  }
  static Eigen::ArrayXd values(Memory& from, const Operation& o) {
    Eigen::ArrayXd values(o.size());
    for (long i = 0; i < o.size(); ++i)
      values[i] = o.type == Type::float32 ? double(from.data<float>()[i])
                                          : double(static_cast<float>(from.data<Eigen::bfloat16>()[i]));
    return values;
  }

  Memory x, dy, y, dx;
  std::size_t rows;
  Memory vectors;
  Buffers buffers;
};

/// What y, or dx, is in double.
Eigen::ArrayXd reference(const Operation& o, Arrays& a) {
  const Eigen::ArrayXd x = Arrays::values(a.x, o), dy = Arrays::values(a.dy, o);
  const float *w = a.buffers.weight, *b = a.buffers.bias;
  Eigen::ArrayXd out(o.size());
  // Sets of values with statistics in common, as lists of (start, length, channel) of stretches.
  struct Stretch {
    long start, length, channel;  // channel -1: a feature for each value
  };
  const auto standardize = [&](const std::vector<Stretch>& set, bool centred, bool frozen, double weight_of_row) {
    double count = 0, sum = 0, squares = 0;
    for (const Stretch& s : set) count += double(s.length), sum += x.segment(s.start, s.length).sum();
    double mean = centred ? sum / count : 0;
    if (frozen) mean = double(a.buffers.running_mean[set.front().channel]);
    for (const Stretch& s : set) squares += (x.segment(s.start, s.length) - mean).square().sum();
    double rstd = 1 / std::sqrt(squares / count + 1e-5);
    if (frozen) rstd = 1 / std::sqrt(double(a.buffers.running_var[set.front().channel]) + 1e-5);
    if (o.norm == Norm::weight_norm) rstd = 1 / std::sqrt(squares);
    const auto weight = [&](const Stretch& s, long i) {
      if (o.norm == Norm::weight_norm) return weight_of_row;
      return double(w[s.channel < 0 ? i : s.channel]);
    };
    double h_sum = 0, hx_sum = 0;
    for (const Stretch& s : set)
      for (long i = 0; i < s.length; ++i) {
        const double xhat = (x[s.start + i] - mean) * rstd, h = dy[s.start + i] * weight(s, i);
        const bool has_bias = o.norm != Norm::weight_norm && o.norm != Norm::rms_norm;
        out[s.start + i] = xhat * weight(s, i) + (has_bias ? double(b[s.channel < 0 ? i : s.channel]) : 0.0);
        h_sum += h, hx_sum += h * xhat;
      }
    if (o.pass == Pass::forward) return;
    if (o.norm == Norm::weight_norm) count = 1;
    for (const Stretch& s : set)
      for (long i = 0; i < s.length; ++i) {
        const double xhat = (x[s.start + i] - mean) * rstd, h = dy[s.start + i] * weight(s, i);
        out[s.start + i] = (h - (centred ? h_sum / count : 0) - xhat * hx_sum / count) * rstd;
      }
  };
  if (o.norm == Norm::layer_norm || o.norm == Norm::rms_norm || o.norm == Norm::weight_norm) {
    for (long r = 0; r < o.n; ++r)
      standardize({{r * o.c, o.c, -1}}, o.norm == Norm::layer_norm, false,
                  o.norm == Norm::weight_norm ? double(w[r]) : 0.0);
    return out;
  }
  if (o.norm == Norm::group_norm) {
    const long size = o.c / o.groups;
    for (long n = 0; n < o.n; ++n)
      for (long g = 0; g < o.groups; ++g) {
        std::vector<Stretch> set;
        for (long c = g * size; c < (g + 1) * size; ++c) set.push_back({(n * o.c + c) * o.space, o.space, c});
        standardize(set, true, false, 0);
      }
    return out;
  }
  for (long c = 0; c < o.c; ++c) {
    std::vector<Stretch> set;
    for (long n = 0; n < o.n; ++n) set.push_back({(n * o.c + c) * o.space, o.space, c});
    standardize(set, true, o.norm == Norm::batch_norm_inference, 0);
  }
  return out;
}

// The limits.

void triad(const char* a, const char* b, char* to, std::size_t bytes) {
  const auto count = Eigen::Index(bytes / sizeof(float));
  using Map = Eigen::Map<Eigen::ArrayXf, Eigen::Aligned64>;
  using ConstMap = Eigen::Map<const Eigen::ArrayXf, Eigen::Aligned64>;
  Map(reinterpret_cast<float*>(to), count) =
      ConstMap(reinterpret_cast<const float*>(a), count) + 2.0f * ConstMap(reinterpret_cast<const float*>(b), count);
}
#if defined(__AVX512F__) || defined(__AVX2__)
void streaming_copy(const char* from, char* to, std::size_t bytes) {
  for (std::size_t i = 0; i + 32 <= bytes; i += 32)
    _mm256_stream_ps(reinterpret_cast<float*>(to + i), _mm256_load_ps(reinterpret_cast<const float*>(from + i)));
  _mm_sfence();
}
void streaming_triad(const char* a, const char* b, char* to, std::size_t bytes) {
  const __m256 two = _mm256_set1_ps(2);
  for (std::size_t i = 0; i + 32 <= bytes; i += 32)
    _mm256_stream_ps(reinterpret_cast<float*>(to + i),
                     _mm256_fmadd_ps(two, _mm256_load_ps(reinterpret_cast<const float*>(b + i)),
                                     _mm256_load_ps(reinterpret_cast<const float*>(a + i))));
  _mm_sfence();
}
#endif

std::vector<std::function<void()>> limits(const Operation& o, const Buffers& b) {
  const std::size_t bytes = Arrays::bytes(o);
  const auto at = [](void* p) { return static_cast<char*>(p); };
  if (o.pass == Pass::forward) return {
      [=] { std::memcpy(b.y, b.x, bytes); },
#if defined(__AVX512F__) || defined(__AVX2__)
          [=] { streaming_copy(at(b.x), at(b.y), bytes); },
#endif
    };
  return {
    [=] { triad(at(b.x), at(b.dy), at(b.dx), bytes); },
#if defined(__AVX512F__) || defined(__AVX2__)
        [=] { streaming_triad(at(b.x), at(b.dy), at(b.dx), bytes); },
#endif
  };
}

struct Library {
  std::unique_ptr<Peer> peer;
  explicit Library(const std::string& path) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) throw std::runtime_error(dlerror());
    const auto make = reinterpret_cast<Peer* (*)()>(dlsym(handle, "evenkeel_bench_peer"));
    if (!make) throw std::runtime_error(path + " is no peer");
    peer.reset(make());
  }
};

struct Result {
  std::string name;
  double microseconds = 0, times_limit = 0, times_ours = 0, error = 0;
};

/// Medians over the rounds, the first library being ours.
std::vector<Result> measure(const Cell& cell, const std::vector<Library>& libraries, const Options& options) {
  const Operation& o = cell.operation;
  Arrays arrays(o);
  const Eigen::ArrayXd exact = reference(o, arrays);
  std::vector<Result> results;
  std::vector<Call> calls;
  for (const Library& library : libraries) {
    Memory& written = o.pass == Pass::forward ? arrays.y : arrays.dx;
    Call call = library.peer->prepare(o, arrays.buffers);
    if (!call.run) continue;
    std::memset(written.data(), 0xff, Arrays::bytes(o));
    call.run();
    if (call.collect) call.collect();
    const double error = (Arrays::values(written, o) - exact).abs().maxCoeff() / exact.abs().maxCoeff();
    results.push_back({.name = library.peer->name(), .error = error});
    calls.push_back(call);
  }
  const auto bounds = limits(o, arrays.buffers);
  const double once = paired::seconds(calls.front().run, 2);
  const int repeats = std::max(1, static_cast<int>(1e-4 / once));
  const std::size_t count = calls.size();
  std::vector<std::vector<double>> times(count), to_limit(count), to_ours(count);
  for (int round = 0; round < options.rounds; ++round) {
    double limit = INFINITY;
    std::vector<double> time(count);
    const std::size_t places = count + bounds.size();
    for (std::size_t place = 0; place < places; ++place) {
      // Rotated, and backwards every other round: nobody always follows the same neighbour.
      const std::size_t k = (std::size_t(round) / 2 + (round % 2 == 0 ? place : places - 1 - place)) % places;
      const auto& run = k < count ? calls[k].run : bounds[k - count];
      run();
      const double t = paired::seconds(run, repeats);
      if (k < count)
        time[k] = t;
      else
        limit = std::min(limit, t);
    }
    for (std::size_t k = 0; k < count; ++k) {
      times[k].push_back(time[k]);
      to_limit[k].push_back(time[k] / limit);
      to_ours[k].push_back(time[k] / time[0]);
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    results[k].microseconds = 1e6 * paired::median(times[k]);
    results[k].times_limit = paired::median(to_limit[k]);
    results[k].times_ours = paired::median(to_ours[k]);
  }
  return results;
}

/// The figures whose geometric means are printed: those of one peer, pass, type and grid.
struct Means {
  std::map<std::string, std::pair<double, int>> logs;
  void add(const std::string& key, double ratio) {
    auto& [sum, count] = logs[key];
    sum += std::log(ratio), ++count;
  }
};

void run(const Options& options) {
  std::vector<Cell> cells = read_grid(options.grid);
  if (options.quick) std::erase_if(cells, [](const Cell& c) { return c.operation.size() > (1L << 21); });
  std::vector<Library> libraries;
  nlohmann::json json;
  for (const std::string& path : options.peers) {
    try {
      libraries.emplace_back(path);
    } catch (const std::exception& error) {
      if (libraries.empty()) throw;
      std::printf("left out: %s\n", error.what());
      continue;
    }
    const Peer& peer = *libraries.back().peer;
    std::printf("%s %s\n", peer.name().c_str(), peer.version().c_str());
    json["peers"][peer.name()] = peer.version();
  }
  if (libraries.empty()) throw std::runtime_error("--peers names nobody");
  json["rounds"] = options.rounds;
  std::ofstream csv(options.out + ".csv");
  csv << "operation,pass,type,n,c,space,peer,microseconds,times_limit,times_evenkeel,error\n";
  Means means;
  std::printf("\n%-48s %10s %8s %12s   peers: time over ours (error)\n", "", "us", "x limit", "must / edge");
  int musts = 0, must_reached = 0, edges = 0, edge_reached = 0;
  for (const Cell& cell : cells) {
    const std::vector<Result> results = measure(cell, libraries, options);
    const Result& ours = results.front();
    std::printf("%-48s %10.2f %8.2f ", cell.label().c_str(), ours.microseconds, ours.times_limit);
    if (cell.must > 0) {
      ++musts, ++edges;
      must_reached += ours.times_limit <= cell.must, edge_reached += ours.times_limit <= cell.edge;
      std::printf("%5.2f / %4.2f%s", cell.must, cell.edge,
                  ours.times_limit <= cell.edge   ? " +"
                  : ours.times_limit <= cell.must ? "  "
                                                  : " !");
    } else {
      std::printf("%14s", "");
    }
    for (const Result& r : results) {
      const Operation& o = cell.operation;
      csv << cell.norm << ',' << cell.pass << ',' << cell.type << ',' << o.n << ',' << o.c << ',' << o.space << ','
          << r.name << ',' << r.microseconds << ',' << r.times_limit << ',' << r.times_ours << ',' << r.error << '\n';
      json["results"].push_back({{"operation", cell.label()},
                                 {"peer", r.name},
                                 {"microseconds", r.microseconds},
                                 {"times_limit", r.times_limit},
                                 {"times_evenkeel", r.times_ours},
                                 {"error", r.error}});
      if (&r == &ours) continue;
      std::printf("  %s %.2f", r.name.c_str(), r.times_ours);
      if (r.error > (cell.type == "float32" ? 1e-4 : 3e-2)) std::printf(" (wrong: %.1g)", r.error);
      const std::string key = "peer=" + r.name + " pass=" + cell.pass + " type=" + cell.type + " grid=";
      // oneDNN calls this one its reference code: no competitor.
      if (r.name == "oneDNN" && cell.operation.norm == Norm::group_norm && cell.pass == "backward") continue;
      means.add(key + "all", r.times_ours);
      if (!cell.dispatch_bound) means.add(key + "large", r.times_ours);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  std::printf("\nof %d cells with a bar, %d are within must (!: not), %d within edge (+)\n\n", musts, must_reached,
              edge_reached);
  for (const auto& [key, value] : means.logs) {
    const double ratio = std::exp(value.first / value.second);
    std::printf("GEOMEAN %s ratio=%.2f\n", key.c_str(), ratio);
    json["geomeans"][key] = ratio;
  }
  std::ofstream(options.out + ".json") << json.dump(1) << '\n';
  if (!csv) throw std::runtime_error(options.out + ".csv: cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times this library's norms beside those of others.");
  app.add_option("--grid", options.grid, "CSV file of operations and shapes")->required();
  app.add_option("--peers", options.peers, "shared libraries, ours first")->required();
  app.add_option("--out", options.out, "of OUT.csv and OUT.json")->capture_default_str();
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 10000))->capture_default_str();
  app.add_flag("--quick", options.quick, "leaves out what is larger than 8 MiB");
  CLI11_PARSE(app, argc, argv);
  try {
    // No library is to be timed asking the system for pages.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "compare: " << error.what() << '\n';
    return 2;
  }
}
