#include "inspect/model_view.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "inspect/slice.h"
#include "ops/embedding.h"

namespace qkv::inline v0::inspect {
namespace {

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Row p: cos and sin of p * base^(-2 i / D) for each pair of channels.
Tensor rope_codes(std::int64_t count, std::int64_t head_size, double base) {
  Tensor codes = Tensor::zeros({count, head_size}, DType::kFloat64);
  double* code = codes.data<double>();
  for (std::int64_t p = 0; p < count; ++p) {
    for (std::int64_t i = 0; i < head_size / 2; ++i) {
      const double rate =
          std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
      *code++ = std::cos(static_cast<double>(p) * rate);
      *code++ = std::sin(static_cast<double>(p) * rate);
    }
  }
  return codes;
}

Tensor codes_of(const EncoderClassifier& model) {
  constexpr std::int64_t kRopeRows = 128;
  const EncoderConfig& config = model.config();
  switch (config.positions) {
    case PositionKind::kLearned: {
      const nn::Parameter* table = model.module().find("embeddings.position.weight");
      require<InternalError>(table != nullptr, "inspect",
                             "expected a parameter embeddings.position.weight");
      return table->var.value();
    }
    case PositionKind::kSinusoidal:
      return ops::sinusoidal_table(config.max_positions, config.d_model, DType::kFloat64);
    case PositionKind::kRope:
      return rope_codes(kRopeRows, config.head_size(), config.rope_base);
    default:
      return {};
  }
}

struct Station {
  std::string_view suffix;  // of the name
  const char* what;
  const char* formula;
};
// The longest suffix that fits wins; the order is from special to general.
constexpr Station kStations[] = {
    {".attention.qkv", "one projection to queries, keys and values of all heads", "x W^T + b"},
    {".attention.weights", "who looks at whom",
     "softmax(q k^T / sqrt(D)) over the keys of the same text"},
    {".attention.mixed", "values mixed by those weights, heads side by side", "weights v"},
    {".attention", "attention's output", "mixed W^T + b"},
    {".feed_forward.hidden", "hidden layer of the feed-forward part", "activation(x W^T + b)"},
    {".feed_forward", "feed-forward output", "hidden W^T + b"},
    {"embeddings", "token rows, with positions where they are added", "tokens[id] + positions[i]"},
    {"encoder", "hidden states after the last norm", "norm(x)"},
    {"pooled", "one vector for the text", "pooling over its tokens"},
    {"logits", "one score per label", "x W^T + b"},
};

// Parameters that belong to a station and to none inside it.
std::vector<std::string> weights_under(const nn::Module& module, const std::string& path) {
  std::vector<std::string> names;
  module.for_each([&](const nn::Parameter& p) {
    const std::size_t dot_at = p.name.rfind('.');
    if (p.name.substr(0, dot_at) == path)
      names.push_back(fmt::format("{} {}", p.name, p.var.value().shape().str()));
  });
  return names;
}

std::vector<std::string> paths_of(const std::string& name) {
  const std::string_view view = name;
  const auto parent = [&](std::string_view suffix) {
    return name.substr(0, name.size() - suffix.size());
  };
  if (view.ends_with(".attention.qkv")) return {name};
  if (view.ends_with(".feed_forward.hidden")) return {parent(".hidden") + ".up"};
  if (view.ends_with(".attention")) return {name + ".out"};
  if (view.ends_with(".feed_forward")) return {name + ".down"};
  if (view == "embeddings") return {"embeddings.token", "embeddings.position", "embeddings.norm"};
  if (view == "encoder") return {"encoder.norm"};
  if (view == "pooled") return {"pooler"};
  if (view == "logits") return {"classifier"};
  if (view.ends_with(".mixed") || view.ends_with(".weights")) return {};
  return {name + ".attention_norm", name + ".feed_forward_norm", name + ".attention_post_norm",
          name + ".feed_forward_post_norm"};
}

GraphNode make_node(const EncoderClassifier& model, const std::string& name, const Shape& shape) {
  GraphNode node;
  node.name = name;
  node.shape = shape;
  node.what = "the block's output: the residual stream";
  node.formula = model.config().norm_placement == NormPlacement::kPost ? "norm(x + f(x)), twice"
                                                                       : "x + f(norm(x)), twice";
  for (const Station& station : kStations) {
    if (!std::string_view(name).ends_with(station.suffix)) continue;
    node.what = station.what;
    node.formula = station.formula;
    break;
  }
  for (const std::string& path : paths_of(name)) {
    for (std::string& weight : weights_under(model.module(), path))
      node.weights.push_back(std::move(weight));
  }
  return node;
}

}  // namespace

PositionReport position_report(const EncoderClassifier& model) {
  PositionReport report;
  report.kind = position_kind_name(model.config().positions);
  report.codes = codes_of(model);
  if (!report.codes.defined()) return report;
  const Tensor codes = report.codes.to(DType::kFloat64).contiguous();
  const std::int64_t width = codes.dim(1);
  std::vector<std::vector<double>> differences;
  for (const auto& [from, to] : {std::pair<std::int64_t, std::int64_t>{5, 10}, {95, 100}}) {
    if (to >= codes.dim(0)) break;
    const double* a = codes.data<double>() + from * width;
    const double* b = codes.data<double>() + to * width;
    std::vector<double>& difference = differences.emplace_back();
    for (std::int64_t c = 0; c < width; ++c) difference.push_back(b[c] - a[c]);
    report.steps.push_back(
        {from, to, std::sqrt(dot(difference.data(), difference.data(), width)), dot(a, b, width)});
  }
  if (report.steps.size() == 2) {
    const double norms = report.steps[0].norm * report.steps[1].norm;
    if (norms > 0) report.cosine = dot(differences[0].data(), differences[1].data(), width) / norms;
  }
  return report;
}

std::string PositionReport::text() const {
  if (!codes.defined()) return "positions: none; this model sees a text as a bag of tokens";
  constexpr std::int64_t kRows = 4, kColumns = 8;
  std::string out = fmt::format("positions: {} {}\n", kind, codes.shape().str());
  const Tensor corner = codes.narrow(0, 0, std::min(kRows, codes.dim(0)))
                            .narrow(1, 0, std::min(kColumns, codes.dim(1)));
  out += tensor_text(corner) + "\n";
  for (const PositionStep& s : steps)
    out += fmt::format("row {} - row {}: norm {:.6g}; inner product {:.6g}\n", s.to, s.from, s.norm,
                       s.product);
  if (steps.size() < 2)
    out += fmt::format("the table has {} rows: too few for row 100 - row 95\n", codes.dim(0));
  if (cosine) out += fmt::format("cosine between the two differences: {:.6g}\n", *cosine);
  out.pop_back();
  return out;
}

Json PositionReport::to_json() const {
  Json out = Json::object();
  out["positions"] = kind;
  if (codes.defined()) {
    constexpr std::int64_t kRows = 4, kColumns = 8;
    out["shape"] = Json(Json::Array{codes.dim(0), codes.dim(1)});
    out["first"] = tensor_json(codes.narrow(0, 0, std::min(kRows, codes.dim(0)))
                                   .narrow(1, 0, std::min(kColumns, codes.dim(1))));
  }
  Json list = Json::array();
  for (const PositionStep& s : steps) {
    Json item = Json::object();
    item["from"] = s.from;
    item["to"] = s.to;
    item["norm"] = s.norm;
    item["inner_product"] = s.product;
    list.push_back(std::move(item));
  }
  out["differences"] = std::move(list);
  out["cosine"] = cosine ? Json(*cosine) : Json();
  return out;
}

std::vector<GraphNode> data_flow(const EncoderClassifier& model, const Trace& trace) {
  std::vector<GraphNode> nodes;
  for (const auto& [name, value] : trace.activations) {
    nodes.push_back(make_node(model, name, value.shape()));
    if (!std::string_view(name).ends_with(".attention.qkv")) continue;
    const std::string weights =
        name.substr(0, name.size() - std::string_view("qkv").size()) + "weights";
    for (const auto& [module, tensor] : trace.attention) {
      if (module + ".weights" == weights)
        nodes.push_back(make_node(model, weights, tensor.shape()));
    }
  }
  return nodes;
}

std::string graph_text(const std::vector<GraphNode>& nodes) {
  std::string out;
  for (const GraphNode& node : nodes) {
    fmt::format_to(std::back_inserter(out), "{:<36} {:<16} {}: {}\n", node.name, node.shape.str(),
                   node.what, node.formula);
    for (const std::string& weight : node.weights)
      fmt::format_to(std::back_inserter(out), "{:<36} {:<16}   with {}\n", "", "", weight);
  }
  if (!out.empty()) out.pop_back();
  return out;
}

Json graph_json(const std::vector<GraphNode>& nodes) {
  Json list = Json::array();
  for (const GraphNode& node : nodes) {
    Json item = Json::object();
    item["name"] = node.name;
    item["what"] = node.what;
    item["formula"] = node.formula;
    Json shape = Json::array();
    for (int i = 0; i < node.shape.rank(); ++i) shape.push_back(node.shape[i]);
    item["shape"] = std::move(shape);
    Json weights = Json::array();
    for (const std::string& weight : node.weights) weights.push_back(weight);
    item["weights"] = std::move(weights);
    list.push_back(std::move(item));
  }
  Json out = Json::object();
  out["graph"] = std::move(list);
  return out;
}

}  // namespace qkv::inline v0::inspect
