#include "inspect/page.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "base/check.h"
#include "base/thread_pool.h"
#include "inspect/page_template.h"

namespace qkv::inline v0::inspect {
namespace {

constexpr std::int64_t kKept = 16;         // weights per row of long texts
constexpr std::int64_t kPooledSide = 384;  // of their pictures

std::string base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t k) -> unsigned {
      return i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0;
    };
    const unsigned bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    out += kDigits[bits >> 18];
    out += kDigits[bits >> 12 & 63];
    out += i + 1 < bytes.size() ? kDigits[bits >> 6 & 63] : '=';
    out += i + 2 < bytes.size() ? kDigits[bits & 63] : '=';
  }
  return out;
}

void append_word(std::string& bytes, std::int64_t value) {
  bytes += static_cast<char>(value & 255);
  bytes += static_cast<char>(value >> 8 & 255);
}

std::int64_t scaled(float weight, float largest, std::int64_t top) {
  return std::clamp<std::int64_t>(
      std::llround(static_cast<double>(weight) / largest * static_cast<double>(top)), 0, top);
}

void store_dense(Json& map, const float* w, std::int64_t n, float largest) {
  std::string bytes;
  bytes.reserve(static_cast<std::size_t>(2 * n * n));
  for (std::int64_t i = 0; i < n * n; ++i) append_word(bytes, scaled(w[i], largest, 65535));
  map["dense"] = base64(bytes);
}

void store_largest(Json& map, const float* w, std::int64_t n, float largest) {
  std::string keys, values, pooled(static_cast<std::size_t>(kPooledSide * kPooledSide), '\0');
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i, w += n) {
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(
        order.begin(), order.begin() + kKept, order.end(),
        [w](std::int64_t a, std::int64_t b) { return w[a] != w[b] ? w[a] > w[b] : a < b; });
    for (std::int64_t t = 0; t < kKept; ++t) {
      const std::int64_t j = order[static_cast<std::size_t>(t)];
      append_word(keys, j);
      append_word(values, scaled(w[j], largest, 65535));
    }
    const std::int64_t row = i * kPooledSide / n;
    for (std::int64_t j = 0; j < n; ++j) {
      char& cell = pooled[static_cast<std::size_t>(row * kPooledSide + j * kPooledSide / n)];
      cell = static_cast<char>(
          std::max<std::int64_t>(static_cast<unsigned char>(cell), scaled(w[j], largest, 255)));
    }
  }
  map["keys"] = base64(keys);
  map["values"] = base64(values);
  map["pooled"] = base64(pooled);
}

Json texts(const std::vector<std::string>& values) {
  Json out = Json::array();
  for (const std::string& value : values) out.push_back(value);
  return out;
}

}  // namespace

std::string script_json(const Json& value) {
  std::string out;
  const std::string text = value.dump();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i, 3);
    if (text[i] == '<') {
      out += "\\u003c";
    } else if (rest == "\u2028" || rest == "\u2029") {
      out += rest == "\u2028" ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string attention_page(const Trace& trace, const std::string& model) {
  require<ArgumentError>(
      trace.layers() > 0, "inspect",
      "expected a model with attention weights, got none: linear attention never forms them");
  const std::int64_t n = trace.length(), maps = trace.layers() * trace.heads();
  const bool dense = maps * n * n <= kDenseWeights || n <= kPooledSide;
  std::vector<Json> stored(static_cast<std::size_t>(maps));
  parallel_for(maps, [&](std::int64_t index) {
    const Tensor head = trace.head(index);
    const float* w = head.data<float>();
    const float largest = std::max(*std::max_element(w, w + n * n), 1e-30f);
    Json map = Json::object();
    map["max"] = largest;
    if (dense) {
      store_dense(map, w, n, largest);
    } else {
      store_largest(map, w, n, largest);
    }
    stored[static_cast<std::size_t>(index)] = std::move(map);
  });
  Json data = Json::object();
  data["model"] = model;
  data["text"] = trace.text;
  data["tokens"] = texts(trace.tokens);
  data["words"] = texts(trace.words);
  data["label"] = trace.label;
  data["score"] = trace.score;
  data["layers"] = trace.layers();
  data["heads"] = trace.heads();
  data["kept"] = dense ? 0 : kKept;
  data["pooled_side"] = kPooledSide;
  Json figures = Json::array();
  for (const HeadFigures& f : all_figures(trace)) figures.push_back(f.to_json());
  data["figures"] = std::move(figures);
  data["maps"] = Json(
      Json::Array(std::make_move_iterator(stored.begin()), std::make_move_iterator(stored.end())));

  constexpr std::string_view kMark = "@DATA@";
  const std::string_view page = kPageTemplate;
  const std::size_t at = page.find(kMark);
  require<InternalError>(at != std::string_view::npos, "inspect",
                         "expected a mark for the data in the page's template");
  return std::string(page.substr(0, at)) + script_json(data) +
         std::string(page.substr(at + kMark.size()));
}

}  // namespace qkv::inline v0::inspect
