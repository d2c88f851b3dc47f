#include "inspect/trace.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "qkv/layout.h"

#include "autograd/context.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "ops/softmax.h"

namespace qkv::inline v0::inspect {
namespace {

class Recorder : public CaptureSink {
 public:
  Recorder(Trace& trace, const TraceOptions& options) : trace_(trace), options_(options) {}
  bool wants_attention() const override { return options_.attention; }
  void attention(const std::string& module, const Tensor& weights) override {
    const std::int64_t n = trace_.length(), heads = weights.numel() / (n * n);
    trace_.attention.emplace_back(module, weights.reshape({heads, n, n}).clone());
  }
  void activation(const std::string& module, const Tensor& value) override { keep(module, value); }
  void detail(const std::string& module, const char* name, const Tensor& value) override {
    keep(module + "." + name, value);
  }

 private:
  void keep(const std::string& name, const Tensor& value) {
    if (options_.activations) trace_.activations.emplace_back(name, value.clone());
  }
  Trace& trace_;
  TraceOptions options_;
};

// Byte offsets of the characters of a UTF-8 text, with its end.
std::vector<std::size_t> character_starts(std::string_view text) {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  starts.push_back(text.size());
  return starts;
}

std::vector<std::string> surface_words(const Encoding& encoding, std::string_view text) {
  const std::vector<std::size_t> starts = character_starts(text);
  const auto last = static_cast<std::int64_t>(starts.size()) - 1;
  std::vector<std::string> words;
  for (const auto& [begin, end] : encoding.offsets) {
    const bool continued = !words.empty() && end > begin &&
                           std::pair(begin, end) == encoding.offsets[words.size() - 1];
    if (continued) {
      words.emplace_back("\u22ef");
      continue;
    }
    const auto from = static_cast<std::size_t>(std::clamp<std::int64_t>(begin, 0, last));
    const auto to = static_cast<std::size_t>(std::clamp<std::int64_t>(end, begin, last));
    words.emplace_back(text.substr(starts[from], starts[to] - starts[from]));
  }
  return words;
}

void append_row(std::string& out, const float* row, std::int64_t n) {
  out += '[';
  for (std::int64_t j = 0; j < n; ++j)
    fmt::format_to(std::back_inserter(out), "{}{}", j > 0 ? "," : "", row[j]);
  out += ']';
}

}  // namespace

Tensor Trace::head(std::int64_t layer, std::int64_t head) const {
  return attention[static_cast<std::size_t>(layer)].second.select(0, head);
}

Trace::Place Trace::place(std::int64_t index) const {
  const std::int64_t per_layer = std::max<std::int64_t>(heads(), 1);
  return {index / per_layer, index % per_layer};
}

Trace trace_text(const EncoderClassifier& model, const Encoding& encoding, std::string_view text,
                 const TraceOptions& options) {
  require<DataError>(!encoding.ids.empty(), "inspect",
                     "expected a text with at least one token, got none");
  Trace trace;
  trace.text = text;
  trace.ids = encoding.ids;
  trace.tokens = encoding.tokens;
  trace.words = surface_words(encoding, text);
  const std::int64_t length = trace.length();
  const RaggedLayout layout = RaggedLayout::from_lengths({&length, 1});
  Recorder recorder(trace, options);
  Context context;
  context.layout = &layout;
  context.capture = &recorder;
  const Tensor logits = model.forward(context, trace.ids).value();
  const Tensor probabilities = ops::softmax(logits);
  const float* p = probabilities.data<float>();
  const std::int64_t classes = probabilities.numel();
  for (std::int64_t c = 0; c < classes; ++c) {
    require<NumericError>(std::isfinite(p[c]), "inspect",
                          "expected finite logits, got a NaN or infinity for '{}'",
                          model.config().labels[static_cast<std::size_t>(c)]);
  }
  const std::int64_t best = std::max_element(p, p + classes) - p;
  trace.label = model.config().labels[static_cast<std::size_t>(best)];
  trace.score = p[best];
  return trace;
}

std::vector<HeadFigures> all_figures(const Trace& trace) {
  std::vector<HeadFigures> figures(static_cast<std::size_t>(trace.layers() * trace.heads()));
  parallel_for(static_cast<std::int64_t>(figures.size()), [&](std::int64_t i) {
    figures[static_cast<std::size_t>(i)] = head_figures(trace.head(i));
  });
  return figures;
}

std::string trace_json(const Trace& trace) {
  const auto list = [](const std::vector<std::string>& values) {
    Json out = Json::array();
    for (const std::string& value : values) out.push_back(value);
    return out.dump();
  };
  std::string out = fmt::format(
      R"({{"text":{},"layers":{},"heads":{},"tokens":{},"words":{},"label":{},"score":{},"attention":[)",
      Json(trace.text).dump(), trace.layers(), trace.heads(), list(trace.tokens), list(trace.words),
      Json(trace.label).dump(), trace.score);
  const std::int64_t n = trace.length();
  for (std::int64_t layer = 0; layer < trace.layers(); ++layer) {
    out += layer > 0 ? ",[" : "[";
    for (std::int64_t head = 0; head < trace.heads(); ++head) {
      out += head > 0 ? ",[" : "[";
      const Tensor weights = trace.head(layer, head);
      for (std::int64_t i = 0; i < n; ++i) {
        if (i > 0) out += ',';
        append_row(out, weights.data<float>() + i * n, n);
      }
      out += ']';
    }
    out += ']';
  }
  Json figures = Json::array();
  std::int64_t index = 0;
  for (const HeadFigures& f : all_figures(trace)) {
    Json item = Json::object();
    item["layer"] = trace.place(index).layer;
    item["head"] = trace.place(index).head;
    const Json values = f.to_json();
    for (const auto& [key, value] : values.as_object()) item[key] = value;
    figures.push_back(std::move(item));
    ++index;
  }
  return out + "],\"figures\":" + figures.dump() + "}";
}

}  // namespace qkv::inline v0::inspect
