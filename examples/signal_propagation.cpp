// What a signal does on its way through a deep stack of residual blocks before the first step of training, forward and
// backward, for each placement of norms and each scale of the branch.
#include "evenkeel/init/initializers.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "evenkeel/probe/probe.hpp"
#include "evenkeel/residual/deep_norm.hpp"
#include "evenkeel/residual/depth_scale.hpp"
#include "evenkeel/residual/layer_norm_scaling.hpp"
#include "evenkeel/residual/layer_scale.hpp"
#include "evenkeel/residual/nfnet.hpp"
#include "evenkeel/residual/output_norm.hpp"
#include "evenkeel/residual/post_norm.hpp"
#include "evenkeel/residual/pre_norm.hpp"
#include "evenkeel/residual/rezero.hpp"
#include "evenkeel/residual/sandwich.hpp"
#include "nn/curve_file.hpp"
#include "nn/matrix.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace ek = evenkeel;
using ek::Index;
using Matrix = nn::Matrix<float>;

struct Options {
  Index depth = 200;
  Index width = 64;
  Index batch = 16;
  std::uint64_t seed = 1;
  std::string name = "signal_propagation";
};

/// f(x) = relu(x W1) W2: of unit variance where x is, unless its weights are made smaller.
class Branch {
 public:
  Branch(const Options& o, Index number, double factor1, double factor2)
      : w1_(draw(o, number, "w1", std::sqrt(2.0) * factor1)), w2_(draw(o, number, "w2", factor2)) {}

  void forward(const ek::Serial&, const nn::Input<float>& x, nn::Output<float> y) {
    hidden_.noalias() = x * w1_;
    hidden_ = hidden_.cwiseMax(0.0f);
    y.noalias() = hidden_ * w2_;
  }
  /// The weights stay what they are, so the gradient of x is all there is.
  void backward(const ek::Serial&, const nn::Input<float>& dy, const nn::Input<float>&, nn::Output<float> dx) {
    dhidden_.noalias() = dy * w2_.transpose();
    dhidden_ = (hidden_.array() > 0.0f).select(dhidden_, 0.0f);
    dx.noalias() = dhidden_ * w1_.transpose();
  }
  template <class F>
  void for_each_parameter(F&&) {}

 private:
  static Matrix draw(const Options& o, Index number, const char* name, double gain) {
    Matrix w(o.width, o.width);
    const ek::RandomStream stream(o.seed, std::to_string(number) + "." + name);
    ek::kaiming_normal(w, ek::fans_of_linear(o.width, o.width), stream, {.gain = gain});
    return w;
  }

  Matrix w1_, w2_;           // (width, width)
  Matrix hidden_, dhidden_;  // (batch, width)
};

class Survey {
 public:
  Survey(const Options& options, nn::CurveFile& csv) : options_(options), csv_(csv) {}

  /// A stack of make(0), make(1), ..., a final norm where blocks do not end with one, and a loss whose gradient is drawn
  /// at random.
  template <class Make>
  void stack(const std::string& name, bool final_norm, const Make& make) {
    using Block = decltype(make(Index(0)));
    const Index depth = options_.depth;
    std::vector<Block> blocks;
    std::vector<Matrix> x(std::size_t(depth) + 1, Matrix(options_.batch, options_.width));
    Matrix y(options_.batch, options_.width), dx = y;
    fill(x[0], "x");
    ek::Probe probe;
    const auto point = [](Index l) { return "block." + std::to_string(l) + ".out"; };
    for (Index l = 0; l < depth; ++l) {
      blocks.push_back(make(l));
      blocks.back().forward(ek::serial, x[std::size_t(l)], x[std::size_t(l) + 1]);
      probe.forward(point(l + 1), l + 1, x[std::size_t(l) + 1]);
    }
    fill(dx, "dy");
    dx /= float(options_.batch);
    if (final_norm) {
      ek::RmsNorm<float> norm(options_.width);
      norm.forward(ek::serial, x.back(), y);
      norm.backward(ek::serial, dx, x.back(), dx);
    }
    for (Index l = depth; l-- > 0;) {
      // The part of it along the signal says whether a norm follows, which is no question where the block ended with one.
      if (final_norm)
        probe.backward(point(l + 1), l + 1, x[std::size_t(l) + 1], dx);
      else
        probe.backward(point(l + 1), l + 1, dx);
      blocks[std::size_t(l)].backward(ek::serial, dx, x[std::size_t(l)], dx);
    }
    report(name, probe);
  }

  const std::vector<std::string>& names() const { return names_; }

 private:
  void fill(Matrix& m, const char* name) const {
    ek::RandomStream(options_.seed, name).fill_normal(m.data(), m.size());
  }

  void report(const std::string& name, const ek::Probe& probe) {
    const std::size_t depth = std::size_t(options_.depth);
    const auto& records = probe.records();  // forward from the first block on, backward from the last one
    const auto moment = [&](std::size_t l) { return records[l].finite() ? records[l].second_moment : INFINITY; };
    const auto gradient = [&](std::size_t l) {
      const ek::ProbeRecord& record = records[2 * depth - 1 - l];
      return record.finite() ? record.gradient_norm : INFINITY;
    };
    for (std::size_t l = 0; l < depth; ++l) {
      char line[128];
      std::snprintf(line, sizeof line, "%s,%zu,%.6g,%.6g", name.c_str(), l + 1, moment(l), gradient(l));
      csv_.row(line);
    }
    std::string verdict = probe.verdict().text();
    verdict.pop_back();
    for (std::size_t at = 0; (at = verdict.find('\n', at)) != std::string::npos;) verdict.replace(at, 1, "; ");
    std::printf("%-22s second moment %9.3g to %9.3g   gradient norm %9.3g to %9.3g   %s\n", name.c_str(), moment(0),
                moment(depth - 1), gradient(depth - 1), gradient(0), verdict.c_str());
    std::fflush(stdout);
    names_.push_back(name);
  }

  const Options& options_;
  nn::CurveFile& csv_;
  std::vector<std::string> names_;
};

void survey_all(const Options& o, Survey& survey) {
  const double branches = double(o.depth), layers = branches / 2;  // two branches a layer, as in a transformer
  const auto branch = [&](Index l, double factor1 = 1, double factor2 = 1) { return Branch(o, l, factor1, factor2); };
  const auto norm = [&] { return ek::RmsNorm<float>(o.width); };

  survey.stack("none", true,
               [&](Index l) { return ek::ResidualBlock(ek::none, ek::ConstantJoin<float>(), branch(l)); });
  survey.stack("pre_norm", true, [&](Index l) { return ek::PreNorm(norm(), branch(l)); });
  survey.stack("pre_norm_gpt2", true,  // weights that write into the stream start smaller
               [&](Index l) { return ek::PreNorm(norm(), branch(l, 1, 1 / std::sqrt(branches))); });
  survey.stack("layer_norm_scaling", true, [&](Index l) {
    return ek::PreNorm(ek::ScaledRmsNorm<float>(o.width, {.scale = ek::layer_norm_scaling(l / 2 + 1)}), branch(l));
  });
  survey.stack("post_norm", false, [&](Index l) { return ek::PostNorm(norm(), branch(l)); });
  survey.stack("deep_norm", false, [&](Index l) {
    const double beta = std::pow(8 * layers, -0.25), xavier = 1 / std::sqrt(2.0);
    return ek::DeepNorm(norm(), branch(l, xavier * beta, beta), std::pow(2 * layers, 0.25));
  });
  survey.stack("sandwich", true, [&](Index l) { return ek::Sandwich(norm(), branch(l), norm()); });
  survey.stack("output_norm", true, [&](Index l) { return ek::OutputNorm(branch(l), norm()); });
  survey.stack("rezero", true, [&](Index l) { return ek::ReZero<float, Branch>(branch(l)); });
  survey.stack("layer_scale", true, [&](Index l) {
    return ek::LayerScale<float, Branch>(branch(l), o.width, ek::layer_scale_start(o.depth));
  });
  survey.stack("depth_scale", true, [&](Index l) { return ek::DepthScale<float, Branch>(branch(l), o.depth); });
  ek::NfnetVariance variance(0.2);
  survey.stack("nfnet", true,
               [&](Index l) { return ek::NfnetBlock<float, Branch>(branch(l), 0.2, variance.next(l == 0)); });
}

void write_picture(const Options& o, const std::vector<std::string>& names) {
  const std::string script = o.name + ".gnuplot";
  std::ofstream out(script);
  out << "set datafile separator comma\nset terminal svg size 1100,480 font 'sans,11'\nset output '" << o.name
      << ".svg'\nset logscale y; set format y '10^{%L}'; set xlabel 'block'\nset xrange [1:" << o.depth
      << "]\nset yrange [1e-6:1e4]\nset multiplot\n"
         "rows = '< grep \"^%s,\" "
      << o.name << ".csv'\n";
  const auto panel = [&](const char* title, int column) {
    out << "set title '" << title << "'\nplot ";
    for (std::size_t i = 0; i < names.size(); ++i)
      out << (i == 0 ? "" : ", ") << "sprintf(rows, '" << names[i] << "') every " << std::max<Index>(1, o.depth / 100)
          << " using 2:" << column << " with lines lw 2 dashtype " << i / 6 + 1 << " lc " << i % 6 + 1 << " title '"
          << names[i] << "' noenhanced";
    out << '\n';
  };
  out << "unset key\nset origin 0,0; set size 0.42,1\n";
  panel("second moment of the stream", 3);
  out << "set key outside right\nset origin 0.42,0; set size 0.58,1\n";
  panel("norm of the gradient", 4);
  out << "unset multiplot\n";
  out.close();
  if (!out) throw std::runtime_error(script + ": cannot be written");
  if (std::system(("gnuplot '" + script + "' >/dev/null 2>&1").c_str()) != 0)
    std::printf("\n%s makes the picture, where gnuplot is installed\n", script.c_str());
  else
    std::printf("\n%s.svg is the picture of %s.csv\n", o.name.c_str(), o.name.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Follows a signal through deep stacks of residual blocks.");
  app.add_option("--depth", o.depth, "blocks")->capture_default_str();
  app.add_option("--width", o.width, "numbers per row")->capture_default_str();
  app.add_option("--batch", o.batch, "rows")->capture_default_str();
  app.add_option("--seed", o.seed, "of weights, input and the loss's gradient")->capture_default_str();
  app.add_option("--name", o.name, "of the files: NAME.csv, NAME.gnuplot, NAME.svg")->capture_default_str();
  try {
    app.parse(argc, argv);
    for (const Index value : {o.depth, o.width, o.batch})
      if (value < 1) throw std::runtime_error("--depth, --width and --batch must be at least 1");
    if (o.name.find_first_of("'\"\\") != std::string::npos) throw std::runtime_error("--name must have no quotes");
    nn::CurveFile csv(o.name + ".csv", "stack,block,second_moment,gradient_norm");
    Survey survey(o, csv);
    survey_all(o, survey);
    csv.finish();
    write_picture(o, survey.names());
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::cerr << "signal_propagation: " << line << '\n';
    return 2;
  }
}
