// Probes without masks: does it answer, twice the same, with the definition's numbers?
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "doctor/mask_forms.h"
#include "doctor/session.h"

namespace qkv::inline v0::doctor {
namespace {

constexpr double kRowTolerance = 2e-2;  // half precision stays well below

struct Sums {
  double least = 1, most = 1;
  double off() const { return std::max(1 - least, most - 1); }
};

// Of the elements over one axis: 0 batch, 1 heads, 2 queries, 3 keys.
Sums sums_over(const Array& w, int axis) {
  const std::array<std::int64_t, 4> dims{w.b, w.h, w.n, w.d};
  Sums sums;
  std::array<std::int64_t, 4> at{};
  const auto axis_at = static_cast<std::size_t>(axis);
  bool first = true;
  for (at[0] = 0; at[0] < dims[0]; ++at[0])
    for (at[1] = 0; at[1] < dims[1]; ++at[1])
      for (at[2] = 0; at[2] < dims[2]; ++at[2])
        for (at[3] = 0; at[3] < dims[3]; ++at[3]) {
          if (at[axis_at] != 0) continue;
          double sum = 0;
          std::array<std::int64_t, 4> along = at;
          for (along[axis_at] = 0; along[axis_at] < dims[axis_at]; ++along[axis_at])
            sum += w.at(along[0], along[1], along[2], along[3]);
          sums.least = first ? sum : std::min(sums.least, sum);
          sums.most = first ? sum : std::max(sums.most, sum);
          first = false;
        }
  return sums;
}

// Least squares of log weights against dot products, both relative to their row's mean.
struct Slope {
  bool usable = false;  // all weights positive
  double value = 0, residual = 0;
};

Slope fit_slope(const Array& weights, const Array& dots) {
  Slope slope;
  double xx = 0, xy = 0, yy = 0, count = 0;
  for (std::int64_t row = 0; row < weights.b * weights.h * weights.n; ++row) {
    const double* w = &weights.x[static_cast<std::size_t>(row * weights.d)];
    const double* x = &dots.x[static_cast<std::size_t>(row * weights.d)];
    double mean_x = 0, mean_y = 0, n = 0;
    for (std::int64_t j = 0; j < weights.d; ++j) {
      if (w[j] < 0) return slope;
      if (w[j] < 1e-30) continue;  // below what fp32 resolves, or masked by the function itself
      mean_x += x[j];
      mean_y += std::log(w[j]);
      n += 1;
    }
    if (n < 2) continue;
    for (std::int64_t j = 0; j < weights.d; ++j) {
      if (w[j] < 1e-30) continue;
      const double dx = x[j] - mean_x / n, dy = std::log(w[j]) - mean_y / n;
      xx += dx * dx;
      xy += dx * dy;
      yy += dy * dy;
      count += 1;
    }
  }
  if (count < 4 || xx == 0) return slope;
  slope.usable = true;
  slope.value = xy / xx;
  slope.residual = std::sqrt(std::max(0.0, yy - slope.value * xy) / count);
  return slope;
}

Setup times(Setup setup, double q, double k) {
  for (double& value : setup.q.x) value *= q;
  for (double& value : setup.k.x) value *= k;
  return setup;
}

bool mostly_one_hot(const Array& w) {
  std::int64_t hot = 0;
  const std::int64_t rows = w.b * w.h * w.n;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* x = &w.x[static_cast<std::size_t>(row * w.d)];
    if (*std::max_element(x, x + w.d) > 0.999) ++hot;
  }
  return 10 * hot >= 9 * rows;
}

// Weights that do not change when q or k is doubled, though they are not all equal.
bool ignores_length(Session& session, const Setup& setup, const Array& weights,
                    Evidence& evidence) {
  if (mostly_one_hot(weights)) return false;
  const double even = 1.0 / static_cast<double>(setup.keys());
  double spread = 0;
  for (const double w : weights.x) spread = std::max(spread, std::fabs(w - even));
  if (spread < 1e-5) return false;
  for (const auto& [q, k] : {std::pair{2.0, 1.0}, std::pair{1.0, 2.0}}) {
    const Trial doubled = session.read_weights(times(setup, q, k));
    if (!doubled) continue;
    const double moved = largest_difference(doubled.out, weights);
    if (moved > 1e-3 * spread) continue;
    evidence = {
        {q > 1 ? "weights moved when q was doubled" : "weights moved when k was doubled", moved},
        {"largest distance of a weight from 1 / S", spread}};
    return true;
  }
  return false;
}

std::string factor_words(const Slope& slope, std::int64_t d, std::int64_t heads) {
  const double size = static_cast<double>(d);
  const std::pair<double, const char*> known[] = {
      {1, "no scale at all"},
      {1 / size, "1 / D"},
      {std::sqrt(size), "multiplied by sqrt(D) instead of divided"},
      {1 / std::sqrt(size * static_cast<double>(heads)), "1 / sqrt(model width)"},
      {std::pow(size, -0.25), "1 / sqrt(sqrt(D))"},
      {0, "0: all keys alike"},
  };
  for (const auto& [factor, words] : known)
    if (std::fabs(slope.value - factor) <= 5e-3 * std::max(factor, 1e-3)) return words;
  return "none of the usual ones";
}

// Hypotheses for a plain function that is not the definition. True if one holds.
bool name_known_form(Session& session, const Setup& setup, const Array& weights) {
  constexpr double kBlocked = -std::numeric_limits<double>::infinity();
  const std::int64_t stated = session.f.window.value_or(0);
  for (const std::int64_t wide : {stated - 1, stated + 1, 2 * stated, std::int64_t{1} << 40}) {
    if (stated == 0) break;
    const Array w = session.weights_with(setup, [&](const Place& p, double score) {
      const bool inside = p.i - p.j < wide && p.j - p.i < wide;
      return inside && (!session.causal_always || p.j <= p.i) ? score : kBlocked;
    });
    if (largest_difference(w, weights) > session.weight_tolerance) continue;
    session.record.error("window-edge", fmt::format("the window of {} that is stated", stated),
                         {{"as if", wide > 1000 ? "there were no window"
                                                : fmt::format("the window were {}", wide)}});
    session.formula_known = false;
    return true;
  }
  if (!session.causal_always && setup.queries() == setup.keys()) {
    const Array causal = session.weights_with(
        setup, [&](const Place& p, double score) { return p.j > p.i ? kBlocked : score; });
    if (largest_difference(causal, weights) < session.weight_tolerance) {
      session.causal_always = true;
      if (session.f.takes_causal) {
        session.record.error("causal-corner", "is_causal=False",
                             {{"largest weight of a later token", 0.0}});
        return true;
      }
      Finding& note = session.record.add("future-leak", Severity::kNote, "no mask",
                                         {{"largest weight of a later token", 0.0}});
      note.why = "The function is causal though nobody asked: no later token has any weight.";
      note.remedy = "State causal=True, so that it is probed as causal; else take the mask out.";
      return true;
    }
  }
  return false;
}

// A function that is stated to be causal and gives weight to later tokens.
bool leaks_though_causal(Session& session, const Setup& setup, const Array& weights,
                         const std::string& where) {
  if (!session.f.always_causal) return false;
  double later = 0;
  for (std::int64_t b = 0; b < weights.b; ++b)
    for (std::int64_t h = 0; h < weights.h; ++h)
      for (std::int64_t i = 0; i < weights.n; ++i)
        for (std::int64_t j = i + 1; j < weights.d; ++j)
          later = std::max(later, weights.at(b, h, i, j));
  if (!(later > session.weight_tolerance)) return false;
  const MaskForm form = explain_weights(session, setup, weights);
  Evidence evidence{{"largest weight of a later token", later}};
  if (!form.words.empty()) evidence.emplace_back("as if", form.words);
  if (form.stand_in) evidence.emplace_back("score of hidden keys", *form.stand_in);
  const bool filled = std::string(form.id) == "mask-value";
  session.record.error(filled ? "mask-value" : "future-leak", where, std::move(evidence));
  session.formula_known = false;
  return true;
}

void judge_formula(Session& session, const Setup& setup, const Trial& plain, double error) {
  const std::int64_t d = setup.q.d;
  const double expected_scale = session.stated_scale(d);
  const std::string where = fmt::format("no mask, head size {}", d);
  Evidence figures{{"largest error", error}, {"of values up to", largest(session.expected(setup))}};
  const Trial read = session.read_weights(setup);
  if (!read) {
    session.record.error("reference", where, std::move(figures));
    session.formula_known = false;
    return;
  }
  if (leaks_though_causal(session, setup, read.out, where)) return;
  if (name_known_form(session, setup, read.out)) return;
  if (name_own_positions(session, setup, read.out, where)) return;
  const Slope slope = fit_slope(read.out, session.dots(setup));
  Evidence evidence;
  if (ignores_length(session, setup, read.out, evidence)) {
    session.record.error("normalised-qk", where, std::move(evidence));
    session.formula_known = false;
    return;
  }
  const double off = slope.value / expected_scale - 1;
  const double noise = slope.residual / std::max(std::fabs(slope.value), expected_scale);
  if (slope.usable && std::fabs(off) > 3 * noise / 10 + 2e-4 && noise < 0.05) {
    session.record.error("scale", where,
                         {{"measured factor", slope.value},
                          {"expected factor", expected_scale},
                          {"ratio", slope.value / expected_scale},
                          {"as if", factor_words(slope, d, setup.q.h)}});
    if (d == session.head_size()) session.scale_factor = slope.value / expected_scale;
    session.formula_known = noise < 1e-2;
    return;
  }
  const Array mixed =
      mix(read.out, setup.v, [&](std::int64_t h) { return group_of(h, setup.q.h, setup.k.h); });
  const double unmixed = largest_difference(mixed, plain.out) / largest(setup.v);
  figures.emplace_back("output against its own weights times v", unmixed);
  if (slope.usable && std::fabs(off) < 0.03 && noise < 0.2 && unmixed < 0.02 && error < 0.1) {
    session.record.error("dtype-drift", where + ", fp32 inputs", std::move(figures));
    session.tolerance = 5e-2;
    session.weight_tolerance = 3e-2;
    return;
  }
  session.formula_known = false;
  if (mostly_one_hot(read.out) && !mostly_one_hot(session.expected_weights(setup))) {
    session.record.error("saturated", where, std::move(figures));
    return;
  }
  session.record.error("reference", where, std::move(figures));
}

// Other inputs of the same shape must give other weights, unless all weights are even.
void probe_stale_state(Session& session, const Setup& setup, const Array& weights) {
  const Setup fresh = session.plain(setup.queries(), setup.keys(), session.head_size(), 15);
  const Trial read = session.read_weights(fresh);
  if (!read || largest_difference(read.out, weights) > 1e-6) return;
  const double even = 1.0 / static_cast<double>(setup.keys());
  double spread = 0;
  for (const double w : weights.x) spread = std::max(spread, std::fabs(w - even));
  const bool right_at_first =
      largest_difference(weights, session.expected_weights(setup)) <= session.weight_tolerance;
  if (spread < 1e-3 || !right_at_first) return;
  session.record.error("nondeterminism", "other inputs of the same shape",
                       {{"largest change of a weight", largest_difference(read.out, weights)},
                        {"what", "the weights of an earlier call were kept"}});
  throw Stop{};
}

double relative_error(const Session& session, const Trial& trial, const Setup& setup) {
  const Array expected = session.expected(setup);
  return largest_difference(trial.out, expected) / std::max(largest(expected), 1e-30);
}

}  // namespace

void probe_answer(Session& session) {
  Setup setup = session.plain(7, 7, session.head_size(), 1);
  const Trial trial = session.call(setup);
  if (!trial) {
    const bool shape = trial.error.starts_with("shape: ");
    session.record.error(shape ? "shape" : "exception", "no mask, fp32",
                         {{"what", shape ? trial.error.substr(7) : trial.error}});
    throw Stop{};
  }
  if (!all_finite(trial.out)) {
    std::int64_t bad = 0, first_row = 0;
    for (const double value : trial.out.x) bad += std::isfinite(value) ? 0 : 1;
    for (std::int64_t b = 0; b < trial.out.b; ++b)
      for (std::int64_t h = 0; h < trial.out.h; ++h)
        for (std::int64_t c = 0; c < trial.out.d; ++c)
          first_row += std::isfinite(trial.out.at(b, h, 0, c)) ? 0 : 1;
    if (session.f.always_causal && first_row == bad) {
      session.record.error("causal-corner", "no mask, causal as stated",
                           {{"what", "the first query sees no key, not even its own"}});
      throw Stop{};
    }
    session.record.error(
        "non-finite", "no mask, standard normal inputs",
        {{"non-finite values", bad}, {"of", static_cast<std::int64_t>(trial.out.x.size())}});
    throw Stop{};
  }
}

void probe_repeat(Session& session) {
  const Setup setup = session.plain(16, 16, session.head_size(), 2);
  const Trial first = session.read_weights(setup);
  const Setup other = session.plain(5, 5, session.head_size(), 3);
  session.call(other);
  Trial second = session.read_weights(setup);
  if (!first || !second) return;  // lengths: another probe's matter
  double moved = largest_difference(first.out, second.out);
  for (int i = 0; i < 3 && moved == 0; ++i) {
    second = session.read_weights(setup);
    if (!second) return;
    moved = largest_difference(first.out, second.out);
  }
  if (moved == 0) {
    probe_stale_state(session, setup, first.out);
    return;
  }
  std::int64_t zeros = 0, total = 0;
  for (std::size_t i = 0; i < first.out.x.size(); ++i) {
    const double a = std::fabs(first.out.x[i]), b = std::fabs(second.out.x[i]);
    if (std::max(a, b) < 1e-6) continue;
    ++total;
    if (std::min(a, b) < 1e-12) ++zeros;
  }
  bool drawn = false;  // by the framework's generator
  if (session.f.reseed) {
    session.f.reseed(7);
    const Trial once = session.read_weights(setup);
    session.f.reseed(7);
    const Trial again = session.read_weights(setup);
    drawn = once && again && largest_difference(once.out, again.out) == 0;
  }
  Evidence evidence{{"largest change of a weight between equal calls", moved},
                    {"weights that were 0 in one of two calls", zeros},
                    {"weights", total}};
  if (session.f.reseed) evidence.emplace_back("repeats when the generator is seeded", drawn);
  if (zeros > 0 || (drawn && moved > 0.05)) {
    session.record.error("dropout-alive", "two equal calls", std::move(evidence));
    throw Stop{};
  }
  if (moved <= 1e-6) {
    session.record.add("nondeterminism", Severity::kNote, "two equal calls", std::move(evidence));
    return;
  }
  session.record.error("nondeterminism", "two equal calls", std::move(evidence));
  throw Stop{};
}

void probe_rows(Session& session) {
  const std::int64_t d = session.head_size();
  Setup zero = session.plain(5, 5, d, 4);
  std::fill(zero.v.x.begin(), zero.v.x.end(), 0.0);
  const Trial vanishing = session.call(zero);
  if (vanishing && largest(vanishing.out) > 1e-6) {
    session.record.error("reference", "no mask, v = 0",
                         {{"largest output where v is 0", largest(vanishing.out)}});
    session.formula_known = false;
    return;
  }
  static constexpr const char* kAxes[] = {"batch", "heads", "queries"};
  for (const std::int64_t n : {9, 2, 1}) {
    const Setup setup = session.plain(n, n, d, 5);
    const Trial read = session.read_weights(setup);
    if (!read) continue;
    const Sums sums = sums_over(read.out, 3);
    if (sums.off() < kRowTolerance) continue;
    Evidence evidence{{"smallest sum of a row", sums.least}, {"largest sum of a row", sums.most}};
    for (int axis = 0; axis < 3; ++axis) {
      if (n > 1 && sums_over(read.out, axis).off() < 1e-3)
        evidence.emplace_back("sums to 1 over the axis of", kAxes[axis]);
    }
    session.record.error("rows-sum", fmt::format("no mask, {} keys", n), std::move(evidence));
    session.formula_known = false;
    return;
  }
}

void probe_batch(Session& session) {
  const std::int64_t d = session.head_size();
  const Setup setup = session.plain(6, 6, d, 6);
  const Trial base = session.call(setup);
  if (!base) return;
  const Setup other = session.plain(6, 6, d, 7);
  const auto replace = [&](bool whole_sequence) {
    Setup changed = setup;
    for (auto [to, from] : {std::pair{&changed.q, &other.q}, std::pair{&changed.k, &other.k},
                            std::pair{&changed.v, &other.v}}) {
      for (std::int64_t b = 0; b < to->b; ++b)
        for (std::int64_t h = 0; h < to->h; ++h)
          for (std::int64_t i = 0; i < to->n && (whole_sequence ? b == 1 : h == 1); ++i)
            for (std::int64_t c = 0; c < d; ++c) to->at(b, h, i, c) = from->at(b, h, i, c);
    }
    return changed;
  };
  for (const bool sequence : {true, false}) {
    if (!sequence && session.heads() < 2) return;
    const Trial changed = session.call(replace(sequence));
    if (!changed) return;
    double moved = 0;
    for (std::int64_t b = 0; b < base.out.b; ++b)
      for (std::int64_t h = 0; h < base.out.h; ++h)
        for (std::int64_t i = 0; i < base.out.n && (sequence ? b == 0 : h == 0); ++i)
          for (std::int64_t c = 0; c < d; ++c)
            moved =
                std::max(moved, std::fabs(base.out.at(b, h, i, c) - changed.out.at(b, h, i, c)));
    if (moved < 1e-4) continue;
    session.record.error(
        "batch-mates",
        sequence ? "sequence 0 when sequence 1 changes" : "head 0 when head 1 changes",
        {{"largest change", moved}, {"of values up to", largest(base.out)}});
    session.formula_known = false;
    return;
  }
}

void probe_formula(Session& session) {
  std::vector<std::int64_t> sizes{session.head_size()};
  if (!session.f.head_size) sizes.insert(sizes.end(), {64, 8});
  for (const std::int64_t d : sizes) {
    const Setup setup = session.plain(9, 9, d, 8);
    const Trial trial = session.call(setup);
    if (!trial) {
      session.record.skip("scale", fmt::format("head size {}: {}", d, trial.error));
      continue;
    }
    const double error = relative_error(session, trial, setup);
    if (error <= session.tolerance) continue;
    judge_formula(session, setup, trial, error);
    if (!session.formula_known || session.record.any_error()) return;
  }
}

void probe_large_scores(Session& session) {
  for (const double factor : {12.0, 60.0}) {
    Setup setup = times(session.plain(6, 6, session.head_size(), 9), factor, 1);
    const Trial trial = session.call(setup);
    if (!trial || all_finite(trial.out)) continue;
    session.record.error("non-finite", "no mask, large scores",
                         {{"largest score", session.scale_factor * session.stated_scale(setup.q.d) *
                                                largest(session.dots(setup))}});
    return;
  }
}

void probe_lengths(Session& session) {
  for (const std::int64_t n : {1, 2, 3, 8, 17, 33, 64, 65, 129}) {
    const Setup setup = session.plain(n, n, session.head_size(), 10);
    const Trial trial = session.call(setup);
    if (!trial) {
      session.record.add("exception", Severity::kWarning, fmt::format("no mask, length {}", n),
                         {{"what", trial.error}});
      return;
    }
    const double error = relative_error(session, trial, setup);
    if (error <= session.tolerance) continue;
    Setup ones = setup;
    std::fill(ones.v.x.begin(), ones.v.x.end(), 1.0);
    const Trial sums = session.call(ones);
    double off = 0;
    for (const double value : sums.out.x) off = std::max(off, std::fabs(value - 1));
    const bool rows = sums && off > 1e-3;
    Evidence evidence{{"largest error", error}, {"row sums off by", off}};
    const char* id = rows ? "rows-sum" : "reference";
    const Trial read = session.read_weights(setup);
    const Slope slope = read ? fit_slope(read.out, session.dots(setup)) : Slope{};
    const double stated = session.scale_factor * session.stated_scale(setup.q.d);
    if (!rows && slope.usable && slope.residual < 1e-2 * stated &&
        std::fabs(slope.value / stated - 1) > 1e-3) {
      id = "scale";
      evidence = {{"measured factor", slope.value}, {"expected factor", stated}};
    }
    session.record.error(id, fmt::format("no mask, length {}", n), std::move(evidence));
    return;
  }
}

void probe_returned_weights(Session& session) {
  const Setup setup = session.plain(7, 7, session.head_size(), 11);
  const Trial trial = session.call(setup);
  if (!trial || !trial.weights) return;
  const double error = largest_difference(*trial.weights, session.expected_weights(setup));
  if (error <= session.weight_tolerance) return;
  const Sums sums = sums_over(*trial.weights, 3);
  session.record.error(sums.off() > kRowTolerance ? "rows-sum" : "reference",
                       "the weights that are returned beside the output",
                       {{"largest error", error},
                        {"smallest sum of a row", sums.least},
                        {"largest sum of a row", sums.most}});
}

void probe_float64(Session& session) {
  if (!session.f.takes_float64) return session.record.skip("dtype-drift", "takes fp32 only");
  const Setup setup = session.plain(9, 9, session.head_size(), 12);
  const Trial trial = session.call(setup, DType::kFloat64);
  if (!trial) return session.record.skip("dtype-drift", "fp64: " + trial.error);
  const double error = relative_error(session, trial, setup);
  if (error < 1e-9 || session.record.any_error()) return;
  const bool coarse = error > 1e-4;
  session.record.add("dtype-drift", coarse ? Severity::kError : Severity::kNote,
                     "no mask, fp64 inputs", {{"largest error", error}});
}

void probe_views(Session& session) {
  const Setup setup = session.plain(7, 7, session.head_size(), 13);
  const Trial packed = session.call(setup);
  if (!packed) return;
  for (const auto& [memory, name] :
       {std::pair{Memory::kTokensFirst, "transposed from [B, N, H, D]"},
        std::pair{Memory::kWideRows, "the upper half of rows twice as wide"}}) {
    const Trial view = session.call(setup, DType::kFloat32, memory);
    if (!view) {
      session.record.add("views", Severity::kWarning, name, {{"what", view.error}});
      continue;
    }
    const double moved = largest_difference(view.out, packed.out);
    if (moved <= session.tolerance) continue;
    session.record.error(
        "views", name,
        {{"largest difference to packed copies", moved}, {"of values up to", largest(packed.out)}});
    return;
  }
  if (session.wrote_inputs)
    session.record.error("views", "q, k or v after a call",
                         {{"what", "the function wrote into its inputs"}});
}

}  // namespace qkv::inline v0::doctor
