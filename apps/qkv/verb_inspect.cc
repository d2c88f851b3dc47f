// qkv inspect: what a model holds, and what it does with one text.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/nearest.h"
#include "inspect/model_view.h"
#include "inspect/page.h"
#include "inspect/slice.h"
#include "inspect/trace.h"
#include "terminal.h"
#include "text/dataset.h"
#include "train/data.h"
#include "train/package.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

using inspect::NamedTensor;

struct InspectOptions {
  std::string model, text, page, tensor;
  bool has_text = false, has_tensor = false;
  bool stats = false, positions = false, graph = false, truncate = false;
};

// Weights by name, then what the trace holds.
std::vector<NamedTensor> all_tensors(const EncoderClassifier& model, const inspect::Trace* trace) {
  std::vector<NamedTensor> tensors;
  model.module().for_each(
      [&](const nn::Parameter& p) { tensors.emplace_back(p.name, p.var.value()); });
  if (trace == nullptr) return tensors;
  tensors.insert(tensors.end(), trace->activations.begin(), trace->activations.end());
  for (const auto& [module, weights] : trace->attention)
    tensors.emplace_back(module + ".weights", weights);
  return tensors;
}

const Tensor& find_tensor(const std::vector<NamedTensor>& tensors, const std::string& name,
                          bool has_text) {
  std::vector<std::string> names;
  for (const auto& [known, tensor] : tensors) {
    if (known == name) return tensor;
    names.push_back(known);
  }
  const std::string nearest = nearest_name(name, names);
  fail<ArgumentError>(
      "inspect",
      "expected the name of a weight or activation, got '{}'{}{}; --stats lists them all", name,
      nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest),
      has_text ? "" : " (activations need a TEXT)");
}

Json shape_json(const Tensor& tensor) {
  Json out = Json::array();
  for (int i = 0; i < tensor.rank(); ++i) out.push_back(tensor.dim(i));
  return out;
}

void print_slice(const std::vector<NamedTensor>& tensors, const InspectOptions& options,
                 bool json) {
  const inspect::SliceRequest request = inspect::parse_slice_request(options.tensor);
  const Tensor part =
      inspect::take_slice(find_tensor(tensors, request.name, options.has_text), request.index);
  if (!json) {
    print_line(fmt::format("{}[{}] {} {}", request.name, request.index, dtype_name(part.dtype()),
                           part.shape().str()));
    return print_line(inspect::tensor_text(part));
  }
  Json out = Json::object();
  out["tensor"] = request.name;
  out["index"] = request.index;
  out["shape"] = shape_json(part);
  out["values"] = inspect::tensor_json(part);
  print_json(out);
}

void print_stats(const std::vector<NamedTensor>& tensors, bool json) {
  if (!json)
    print_line(fmt::format("{:<44} {:<16} {:>11} {:>11} {:>11} {:>11} {:>10}", "tensor", "shape",
                           "mean", "std", "min", "max", "non-finite"));
  for (const auto& [name, tensor] : tensors) {
    const inspect::TensorFigures f = inspect::tensor_figures(tensor);
    if (!json) {
      print_line(fmt::format("{:<44} {:<16} {:>11.4g} {:>11.4g} {:>11.4g} {:>11.4g} {:>10}", name,
                             tensor.shape().str(), f.mean, f.deviation, f.min, f.max,
                             f.nan + f.infinite));
      continue;
    }
    Json out = Json::object();
    out["tensor"] = name;
    out["shape"] = shape_json(tensor);
    const Json values = f.to_json();
    for (const auto& [key, value] : values.as_object()) out[key] = value;
    print_json(out);
  }
}

void print_heads(const inspect::Trace& trace) {
  print_line(fmt::format("{} tokens; label {} ({:.4f})", trace.length(), trace.label, trace.score));
  if (trace.layers() == 0) return print_line("no weights: linear attention never forms them");
  print_line(fmt::format("{:<6} {:<5} {:<9} {:>8} {:>9} {:>9} {:>8} {:>9} {:>9} {:>8}", "layer",
                         "head", "class", "entropy", "of even", "distance", "largest", "diagonal",
                         "previous", "first"));
  std::int64_t index = 0;
  for (const inspect::HeadFigures& f : inspect::all_figures(trace)) {
    print_line(fmt::format(
        "{:<6} {:<5} {:<9} {:>8.3f} {:>9.3f} {:>9.2f} {:>8.3f} {:>9.3f} {:>9.3f} {:>8.3f}",
        trace.place(index).layer + 1, trace.place(index).head + 1, f.kind, f.entropy,
        f.entropy_share, f.mean_distance, f.largest, f.diagonal, f.previous, f.first));
    ++index;
  }
}

inspect::Trace make_trace(const train::ClassifierPackage& package, const InspectOptions& options,
                          const inspect::TraceOptions& what) {
  const std::size_t bad = find_invalid_utf8(options.text);
  require<DataError>(bad == std::string::npos, "data",
                     "expected UTF-8, got something else at byte {}", bad);
  require<DataError>(!is_blank(options.text), "data", "expected a text, got an empty one");
  Encoding encoding = package.tokenizer.encode(options.text);
  const auto limit = static_cast<std::size_t>(package.facts.limits.max_length);
  if (encoding.ids.size() > limit) {
    require<DataError>(options.truncate || package.facts.limits.truncate, "inspect",
                       "expected a text of at most {} tokens, got {}; --truncate cuts it", limit,
                       encoding.ids.size());
    log_message(LogLevel::kWarning,
                fmt::format("the text was cut from {} tokens to {}", encoding.ids.size(), limit));
    train::cut_encoding(encoding, package.facts.limits.max_length, package.tokenizer);
  }
  return inspect::trace_text(package.model, encoding, options.text, what);
}

void write_page(const inspect::Trace& trace, const InspectOptions& options) {
  std::filesystem::path name = std::filesystem::path(options.model).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  write_file_atomic(options.page, inspect::attention_page(trace, name.filename().string()));
  log_message(LogLevel::kInfo, fmt::format("wrote {}", options.page));
}

// "-" stands for the one line of stdin.
void take_text(InspectOptions& options) {
  if (!options.has_text) return;
  ItemReader items({options.text}, "inspect");
  std::string further;
  require<ArgumentError>(items.next(options.text), "arguments",
                         "expected a TEXT on stdin, got nothing");
  require<ArgumentError>(
      !items.next(further), "arguments",
      "expected one TEXT on stdin, got a second line; inspect looks at one text");
}

int run_inspect(InspectOptions& options, const Globals& globals) {
  const bool about_text = options.graph || !options.page.empty();
  const bool about_weights = options.stats || options.positions || options.has_tensor;
  require<ArgumentError>(
      options.has_text || (!about_text && about_weights), "arguments", "expected a TEXT for {}",
      options.graph           ? "--graph"
      : !options.page.empty() ? "a page"
                              : "the attention; --stats, --tensor and --positions do without");
  take_text(options);
  const train::ClassifierPackage package = train::load_classifier(options.model);
  std::unique_ptr<inspect::Trace> trace;
  const bool activations = options.stats || options.graph || options.has_tensor;
  if (options.has_text)
    trace = std::make_unique<inspect::Trace>(make_trace(package, options, {true, activations}));
  if (!options.page.empty()) write_page(*trace, options);
  if (options.has_tensor)
    print_slice(all_tensors(package.model, trace.get()), options, globals.json);
  if (options.stats) print_stats(all_tensors(package.model, trace.get()), globals.json);
  if (options.positions) {
    const inspect::PositionReport report = inspect::position_report(package.model);
    globals.json ? print_json(report.to_json()) : print_line(report.text());
  }
  if (options.graph) {
    const auto nodes = inspect::data_flow(package.model, *trace);
    globals.json ? print_json(inspect::graph_json(nodes)) : print_line(inspect::graph_text(nodes));
  }
  if (about_weights || options.graph) return 0;
  if (globals.json) {
    print_line(inspect::trace_json(*trace));
  } else if (options.page.empty() || globals.verbosity > 0) {
    print_heads(*trace);
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand("inspect", "shows attention, weights and activations");
  verb->add_option("MODEL", options->model, "folder of the model")->required();
  CLI::Option* text =
      verb->add_option("TEXT", options->text, "the text to look at; - reads it from stdin");
  verb->add_option("-o,--out", options->page,
                   "writes the attention maps of all heads as a page, FILE.html");
  CLI::Option* tensor = verb->add_option("--tensor", options->tensor,
                                         "prints a weight or an activation, or a part: NAME[0,:5]");
  verb->add_flag("--stats", options->stats,
                 "mean, std, min, max and non-finite values of every weight (and activation)");
  verb->add_flag("--positions", options->positions,
                 "position codes, and how far apart rows 5 and 10, 95 and 100 are");
  verb->add_flag("--graph", options->graph, "the data flow with the shapes of this text");
  verb->add_flag("--truncate", options->truncate,
                 "cuts a text that is too long, instead of refusing it");
  verb->footer(
      "Examples:\n  qkv inspect out/demo \"where is my order\" -o attention.html\n"
      "  qkv inspect out/demo \"where is my order\" --json\n"
      "  qkv inspect out/demo --tensor \"encoder.layers.0.attention.qkv.weight[0,:5]\"");
  verb->callback([options, text, tensor, &globals] {
    options->has_text = text->count() > 0;
    options->has_tensor = tensor->count() > 0;
    globals.run = [options, &globals] { return run_inspect(*options, globals); };
  });
}

}  // namespace qkv::inline v0
