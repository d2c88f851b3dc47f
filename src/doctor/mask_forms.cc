#include "doctor/mask_forms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace qkv::inline v0::doctor {
namespace {

constexpr double kBlocked = -std::numeric_limits<double>::infinity();

// The mean of what hidden keys' scores must have been, given the visible ones: as a value, or as an
// offset to their own score. Set if it is the same everywhere.
std::optional<double> constant_score(const Session& session, const Setup& setup,
                                     const Array& weights, bool offset) {
  const Array scores = session.dots(setup);
  const double factor = session.scale_factor * session.stated_scale(setup.q.d);
  double sum = 0, squares = 0, count = 0;
  for (std::int64_t b = 0; b < weights.b; ++b)
    for (std::int64_t h = 0; h < weights.h; ++h)
      for (std::int64_t i = 0; i < weights.n; ++i) {
        std::int64_t anchor = -1;
        for (std::int64_t j = 0; j < weights.d; ++j)
          if (session.visible(setup, {b, h, i, j}) && weights.at(b, h, i, j) > 1e-6) anchor = j;
        if (anchor < 0) continue;
        for (std::int64_t j = 0; j < weights.d; ++j) {
          const double w = weights.at(b, h, i, j);
          if (session.visible(setup, {b, h, i, j}) || w < 1e-12) continue;
          double score =
              std::log(w / weights.at(b, h, i, anchor)) + factor * scores.at(b, h, i, anchor);
          if (offset) score -= factor * scores.at(b, h, i, j);
          sum += score;
          squares += score * score;
          count += 1;
        }
      }
  if (count < 3) return std::nullopt;
  const double mean = sum / count;
  const double deviation = std::sqrt(std::max(0.0, squares / count - mean * mean));
  if (deviation > 0.02 * std::max(1.0, std::fabs(mean))) return std::nullopt;
  return mean;
}

struct Candidate {
  const char* id;
  const char* words;
  Array weights;
};

std::vector<Candidate> candidates(const Session& session, const Setup& setup) {
  std::vector<Candidate> list;
  const auto add = [&](const char* id, const char* words, const Edit& edit) {
    list.push_back({id, words, session.weights_with(setup, edit)});
  };
  const auto shown = [&](const Place& p) { return session.visible(setup, p); };
  Setup unmasked = setup;
  unmasked.keep.clear();
  unmasked.causal = false;
  const auto always = [&](const Place& p) { return session.visible(unmasked, p); };
  add("mask-ignored", "there were no mask",
      [&](const Place& p, double s) { return always(p) ? s : kBlocked; });
  add("mask-polarity", "hidden and visible were swapped",
      [&](const Place& p, double s) { return always(p) && !shown(p) ? s : kBlocked; });
  add("mask-value", "hidden scores were 0",
      [&](const Place& p, double s) { return shown(p) ? s : 0; });
  add("mask-value", "the mask were added to the scores as 0 and 1",
      [&](const Place& p, double s) { return shown(p) ? s + 1 : s; });
  add("mask-value", "the mask were added to the scores as 0 and 1, the wrong way round",
      [&](const Place& p, double s) { return shown(p) ? s : s + 1; });
  add("mask-polarity", "visible keys had scores of 0 and hidden ones theirs",
      [&](const Place& p, double s) { return shown(p) ? 0 : s; });
  if (!setup.keep.empty() && setup.queries() == setup.keys()) {
    add("padding-leak", "the mask were transposed: queries for keys",
        [&](const Place& p, double s) { return setup.kept(p.b, p.j, p.i) ? s : kBlocked; });
  }
  if (!setup.keep.empty()) {
    add("batch-mates", "all sequences had the mask of the first",
        [&](const Place& p, double s) { return setup.kept(0, p.i, p.j) ? s : kBlocked; });
    add("batch-mates", "all sequences had the mask of the last", [&](const Place& p, double s) {
      return setup.kept(setup.batch() - 1, p.i, p.j) ? s : kBlocked;
    });
    add("padding-leak", "all queries had the mask of the first",
        [&](const Place& p, double s) { return setup.kept(p.b, 0, p.j) ? s : kBlocked; });
    add("padding-leak", "all queries had the mask of the last", [&](const Place& p, double s) {
      return setup.kept(p.b, setup.queries() - 1, p.j) ? s : kBlocked;
    });
  }
  Array after = session.weights_with(setup, [](const Place&, double s) { return s; });
  for (std::int64_t b = 0; b < after.b; ++b)
    for (std::int64_t h = 0; h < after.h; ++h)
      for (std::int64_t i = 0; i < after.n; ++i)
        for (std::int64_t j = 0; j < after.d; ++j)
          if (!shown({b, h, i, j})) after.at(b, h, i, j) = 0;
  list.push_back({"rows-sum", "weights were set to 0 after softmax", std::move(after)});
  return list;
}

}  // namespace

Evidence leak_figures(const Session& session, const Setup& setup, const Array& weights) {
  double hidden_most = 0, visible_least = std::numeric_limits<double>::infinity();
  for (std::int64_t b = 0; b < weights.b; ++b)
    for (std::int64_t h = 0; h < weights.h; ++h)
      for (std::int64_t i = 0; i < weights.n; ++i) {
        double hidden = 0, visible = 0;
        for (std::int64_t j = 0; j < weights.d; ++j)
          (session.visible(setup, {b, h, i, j}) ? visible : hidden) += weights.at(b, h, i, j);
        hidden_most = std::max(hidden_most, hidden);
        visible_least = std::min(visible_least, visible);
      }
  return {{"largest share of a row on hidden keys", hidden_most},
          {"least share on visible keys", visible_least}};
}

MaskForm explain_weights(Session& session, const Setup& setup, const Array& weights) {
  for (Candidate& candidate : candidates(session, setup)) {
    if (largest_difference(candidate.weights, weights) <= session.weight_tolerance)
      return {candidate.id, candidate.words, std::nullopt};
  }
  for (const bool offset : {false, true}) {
    const auto score = constant_score(session, setup, weights, offset);
    if (!score || (offset && std::fabs(*score) < 0.05)) continue;
    const Array w = session.weights_with(setup, [&](const Place& p, double s) {
      return session.visible(setup, p) ? s : offset ? s + *score : *score;
    });
    if (largest_difference(w, weights) > 3 * session.weight_tolerance) continue;
    return {"mask-value",
            offset ? "a finite number were added to hidden scores"
                   : "hidden scores were a finite number",
            score};
  }
  const Evidence figures = leak_figures(session, setup, weights);
  const double hidden = std::get<double>(figures[0].second);
  const double visible = std::get<double>(figures[1].second);
  if (hidden > session.weight_tolerance) return {"padding-leak", "", {}};
  const bool whole = std::fabs(visible - 1) <= session.weight_tolerance;
  return {whole ? "padding-amount" : "rows-sum", "", {}};
}

}  // namespace qkv::inline v0::doctor
