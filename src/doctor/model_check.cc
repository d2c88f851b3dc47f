// Probes of a model: token ids and a padding mask to hidden states.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "qkv/doctor.h"

#include "base/check.h"
#include "doctor/formula.h"
#include "doctor/recorder.h"

namespace qkv::inline v0::doctor {
namespace {

constexpr double kTolerance = 1e-4;  // relative to the largest value

struct Stop {};

// Rows of ids with a mask of the same shape.
struct Batch {
  std::int64_t rows = 0, length = 0;
  std::vector<std::int64_t> ids, mask;

  Batch(std::int64_t n_rows, std::int64_t n) : rows(n_rows), length(n) {
    ids.assign(static_cast<std::size_t>(rows * n), 0);
    mask.assign(static_cast<std::size_t>(rows * n), 1);
  }
  std::int64_t& id(std::int64_t row, std::int64_t at) {
    return ids[static_cast<std::size_t>(row * length + at)];
  }
  std::int64_t& real(std::int64_t row, std::int64_t at) {
    return mask[static_cast<std::size_t>(row * length + at)];
  }
};

struct Answer {
  std::string error;
  Array out;  // [B, 1, N, W]
  explicit operator bool() const { return error.empty(); }
};

class ModelSession {
 public:
  ModelSession(const ModelUnderTest& model, Recorder& recorder) : f(model), record(recorder) {}

  static ModelCall make_call(const Batch& batch) {
    const Shape shape{batch.rows, batch.length};
    return {Tensor::from<std::int64_t>(std::span<const std::int64_t>(batch.ids), shape),
            Tensor::from<std::int64_t>(std::span<const std::int64_t>(batch.mask), shape)};
  }

  Answer call(const Batch& batch) {
    return run(batch, [&](const ModelCall& c) { return f.forward(c); });
  }

  template <class Run>
  Answer run(const Batch& batch, Run&& forward) {
    Answer answer;
    Tensor out;
    const auto start = std::chrono::steady_clock::now();
    bool late = false;
    try {
      out = forward(make_call(batch));
    } catch (const TimeLimitError&) {
      late = true;
    } catch (const std::exception& error) {
      answer.error = error.what();
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (late || seconds > f.time_limit) {
      record.error("exception", fmt::format("ids [{}, {}]", batch.rows, batch.length),
                   {{"time limit in seconds", f.time_limit}, {"seconds", seconds}});
      throw Stop{};
    }
    if (!answer) return answer;
    if (!out.defined() || out.rank() != 3 || out.dim(0) != batch.rows ||
        out.dim(1) != batch.length) {
      answer.error = fmt::format("shape: expected [{}, {}, width], got {}", batch.rows,
                                 batch.length, out.defined() ? out.shape().str() : "nothing");
      return answer;
    }
    const Tensor packed = out.to(DType::kFloat64).contiguous();
    answer.out = Array(batch.rows, 1, batch.length, packed.dim(2));
    std::copy_n(packed.data<double>(), answer.out.x.size(), answer.out.x.begin());
    return answer;
  }

  // Ordinary ids: not among the first, which tokenizers keep for special tokens.
  std::int64_t draw(Random& random) const {
    const std::int64_t first = f.vocab_size / 4 + 1;
    return first + static_cast<std::int64_t>(
                       random.below(static_cast<std::uint64_t>(f.vocab_size - first)));
  }
  std::int64_t other(std::int64_t id) const {
    const std::int64_t first = f.vocab_size / 4 + 1;
    return id + 1 < f.vocab_size ? id + 1 : first;
  }
  Batch random_batch(std::int64_t rows, std::int64_t n, std::uint64_t seed) const {
    Random random(seed);
    Batch batch(rows, n);
    for (std::int64_t& id : batch.ids) id = draw(random);
    return batch;
  }
  std::int64_t length() const { return std::min<std::int64_t>(f.max_length, 12); }

  const ModelUnderTest& f;
  Recorder& record;
};

// Largest difference of some positions of a row, relative to the largest value; infinity for NaN.
double moved(const Array& a, const Array& b, std::int64_t row, std::int64_t begin, std::int64_t end,
             std::int64_t shift = 0) {
  double most = 0;
  for (std::int64_t i = begin; i < end; ++i)
    for (std::int64_t c = 0; c < a.d; ++c) {
      const double difference = std::fabs(a.at(row, 0, i, c) - b.at(row, 0, i + shift, c));
      if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
      most = std::max(most, difference);
    }
  double size = 1e-30;
  for (std::int64_t i = begin; i < end; ++i)
    for (std::int64_t c = 0; c < a.d; ++c) size = std::max(size, std::fabs(a.at(row, 0, i, c)));
  return most / size;
}

void probe_answer(ModelSession& s) {
  const Batch batch = s.random_batch(3, s.length(), 1);
  const Answer answer = s.call(batch);
  if (!answer) {
    const bool shape = answer.error.starts_with("shape: ");
    s.record.error(shape ? "shape" : "exception", "ids without padding",
                   {{"what", shape ? answer.error.substr(7) : answer.error}});
    throw Stop{};
  }
  if (all_finite(answer.out)) return;
  Batch inverted = batch;
  std::fill(inverted.mask.begin(), inverted.mask.end(), 0);
  const Answer other = s.call(inverted);
  if (other && all_finite(other.out)) {
    s.record.error("mask-polarity", "a mask of ones, then of zeros",
                   {{"finite with all tokens real", false}, {"finite with none real", true}});
  } else {
    s.record.error("non-finite", "ids without padding", {});
  }
  throw Stop{};
}

void probe_repeat(ModelSession& s) {
  const Batch batch = s.random_batch(2, s.length(), 2);
  const Answer first = s.call(batch);
  s.call(s.random_batch(1, std::max<std::int64_t>(1, s.length() / 2), 3));
  if (!first) return;
  double most = 0;
  for (int i = 0; i < 3 && most == 0; ++i) {
    const Answer again = s.call(batch);
    if (!again) return;
    most = largest_difference(first.out, again.out) / largest(first.out);
  }
  if (most <= 1e-6) return;
  bool drawn = false;
  if (s.f.reseed) {
    s.f.reseed(7);
    const Answer once = s.call(batch);
    s.f.reseed(7);
    const Answer again = s.call(batch);
    drawn = once && again && largest_difference(once.out, again.out) == 0;
  }
  Evidence evidence{{"largest relative change between equal calls", most}};
  if (s.f.reseed) evidence.emplace_back("repeats when the generator is seeded", drawn);
  const bool dropout = drawn && most > 1e-3;
  s.record.error(dropout ? "dropout-alive" : "nondeterminism", "two equal calls",
                 std::move(evidence));
  throw Stop{};
}

void probe_batch(ModelSession& s) {
  const std::int64_t n = s.length();
  const Batch batch = s.random_batch(3, n, 4);
  Batch changed = s.random_batch(3, n, 5);
  std::copy_n(batch.ids.begin(), n, changed.ids.begin());
  const Answer a = s.call(batch), b = s.call(changed);
  if (!a || !b) return;
  const double by = moved(a.out, b.out, 0, 0, n);
  if (by > kTolerance)
    s.record.error("batch-mates", "row 0 when the other rows change", {{"relative change", by}});
}

// One row with `pads` tokens of padding, before or behind `n` real ones.
struct Padded {
  Batch batch;
  std::int64_t begin, end;  // of the real tokens
};
Padded padded(const ModelSession& s, std::int64_t n, std::int64_t pads, bool left,
              std::uint64_t content) {
  Random random(6);
  Padded p{Batch(1, n + pads), left ? pads : 0, left ? pads + n : n};
  for (std::int64_t i = 0; i < n; ++i) p.batch.id(0, p.begin + i) = s.draw(random);
  Random other(content);
  for (std::int64_t i = 0; i < n + pads; ++i) {
    if (i >= p.begin && i < p.end) continue;
    p.batch.real(0, i) = 0;
    if (content != 0) p.batch.id(0, i) = s.draw(other);
  }
  return p;
}

// What stands in the padding must not matter, on either side.
bool probe_padding_content(ModelSession& s, bool left) {
  const std::int64_t pads = std::max<std::int64_t>(1, s.length() / 3), n = s.length() - pads;
  const Padded zero = padded(s, n, pads, left, 0), other = padded(s, n, pads, left, 7);
  const Answer a = s.call(zero.batch), b = s.call(other.batch);
  const char* where = left ? "padding in front" : "padding behind";
  if (!a || !b) {
    s.record.undecided("padding-leak", std::string(where) + ": " + (a ? b.error : a.error));
    return true;
  }
  const double leak = moved(a.out, b.out, 0, zero.begin, zero.end);
  if (leak <= kTolerance) return true;
  Batch open = zero.batch, changed = zero.batch;
  std::fill(open.mask.begin(), open.mask.end(), 1);
  changed.id(0, zero.begin) = s.other(changed.id(0, zero.begin));
  const Answer unmasked = s.call(open), reached = s.call(changed);
  if (!std::isfinite(leak)) {
    s.record.error("non-finite", where, {});
    return false;
  }
  const double effect = unmasked ? moved(a.out, unmasked.out, 0, zero.begin, zero.end) : 1;
  const double reach = reached ? moved(a.out, reached.out, 0, zero.end - 1, zero.end) : 1;
  const char* id = effect <= kTolerance ? "mask-ignored"
                   : reach <= kTolerance && n > 1 && !(left && s.f.causal == true && n == 1)
                       ? "mask-polarity"
                       : "padding-leak";
  s.record.error(id, where,
                 {{"relative change when other ids stand in the padding", leak},
                  {"when the mask is all ones", effect},
                  {"of the last real token when the first one changes", reach}});
  return false;
}

void probe_padding(ModelSession& s) {
  if (!s.f.takes_padding) {
    for (const char* id : {"padding-leak", "padding-amount", "mask-ignored", "mask-polarity"})
      s.record.skip(id, "batches are of equal lengths");
    return;
  }
  if (!probe_padding_content(s, false) || !probe_padding_content(s, true)) return;
  const std::int64_t n = std::max<std::int64_t>(1, s.length() / 2);
  const Padded alone = padded(s, n, 0, false, 0);
  const Answer a = s.call(alone.batch);
  if (!a) return;
  for (const std::int64_t pads : {std::int64_t{1}, s.length() - n, s.f.max_length - n}) {
    if (pads < 1 || pads > 500) continue;
    const Answer b = s.call(padded(s, n, pads, false, 0).batch);
    if (!b) return s.record.undecided("padding-amount", b.error);
    const double by = moved(a.out, b.out, 0, 0, n);
    if (by <= kTolerance) continue;
    s.record.error("padding-amount", fmt::format("{} tokens of padding behind {}", pads, n),
                   {{"relative change", by}});
    return;
  }
  const std::int64_t pads = s.length() - n;
  if (pads < 1) return;
  const Answer b = s.call(padded(s, n, pads, true, 0).batch);
  if (!b) return;
  const double by = moved(a.out, b.out, 0, 0, n, pads);
  if (by <= kTolerance || !std::isfinite(by)) return;
  Finding& warning = s.record.add("position-shift", Severity::kWarning,
                                  fmt::format("{} tokens of padding in front of {}", pads, n),
                                  {{"relative change", by}});
  warning.why =
      "With padding in front, positions count the padding too: the same text is read as if it "
      "stood later.";
  warning.remedy = "Pad behind, or derive positions from the mask: cumsum(mask) - 1.";
}

void probe_future(ModelSession& s) {
  if (s.f.causal != true) return s.record.skip("future-leak", "not stated to be causal");
  const std::int64_t n = s.length();
  const Batch batch = s.random_batch(1, n, 8);
  const Answer a = s.call(batch);
  if (!a) return;
  for (std::int64_t at = n - 1; at >= 1; --at) {
    Batch changed = batch;
    changed.id(0, at) = s.other(changed.id(0, at));
    const Answer b = s.call(changed);
    if (!b) return;
    const double by = moved(a.out, b.out, 0, 0, at);
    if (by <= 1e-5) continue;
    s.record.error("future-leak", fmt::format("token {} of {} changed", at, n),
                   {{"relative change of earlier outputs", by}});
    return;
  }
}

// How much the order of tokens p and p + 1 counts, against how much another token there does.
// Nothing if the model does not look there.
struct OrderEffect {
  double swap = 0, token = 0;
};
std::optional<OrderEffect> order_effect(ModelSession& s, const Batch& batch, const Array& base,
                                        std::int64_t p) {
  const std::int64_t last = batch.length - 1;
  Batch swapped = batch, changed = batch;
  std::swap(swapped.id(0, p), swapped.id(0, p + 1));
  changed.id(0, p) = s.other(changed.id(0, p));
  if (changed.id(0, p) == changed.id(0, p + 1)) changed.id(0, p) = s.other(changed.id(0, p));
  const Answer a = s.call(swapped), b = s.call(changed);
  if (!a || !b) return std::nullopt;
  OrderEffect effect;
  effect.token = moved(base, b.out, 0, last, last + 1);
  effect.swap = moved(base, a.out, 0, last, last + 1);
  if (s.f.causal != true) {
    // Each of the two tokens as well: where it stands counts for itself first of all.
    effect.swap = std::max(
        {effect.swap, moved(base, a.out, 0, p, p + 1, 1), moved(a.out, base, 0, p, p + 1, 1)});
  }
  return effect;
}

Batch distinct_tokens(const ModelSession& s, std::int64_t n) {
  Batch batch = s.random_batch(1, n, 9);
  for (std::int64_t i = 1; i < n; ++i)
    if (batch.id(0, i) == batch.id(0, i - 1)) batch.id(0, i) = s.other(batch.id(0, i));
  return batch;
}

bool blind(const OrderEffect& e) { return e.swap < std::max(1e-6, 1e-3 * e.token); }

void probe_order(ModelSession& s) {
  const Batch batch = distinct_tokens(s, s.length());
  const Answer a = s.call(batch);
  if (!a) return;
  bool decided = false, sees = false;
  OrderEffect most;
  for (std::int64_t p = 0; p + 2 < s.length(); ++p) {
    const auto effect = order_effect(s, batch, a.out, p);
    if (!effect || effect->token < 1e-5) continue;
    decided = true;
    if (effect->swap >= most.swap) most = *effect;
    sees = sees || !blind(*effect);
  }
  if (!decided)
    return s.record.undecided("order-blind", "the last output depends on no earlier token");
  if (!sees)
    s.record.error(
        "order-blind", "neighbours swapped",
        {{"relative change by a swap, at most", most.swap}, {"by another token", most.token}});
}

void probe_positions(ModelSession& s) {
  constexpr std::int64_t kLongest = 1024;
  const std::int64_t n = std::min(s.f.max_length, kLongest);
  const Batch batch = distinct_tokens(s, n);
  const Answer a = s.call(batch);
  if (!a) {
    const Answer shorter = s.call(distinct_tokens(s, n - 1));
    s.record.error("position-shift", fmt::format("{} tokens, the stated limit", n),
                   {{"what", a.error}, {"one token less works", static_cast<bool>(shorter)}});
    return;
  }
  if (!all_finite(a.out)) {
    s.record.error("non-finite", fmt::format("{} tokens", n), {});
    return;
  }
  if (s.record.has("order-blind")) return;
  for (const std::int64_t p : {n - 3, n - n / 4, n / 2, n / 4, std::int64_t{0}, std::int64_t{1}}) {
    if (p < 0 || p + 2 >= n || n < 8) continue;
    const auto effect = order_effect(s, batch, a.out, p);
    if (!effect || effect->token < 1e-4) continue;
    if (!blind(*effect)) continue;
    s.record.error(
        "position-shift", fmt::format("tokens {} and {} of {} swapped", p, p + 1, n),
        {{"relative change by the swap", effect->swap}, {"by another token", effect->token}});
    return;
  }
}

void probe_cache(ModelSession& s) {
  if (!s.f.cached) return s.record.skip("cache", "no cached form is given");
  const std::int64_t n = s.length();
  const Batch batch = s.random_batch(2, n, 10);
  const Answer full = s.call(batch);
  if (!full) return;
  std::vector<std::vector<std::int64_t>> plans{{n - 1, 1}, {n / 2, n - n / 2}, {}};
  plans[2].assign(static_cast<std::size_t>(n), 1);
  for (const auto& chunks : plans) {
    const Answer parts =
        s.run(batch, [&](const ModelCall& call) { return s.f.cached(call, chunks); });
    const std::string where = fmt::format("chunks of {}", fmt::join(chunks, ", "));
    if (!parts) {
      s.record.error("cache", where, {{"what", parts.error}});
      return;
    }
    const double by =
        std::max(moved(full.out, parts.out, 0, 0, n), moved(full.out, parts.out, 1, 0, n));
    if (by <= kTolerance) continue;
    s.record.error("cache", where, {{"relative difference to the full run", by}});
    return;
  }
}

void probe_gradient(ModelSession& s) {
  if (!s.f.without_gradient)
    return s.record.skip("gradient-missing", "the parameters are not known");
  std::vector<std::string> names;
  try {
    names = s.f.without_gradient(ModelSession::make_call(s.random_batch(2, s.length(), 11)));
  } catch (const std::exception& error) {
    return s.record.undecided("gradient-missing", error.what());
  }
  if (names.empty()) return;
  const auto count = static_cast<std::int64_t>(names.size());
  s.record.error("gradient-missing", names.front(),
                 {{"parameters that count and get no gradient", count}});
}

// All tokens alike: outputs differ by their positions alone, and by the token alone between two
// such texts.
void probe_embedding(ModelSession& s) {
  if (s.record.has("order-blind")) return;
  const std::int64_t n = s.length();
  Batch one(1, n), other(1, n);
  Random random(12);
  const std::int64_t id = s.draw(random);
  std::fill(one.ids.begin(), one.ids.end(), id);
  std::fill(other.ids.begin(), other.ids.end(), s.other(id));
  const Answer a = s.call(one), b = s.call(other);
  if (!a || !b || !all_finite(a.out) || !all_finite(b.out)) return;
  std::vector<double> mean(static_cast<std::size_t>(a.out.d), 0.0);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < a.out.d; ++c)
      mean[static_cast<std::size_t>(c)] += a.out.at(0, 0, i, c) / static_cast<double>(n);
  double by_place = 0, by_token = 0, size = 0;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < a.out.d; ++c) {
      by_place += std::fabs(a.out.at(0, 0, i, c) - mean[static_cast<std::size_t>(c)]);
      by_token += std::fabs(a.out.at(0, 0, i, c) - b.out.at(0, 0, i, c));
      size += std::fabs(a.out.at(0, 0, i, c));
    }
  if (by_place < 1e-3 * size || by_token == 0) return;  // relative positions, or none of a size
  const double ratio = by_token / by_place;
  if (ratio > 0.1) return;
  Finding& finding = s.record.add(
      "embedding-scale", ratio < 0.05 ? Severity::kError : Severity::kWarning, "texts of one token",
      {{"mean change by another token", by_token / size},
       {"mean change by the position", by_place / size},
       {"ratio", ratio}});
  finding.why = "Positions drown the tokens: " + finding.why;
}

// What the weights of one layer [B, H, N, N] show.
struct LayerMap {
  double spread = 0;      // largest distance from the mean of the row's visible keys
  double difference = 0;  // largest between the first head and another
  double hot = 0;         // share of rows with one weight above 0.999
};

LayerMap read_map(const Array& w) {
  LayerMap map;
  std::int64_t rows = 0, hot = 0;
  for (std::int64_t h = 0; h < w.h; ++h)
    for (std::int64_t i = 0; i < w.n; ++i) {
      double most = 0, visible = 0;
      for (std::int64_t j = 0; j < w.d; ++j) {
        most = std::max(most, w.at(0, h, i, j));
        visible += w.at(0, h, i, j) > 0 ? 1 : 0;
        map.difference = std::max(map.difference, std::fabs(w.at(0, h, i, j) - w.at(0, 0, i, j)));
      }
      if (visible < 2) continue;
      map.spread = std::max(map.spread, most - 1 / visible);
      ++rows;
      hot += most > 0.999 ? 1 : 0;
    }
  map.hot = rows > 0 ? static_cast<double>(hot) / static_cast<double>(rows) : 0;
  return map;
}

void probe_maps(ModelSession& s) {
  if (!s.f.attention) {
    for (const char* id : {"heads-alike", "saturated"})
      s.record.skip(id, "the attention weights are not shown");
    return;
  }
  std::vector<Tensor> layers;
  try {
    layers = s.f.attention(ModelSession::make_call(s.random_batch(1, s.length(), 13)));
  } catch (const std::exception& error) {
    for (const char* id : {"heads-alike", "saturated"}) s.record.undecided(id, error.what());
    return;
  }
  for (std::size_t at = 0; at < layers.size(); ++at) {
    if (layers[at].rank() != 4 || layers[at].dim(0) != 1) continue;
    const Tensor packed = layers[at].to(DType::kFloat64).contiguous();
    Array w(1, packed.dim(1), packed.dim(2), packed.dim(3));
    std::copy_n(packed.data<double>(), w.x.size(), w.x.begin());
    if (!all_finite(w)) continue;
    const LayerMap map = read_map(w);
    const std::string where = fmt::format("layer {}", at);
    if (w.h > 1 && map.spread > 1e-6 && map.difference < 1e-3 * map.spread &&
        !s.record.has("heads-alike"))
      s.record.error("heads-alike", where,
                     {{"heads", w.h},
                      {"largest difference between two heads", map.difference},
                      {"largest distance of a weight from an even share", map.spread}});
    if (map.hot > 0.9 && !s.record.has("saturated"))
      s.record.add("saturated", Severity::kWarning, where,
                   {{"share of rows with one key", map.hot}});
  }
}

void probe_widened(ModelSession& s) {
  if (!s.f.widened)
    return s.record.skip("dtype-drift", "it cannot be run in fp64, or its weights have 16 bits");
  const Batch batch = s.random_batch(2, s.length(), 14);
  const Answer narrow = s.call(batch);
  const Answer wide = s.run(batch, [&](const ModelCall& call) { return s.f.widened(call); });
  if (!narrow) return;
  if (!wide) return s.record.undecided("dtype-drift", "fp64: " + wide.error);
  const double by = largest_difference(narrow.out, wide.out) / std::max(1e-30, largest(wide.out));
  if (by <= 1e-3) return;
  s.record.error("dtype-drift", "the same weights in fp32 and in fp64",
                 {{"largest relative difference", by}});
}

void probe_roughness(ModelSession& s) {
  if (!s.f.roughness || s.record.has("dtype-drift")) return;
  double rough = 0;
  try {
    rough = s.f.roughness(ModelSession::make_call(s.random_batch(2, s.length(), 15)));
  } catch (const std::exception& error) {
    return s.record.undecided("dtype-drift", error.what());
  }
  if (!(rough > 0.05)) return;
  s.record.error("dtype-drift", "all parameters moved by small steps",
                 {{"mean second difference over mean change", rough}});
}

void examine(ModelSession& s) {
  probe_answer(s);
  probe_repeat(s);
  probe_batch(s);
  probe_padding(s);
  probe_future(s);
  probe_order(s);
  probe_positions(s);
  probe_embedding(s);
  probe_cache(s);
  probe_maps(s);
  probe_widened(s);
  probe_roughness(s);
  probe_gradient(s);
}

}  // namespace

Report check_model(const ModelUnderTest& model) {
  require<ArgumentError>(model.forward != nullptr, "doctor", "expected a model, got none");
  require<ArgumentError>(model.vocab_size >= 4, "doctor",
                         "expected vocab_size of at least 4, got {}", model.vocab_size);
  require<ArgumentError>(model.max_length >= 4, "doctor",
                         "expected max_length of at least 4, got {}", model.max_length);
  require<ArgumentError>(model.time_limit > 0, "doctor", "expected a time limit above 0, got {}",
                         model.time_limit);
  Recorder record;
  ModelSession session(model, record);
  try {
    examine(session);
  } catch (const Stop&) {
    for (const char* id : {"batch-mates", "padding-leak", "padding-amount", "future-leak",
                           "order-blind", "position-shift", "embedding-scale", "cache",
                           "heads-alike", "dtype-drift", "gradient-missing"})
      record.undecided(id, "ended early: mend " + record.first_error() + " first");
  }
  return record.take();
}

}  // namespace qkv::inline v0::doctor
