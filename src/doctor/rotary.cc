// Which rotary positions, or biases by distance, does a function add by itself?
#include "doctor/rotary.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "qkv/mask.h"

#include "doctor/session.h"

namespace qkv::inline v0::doctor {

Array rotated(const Array& x, std::int64_t first, const Rotary& rotary, int sign) {
  if (sign == 0) return x;
  const auto channels =
      2 * static_cast<std::int64_t>(std::llround(rotary.share * static_cast<double>(x.d) / 2));
  Array out = x;
  for (std::int64_t c = 0; c < channels / 2; ++c) {
    const double rate =
        std::pow(rotary.base, -2.0 * static_cast<double>(c) / static_cast<double>(channels));
    const std::int64_t a = rotary.interleaved ? 2 * c : c;
    const std::int64_t z = rotary.interleaved ? 2 * c + 1 : c + channels / 2;
    for (std::int64_t i = 0; i < x.n; ++i) {
      const double angle = sign * rate * static_cast<double>(first + i);
      const double cosine = std::cos(angle), sine = std::sin(angle);
      for (std::int64_t b = 0; b < x.b; ++b)
        for (std::int64_t h = 0; h < x.h; ++h) {
          const double u = x.at(b, h, i, a), w = x.at(b, h, i, z);
          out.at(b, h, i, a) = u * cosine - w * sine;
          out.at(b, h, i, z) = w * cosine + u * sine;
        }
    }
  }
  return out;
}

namespace {

struct Form {
  Rotary rotary;
  const char* words;
  bool usual;
};

std::vector<Form> forms(double stated_base) {
  std::vector<Form> list;
  const auto add = [&](const Rotary& r, const char* words, bool usual) {
    for (const bool interleaved : {false, true}) {
      Rotary both = r;
      both.interleaved = interleaved;
      list.push_back({both, words, usual});
    }
  };
  const auto with = [&](int q_sign, int k_sign, std::int64_t shift, double share, double base) {
    return Rotary{false, base, share, q_sign, k_sign, shift};
  };
  add(with(1, 1, 0, 1, stated_base), "q and k were rotated", true);
  for (const double base : {1e4, 1e5, 5e5, 1e6, 1e3, 1e2})
    if (base != stated_base) add(with(1, 1, 0, 1, base), "q and k were rotated", true);
  for (const double share : {0.5, 0.25})
    add(with(1, 1, 0, share, stated_base), "a part of the channels was rotated", true);
  add(with(1, 0, 0, 1, stated_base), "q alone were rotated", false);
  add(with(0, 1, 0, 1, stated_base), "k alone were rotated", false);
  add(with(-1, -1, 0, 1, stated_base), "angles were negative", false);
  add(with(1, -1, 0, 1, stated_base), "k were rotated backwards", false);
  add(with(-1, 1, 0, 1, stated_base), "q were rotated backwards", false);
  add(with(1, 1, 1, 1, stated_base), "positions of queries were one too large", false);
  add(with(1, 1, -1, 1, stated_base), "positions of queries were one too small", false);
  return list;
}

std::string describe(const Rotary& r) {
  return fmt::format("pairs ({}), base {:g}{}", r.interleaved ? "2c, 2c + 1" : "c, c + D / 2",
                     r.base, r.share < 1 ? fmt::format(", the first {:g} of D", r.share) : "");
}

bool fits(Session& session, const Setup& setup, const Array& weights) {
  return largest_difference(session.expected_weights(setup), weights) <= session.weight_tolerance;
}

// True: named.
bool name_rotary(Session& session, const Setup& setup, const Array& weights,
                 const std::string& where) {
  if (setup.q.d % 2 != 0) return false;
  const std::optional<Rotary> stated = session.rotary;
  if (stated) {
    session.rotary.reset();
    if (fits(session, setup, weights)) {
      session.record.error("rope-pairing", where, {{"as if", "nothing were rotated"}});
      return true;
    }
  }
  for (const Form& form : forms(stated ? stated->base : 10000)) {
    session.rotary = form.rotary;
    if (!fits(session, setup, weights)) continue;
    Evidence evidence{{"as if", std::string(form.words)}, {"rotation", describe(form.rotary)}};
    if (stated) evidence.emplace_back("stated", describe(*stated));
    const bool shifted = form.rotary.q_shift != 0;
    if (!stated && form.usual) {
      Finding& note =
          session.record.add("rope-pairing", Severity::kNote, where, std::move(evidence));
      note.why = "The function rotates q and k by their positions itself; it is probed as such.";
      note.remedy =
          "State rope=\"half\" or \"interleaved\" and rope_base=, so that a wrong one is "
          "an error.";
    } else {
      session.record.error(shifted ? "position-shift" : "rope-pairing", where, std::move(evidence));
    }
    return true;
  }
  session.rotary = stated;
  return false;
}

bool name_slopes(Session& session, const Setup& setup, const Array& weights,
                 const std::string& where) {
  session.slopes = alibi_slopes(setup.q.h);
  if (!fits(session, setup, weights)) {
    session.slopes.clear();
    return false;
  }
  Finding& note = session.record.add("reference", Severity::kNote, where,
                                     {{"as if", "-m |i - j| were added to the scores (ALiBi)"}});
  note.why = "The function adds a bias by distance itself; it is probed as such.";
  note.remedy = "Nothing, if that is meant.";
  return true;
}

}  // namespace

bool name_own_positions(Session& session, const Setup& setup, const Array& weights,
                        const std::string& where) {
  return name_rotary(session, setup, weights, where) ||
         (!session.rotary && name_slopes(session, setup, weights, where));
}

// Angles and positions that are formed in 16 bits collide first beyond 256.
void probe_long_positions(Session& session) {
  if (!session.rotary || session.record.any_error()) return;
  constexpr std::int64_t kTokens = 520;
  Setup setup = session.plain(kTokens, kTokens, session.head_size(), 14);
  for (double& value : setup.q.x) value *= 3;  // sharp rows, so that positions count
  const Trial trial = session.call(setup);
  if (!trial) return session.record.undecided("position-shift", trial.error);
  const double error = largest_difference(trial.out, session.expected(setup)) / largest(setup.v);
  if (error <= 3e-2 && error <= 100 * session.tolerance) return;
  session.record.error("position-shift", fmt::format("{} tokens, rotated", kTokens),
                       {{"largest error", error}});
}

}  // namespace qkv::inline v0::doctor
