// Probes of masks: which weights do hidden keys get, and if any, what rule explains them?
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "doctor/mask_forms.h"
#include "doctor/session.h"

namespace qkv::inline v0::doctor {
namespace {

constexpr std::int64_t kTokens = 9;

// A mask whose rows all have two visible and two hidden keys at least, as causal alone leaves them
// one; no two rows or sequences alike. The query's own key stays visible.
std::vector<std::uint8_t> random_mask(std::int64_t batch, std::int64_t n, std::int64_t s,
                                      std::uint64_t seed) {
  Random random(seed);
  std::vector<std::uint8_t> keep;
  for (std::int64_t row = 0; row < batch * n; ++row) {
    std::vector<std::uint8_t> line;
    std::int64_t visible = 0;
    do {
      line.clear();
      for (std::int64_t j = 0; j < s; ++j)
        line.push_back(random.below(5) < 3 || j == row % n ? 1 : 0);
      visible = std::count(line.begin(), line.end(), 1);
    } while (visible < 2 || visible > s - 2);
    keep.insert(keep.end(), line.begin(), line.end());
  }
  return keep;
}

Setup masked_setup(const Session& session, std::uint64_t seed) {
  Setup setup = session.plain(kTokens, kTokens, session.head_size(), seed);
  setup.keep = random_mask(setup.batch(), kTokens, kTokens, seed);
  return setup;
}

// Hides the last `hidden` keys of every row.
void hide_last(Setup& setup, std::int64_t hidden) {
  setup.keep.clear();
  for (std::int64_t row = 0; row < setup.batch() * setup.queries(); ++row)
    for (std::int64_t j = 0; j < setup.keys(); ++j)
      setup.keep.push_back(j < setup.keys() - hidden ? 1 : 0);
}

// The same sequence with so many tokens behind, hidden as keys; `content` seeds what stands in
// them.
Setup padded(const Setup& setup, std::int64_t pads, std::uint64_t content) {
  Random random(content);
  Setup out = setup;
  const Array more_q = normal_array(setup.q.b, setup.q.h, pads, setup.q.d, random);
  const Array more_k = normal_array(setup.k.b, setup.k.h, pads, setup.k.d, random);
  const Array more_v = normal_array(setup.k.b, setup.k.h, pads, setup.k.d, random);
  for (auto [to, from, more] :
       {std::tuple{&out.q, &setup.q, &more_q}, std::tuple{&out.k, &setup.k, &more_k},
        std::tuple{&out.v, &setup.v, &more_v}}) {
    *to = Array(from->b, from->h, from->n + pads, from->d);
    for (std::int64_t b = 0; b < from->b; ++b)
      for (std::int64_t h = 0; h < from->h; ++h)
        for (std::int64_t j = 0; j < from->n + pads; ++j)
          for (std::int64_t c = 0; c < from->d; ++c)
            to->at(b, h, j, c) =
                j < from->n ? from->at(b, h, j, c) : 2 * more->at(b, h, j - from->n, c);
  }
  hide_last(out, pads);
  return out;
}

// Of the first `rows` rows of both.
double rows_difference(const Array& a, const Array& b, std::int64_t rows) {
  double most = 0;
  for (std::int64_t ib = 0; ib < a.b; ++ib)
    for (std::int64_t h = 0; h < a.h; ++h)
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t c = 0; c < a.d; ++c) {
          const double difference = std::fabs(a.at(ib, h, i, c) - b.at(ib, h, i, c));
          if (!(difference <= most)) most = difference;  // a NaN stays
          if (std::isnan(most)) return std::numeric_limits<double>::infinity();
        }
  return most;
}

bool report_failure(Session& session, const Trial& trial, const char* where) {
  if (trial && all_finite(trial.out)) return false;
  if (trial) {
    session.record.error("non-finite", where, {});
  } else {
    session.record.error(trial.error.starts_with("shape: ") ? "shape" : "exception", where,
                         {{"what", trial.error}});
  }
  return true;
}

}  // namespace

void probe_mask(Session& session) {
  const Setup setup = masked_setup(session, 21);
  const Trial read = session.read_weights(setup);
  constexpr const char* kWhere = "random mask with visible and hidden keys in each row";
  if (report_failure(session, read, kWhere)) return;
  const double error = largest_difference(read.out, session.expected_weights(setup));
  if (error <= session.weight_tolerance) return;
  Evidence evidence = leak_figures(session, setup, read.out);
  const MaskForm form = explain_weights(session, setup, read.out);
  if (form.words.empty() && std::string_view(form.id) == "padding-amount") {
    probe_padding(session);  // it has better figures, if it agrees
    if (session.record.has(form.id)) return;
  }
  if (!form.words.empty()) evidence.emplace_back("as if", form.words);
  if (form.stand_in) evidence.emplace_back("score of hidden keys", *form.stand_in);
  session.record.error(form.id, kWhere, std::move(evidence));
}

void probe_mask_bias(Session& session) {
  if (session.f.mask != MaskStyle::kAdditive || session.record.any_error()) return;
  Setup setup = masked_setup(session, 22);
  Random random(23);
  for (std::size_t i = 0; i < setup.keep.size(); ++i) {
    setup.bias.push_back(static_cast<double>(static_cast<float>(random.normal())));
    setup.keep[i] = 1;
  }
  const Trial read = session.read_weights(setup);
  constexpr const char* kWhere = "finite biases";
  if (report_failure(session, read, kWhere)) return;
  const double error = largest_difference(read.out, session.expected_weights(setup));
  if (error <= session.weight_tolerance) return;
  const auto with_factor = [&](double factor) {
    const Array w = session.weights_with(setup, [&](const Place& p, double score) {
      return score + factor * setup.biased(p.b, p.i, p.j);
    });
    return largest_difference(w, read.out) <= session.weight_tolerance;
  };
  Evidence evidence{{"largest error of a weight", error}};
  const char* id = "mask-value";
  if (with_factor(0)) {
    id = "mask-ignored";
    evidence.emplace_back("as if", "there were no biases");
  } else if (with_factor(-1)) {
    id = "mask-polarity";
    evidence.emplace_back("as if", "the biases were subtracted");
  } else if (with_factor(session.stated_scale(setup.q.d))) {
    evidence.emplace_back("as if", "the biases were scaled with the scores");
  }
  session.record.error(id, kWhere, std::move(evidence));
}

// Visible keys with scores of -X, hidden ones with +X: any finite stand-in leaks once X passes it.
void probe_mask_stand_in(Session& session) {
  if (session.record.has("mask-ignored") || session.record.has("mask-polarity")) return;
  const std::int64_t d = session.head_size();
  const bool coarse = session.tolerance > 1e-2;
  for (const double score : {60.0, 2e4, 2e5, 4e9}) {
    if (coarse && score > 1e4) return;  // beyond half precision
    Setup setup = session.plain(6, 6, d, 24);
    hide_last(setup, 2);
    const double length = std::sqrt(score / (session.scale_factor * session.stated_scale(d)));
    for (Array* a : {&setup.q, &setup.k, &setup.v}) std::fill(a->x.begin(), a->x.end(), 0.0);
    for (std::int64_t b = 0; b < setup.batch(); ++b)
      for (std::int64_t h = 0; h < session.heads(); ++h)
        for (std::int64_t j = 0; j < 6; ++j) {
          const double sign = j < 4 ? 1 : -1;
          const std::int64_t c0 = session.quiet_channel();
          setup.q.at(b, h, j, c0) = static_cast<double>(static_cast<float>(length));
          setup.k.at(b, h, j, c0) = static_cast<double>(static_cast<float>(-sign * length));
          for (std::int64_t c = 0; c < d; ++c) setup.v.at(b, h, j, c) = sign;
        }
    const Trial trial = session.call(setup);
    if (!trial || !all_finite(trial.out)) return;
    double leak = 0;  // hidden values are -1, visible ones 1
    for (const double value : trial.out.x) leak = std::max(leak, (1 - value) / 2);
    if (leak < 1e-3) continue;
    session.record.error("mask-value", fmt::format("scores of {:.3g}", score),
                         {{"share of a row that hidden keys take", leak},
                          {"visible keys have scores of", -score},
                          {"hidden keys would have scores of", score}});
    return;
  }
}

void probe_padding(Session& session) {
  if (session.record.has("padding-amount")) return;
  const Setup setup = session.plain(6, 6, session.head_size(), 25);
  const Trial short_one = session.call(padded(setup, 1, 26));
  const Trial other = session.call(padded(setup, 1, 27));
  if (!short_one || !other) return;
  const double moved = rows_difference(short_one.out, other.out, setup.queries());
  if (!(moved <= session.tolerance)) {
    session.record.error("padding-leak", "hidden keys and values replaced by others",
                         {{"largest change", moved}, {"of values up to", largest(other.out)}});
    return;
  }
  for (const std::int64_t pads : {2, 10, 58}) {
    const Trial longer = session.call(padded(setup, pads, 28));
    if (!longer) continue;
    const double grown = rows_difference(short_one.out, longer.out, setup.queries());
    if (grown <= session.tolerance) continue;
    session.record.error("padding-amount", fmt::format("{} hidden keys in place of 1", pads),
                         {{"largest change", grown}, {"of values up to", largest(longer.out)}});
    return;
  }
  Setup poisoned = padded(setup, 2, 28);
  for (std::int64_t b = 0; b < poisoned.k.b; ++b)
    for (std::int64_t h = 0; h < poisoned.k.h; ++h)
      poisoned.v.at(b, h, poisoned.keys() - 1, 0) = std::numeric_limits<double>::quiet_NaN();
  const Trial trial = session.call(poisoned);
  if (!trial || session.record.any_error()) return;
  if (std::isfinite(rows_difference(trial.out, trial.out, setup.queries()))) return;
  Finding& note = session.record.add("padding-leak", Severity::kNote, "NaN in a hidden value");
  note.why = "Hidden values are multiplied by 0, and 0 times NaN is NaN.";
  note.remedy = "Nothing, where padding always holds finite numbers; else skip hidden keys.";
}

void probe_empty_row(Session& session) {
  Setup setup = session.plain(6, 6, session.head_size(), 29);
  setup.keep.assign(static_cast<std::size_t>(setup.batch() * 36), 1);
  std::fill_n(setup.keep.begin() + 4 * 6, 6, std::uint8_t{0});  // query 4 of sequence 0
  const Trial trial = session.call(setup);
  if (!trial) {
    session.record.undecided("empty-row", trial.error);
    return;
  }
  double most = 0, elsewhere = 0;
  bool finite = true;
  const Array expected = session.expected(setup);
  for (std::int64_t b = 0; b < setup.batch(); ++b)
    for (std::int64_t h = 0; h < session.heads(); ++h)
      for (std::int64_t i = 0; i < 6; ++i)
        for (std::int64_t c = 0; c < setup.q.d; ++c) {
          const double value = trial.out.at(b, h, i, c);
          if (b == 0 && i == 4) {
            finite = finite && std::isfinite(value);
            most = std::max(most, std::fabs(value));
          } else if (!(std::fabs(value - expected.at(b, h, i, c)) <= elsewhere)) {
            elsewhere = std::fabs(value - expected.at(b, h, i, c));
          }
        }
  if (finite && most <= 1e-6) return;
  Evidence evidence{{"non-finite", !finite}, {"largest error of the other rows", elsewhere}};
  if (finite) evidence.emplace_back("largest value where 0 is right", most);
  const bool documented = !trial.library.empty();
  if (documented) evidence.emplace_back("done by", trial.library);
  session.record.add("empty-row", documented ? Severity::kNote : Severity::kError,
                     "query 4 of sequence 0, all keys hidden", std::move(evidence));
}

void probe_combination(Session& session) {
  const char* const id = "mask-combination";
  if (session.f.mask == MaskStyle::kNone || !(session.f.takes_causal || session.causal_always))
    return session.record.skip(id, "the function does not take a mask and causal together");
  Setup setup = masked_setup(session, 31);
  setup.causal = session.f.takes_causal;
  // Every row keeps a key that both allow.
  const Trial read = session.read_weights(setup);
  if (!read) return session.record.skip(id, "refused together: " + read.error);
  const double error = largest_difference(read.out, session.expected_weights(setup));
  if (error <= session.weight_tolerance) return;
  constexpr double kBlocked = -std::numeric_limits<double>::infinity();
  const auto is = [&](auto&& shown) {
    const Array w = session.weights_with(setup, [&](const Place& p, double score) {
      return shown(setup.kept(p.b, p.i, p.j), p.j <= p.i) ? score : kBlocked;
    });
    return largest_difference(w, read.out) <= session.weight_tolerance;
  };
  Evidence evidence = leak_figures(session, setup, read.out);
  if (is([](bool kept, bool past) { return kept || past; })) {
    evidence.emplace_back("as if", "a key were visible where either mask allows it");
  } else if (is([](bool kept, bool) { return kept; })) {
    evidence.emplace_back("as if", "the mask replaced causal");
  } else if (is([](bool, bool past) { return past; })) {
    evidence.emplace_back("as if", "causal replaced the mask");
  }
  session.record.error(id, "a mask and causal together", std::move(evidence));
}

}  // namespace qkv::inline v0::doctor
