// Probes of causal order, windows, grouped heads, decoding, gradients and memory.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "doctor/mask_forms.h"
#include "doctor/session.h"

namespace qkv::inline v0::doctor {
namespace {

constexpr double kBlocked = -std::numeric_limits<double>::infinity();

// Weights where query i sees keys up to i + shift.
Array shifted_causal(const Session& session, const Setup& setup, std::int64_t shift) {
  return session.weights_with(
      setup, [&](const Place& p, double score) { return p.j <= p.i + shift ? score : kBlocked; });
}

double share_of_later(const Setup& setup, const Array& weights) {
  double most = 0;
  for (std::int64_t b = 0; b < weights.b; ++b)
    for (std::int64_t h = 0; h < weights.h; ++h)
      for (std::int64_t i = 0; i < weights.n; ++i) {
        double later = 0;
        for (std::int64_t j = i + 1 + setup.keys() - setup.queries(); j < weights.d; ++j)
          later += weights.at(b, h, i, j);
        most = std::max(most, later);
      }
  return most;
}

// As many queries as keys. False: found to be wrong.
bool probe_square(Session& session) {
  Setup setup = session.plain(9, 9, session.head_size(), 41);
  setup.causal = session.f.takes_causal;
  const Trial read = session.read_weights(setup);
  constexpr const char* kWhere = "causal, 9 queries and 9 keys";
  if (!read) {
    session.record.error("exception", kWhere, {{"what", read.error}});
    return false;
  }
  const double later = share_of_later(setup, read.out);
  if (largest_difference(read.out, shifted_causal(session, setup, -1)) <=
          session.weight_tolerance ||
      (later < 1e-6 && !all_finite(read.out))) {
    session.record.error(
        "causal-corner", kWhere,
        {{"what", "a query does not see its own key"}, {"non-finite", !all_finite(read.out)}});
    return false;
  }
  if (!all_finite(read.out)) {
    session.record.error("non-finite", kWhere, {});
    return false;
  }
  if (largest_difference(read.out, session.expected_weights(setup)) <= session.weight_tolerance)
    return true;
  Evidence evidence{{"largest share of a row on later tokens", later}};
  const MaskForm form = explain_weights(session, setup, read.out);
  const std::string id = form.id;
  if (!form.words.empty()) evidence.emplace_back("as if", form.words);
  if (form.stand_in) evidence.emplace_back("score of hidden keys", *form.stand_in);
  const bool own = id == "mask-value" || id == "rows-sum";
  session.record.error(own            ? form.id
                       : later > 1e-3 ? "future-leak"
                                      : "causal-corner",
                       kWhere, std::move(evidence));
  return false;
}

void probe_corner(Session& session) {
  for (const std::int64_t n : {4, 1}) {
    Setup setup = session.plain(n, 9, session.head_size(), 42);
    setup.causal = session.f.takes_causal;
    const Trial read = session.read_weights(setup);
    if (!read)
      return session.record.skip("causal-corner", "refuses fewer queries than keys: " + read.error);
    if (largest_difference(read.out, session.expected_weights(setup)) <= session.weight_tolerance)
      continue;
    const bool top_left =
        largest_difference(read.out, shifted_causal(session, setup, 0)) <= session.weight_tolerance;
    Evidence evidence{{"queries", n}, {"keys", std::int64_t{9}}};
    evidence.emplace_back("as if", top_left ? "query 0 saw key 0 alone (top left)"
                                            : "neither of the two usual corners were meant");
    const bool documented = top_left && !session.last_library.empty();
    if (documented) evidence.emplace_back("done by", session.last_library);
    session.record.add("causal-corner", documented ? Severity::kNote : Severity::kError,
                       fmt::format("causal, {} queries and 9 keys", n), std::move(evidence));
    return;
  }
}

// Later keys of huge scores under causal: any finite stand-in leaks.
void probe_causal_stand_in(Session& session) {
  if (session.tolerance > 1e-2) return;
  for (const double score : {60.0, 2e4, 2e5, 4e9}) {
    Setup setup = session.plain(6, 6, session.head_size(), 43);
    setup.causal = session.f.takes_causal;
    const double length =
        std::sqrt(score / (session.scale_factor * session.stated_scale(setup.q.d)));
    for (Array* a : {&setup.q, &setup.k, &setup.v}) std::fill(a->x.begin(), a->x.end(), 0.0);
    for (std::int64_t b = 0; b < setup.batch(); ++b)
      for (std::int64_t h = 0; h < session.heads(); ++h)
        for (std::int64_t j = 0; j < 6; ++j) {
          const double sign = j < 3 ? 1 : -1;
          const std::int64_t c0 = session.quiet_channel();
          setup.q.at(b, h, j, c0) = static_cast<double>(static_cast<float>(length));
          setup.k.at(b, h, j, c0) = static_cast<double>(static_cast<float>(-sign * length));
          for (std::int64_t c = 0; c < setup.v.d; ++c) setup.v.at(b, h, j, c) = sign;
        }
    const Trial trial = session.call(setup);
    if (!trial || !all_finite(trial.out)) return;
    double leak = 0;
    for (std::int64_t b = 0; b < setup.batch(); ++b)
      for (std::int64_t h = 0; h < session.heads(); ++h)
        for (std::int64_t i = 0; i < 3; ++i)
          leak = std::max(leak, (1 - trial.out.at(b, h, i, 0)) / 2);
    if (leak < 1e-3) continue;
    session.record.error("mask-value", fmt::format("causal, scores of {:.3g}", score),
                         {{"share of a row that later keys take", leak}});
    return;
  }
}

using GradientPart = std::pair<const char*, Array Setup::*>;

double inner(const Array& a, const Array& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.x.size(); ++i) sum += a.x[i] * b.x[i];
  return sum;
}

Array array_of(const Tensor& tensor) {
  const Tensor packed = tensor.to(DType::kFloat64).contiguous();
  Array a(packed.dim(0), packed.dim(1), packed.dim(2), packed.dim(3));
  std::copy_n(packed.data<double>(), a.x.size(), a.x.begin());
  return a;
}

struct GradientCase {
  Setup setup;
  Array dout;
  DType dtype = DType::kFloat64;
  double step = 1e-5;
  const char* where = "no mask";
};

// sum(out * dout), or nothing if the call fails.
std::optional<double> loss_of(Session& session, const GradientCase& c, const Setup& setup) {
  const Trial trial = session.call(setup, c.dtype);
  if (!trial || !all_finite(trial.out)) return std::nullopt;
  return inner(trial.out, c.dout);
}

// Directional derivative of the function itself, by central differences.
std::optional<double> measured_slope(Session& session, const GradientCase& c,
                                     const GradientPart& part, const Array& direction) {
  std::optional<double> ends[2];
  for (const int side : {0, 1}) {
    Setup moved = c.setup;
    Array& x = moved.*part.second;
    for (std::size_t i = 0; i < x.x.size(); ++i)
      x.x[i] += (side == 0 ? -c.step : c.step) * direction.x[i];
    ends[side] = loss_of(session, c, moved);
    if (!ends[side]) return std::nullopt;
  }
  return (*ends[1] - *ends[0]) / (2 * c.step);
}

// True: go on.
bool judge_gradient(Session& session, const GradientCase& c, const GradientPart& part,
                    const Tensor& gradient, Random& random) {
  const Array& input = c.setup.*part.second;
  const bool absent = !gradient.defined();
  const Array given = absent ? Array(input.b, input.h, input.n, input.d) : array_of(gradient);
  const std::string where = fmt::format("{}, gradient of {}", c.where, part.first);
  if (!given.same_shape(input)) {
    session.record.error("gradient", where, {{"what", "another shape than its input"}});
    return false;
  }
  if (!all_finite(given)) {
    session.record.error("non-finite", where, {});
    return false;
  }
  double worst = 0, norm = std::sqrt(inner(given, given)), expected_most = 0;
  for (int trial = 0; trial < 3; ++trial) {
    const Array direction = normal_array(input.b, input.h, input.n, input.d, random);
    const auto slope = measured_slope(session, c, part, direction);
    if (!slope) return true;
    worst = std::max(worst, std::fabs(*slope - inner(given, direction)));
    expected_most = std::max(expected_most, std::fabs(*slope));
  }
  const bool fine = c.dtype == DType::kFloat64;
  if (worst <= (fine ? 1e-5 : 3e-2) * std::max({norm, expected_most, 0.1})) return true;
  Evidence evidence{{"largest error of a directional derivative", worst},
                    {"by finite differences up to", expected_most},
                    {"norm of the gradient given", norm}};
  session.record.error(absent || norm == 0 ? "gradient-missing" : "gradient", where,
                       std::move(evidence));
  return false;
}

// Of 1024 tokens, as a short call lets expect.
double seconds_of_long_call(Session& session) {
  const Setup setup = session.plain(64, 64, session.head_size(), 48);
  const auto start = std::chrono::steady_clock::now();
  session.call(setup);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return seconds < 0.02 ? 0 : seconds * 128;  // 256 times the pairs, of half the sequences
}

// A function that brings its own positions and is not told them counts queries from 0.
bool explained_by_positions(Session& session, const Setup& step, const Trial& trial) {
  if (!session.rotary && session.slopes.empty()) return false;
  session.queries_from_zero = true;
  if (largest_difference(trial.out, session.expected(step)) > 10 * session.tolerance) {
    session.queries_from_zero = false;
    return false;
  }
  Finding& note = session.record.add("cache", Severity::kNote, "fewer queries than keys",
                                     {{"as if", "the first query had position 0"}});
  note.why =
      "The function numbers queries from 0: with a cache they would stand at the wrong place.";
  note.remedy = "Hand positions over where it is used for decoding.";
  return true;
}

}  // namespace

void probe_causal(Session& session) {
  if (!session.f.takes_causal && !session.causal_always) {
    for (const char* id : {"future-leak", "causal-corner"})
      session.record.skip(id, "the function is not causal and has no is_causal");
    return;
  }
  if (!probe_square(session)) return;
  probe_corner(session);
  probe_causal_stand_in(session);
}

void probe_window(Session& session) {
  if (!session.f.takes_window && !session.f.window)
    return session.record.skip("window-edge", "the function has no window");
  for (const std::int64_t n : {3, 1, 6}) {
    Setup setup = session.plain(11, 11, session.head_size(), 44);
    if (session.f.takes_window) setup.window = n;
    setup.causal = session.f.takes_causal;
    const std::int64_t stated = session.f.takes_window ? n : *session.f.window;
    const Trial read = session.read_weights(setup);
    if (!read) return session.record.undecided("window-edge", read.error);
    if (largest_difference(read.out, session.expected_weights(setup)) <= session.weight_tolerance)
      continue;
    const bool causal = setup.causal || session.causal_always;
    std::string as_if = "none of the windows nearby fits";
    for (const std::int64_t wide : {stated - 1, stated + 1, 2 * stated, std::int64_t{1000}}) {
      const Array w = session.weights_with(setup, [&](const Place& p, double score) {
        const bool inside = p.i - p.j < wide && p.j - p.i < wide && (!causal || p.j <= p.i);
        return inside ? score : kBlocked;
      });
      if (largest_difference(w, read.out) > session.weight_tolerance) continue;
      as_if = wide == 1000 ? "there were no window" : fmt::format("the window were {}", wide);
      break;
    }
    session.record.error("window-edge", fmt::format("window {}, 11 tokens", stated),
                         {{"as if", as_if}, {"non-finite", !all_finite(read.out)}});
    return;
  }
}

void probe_heads(Session& session) {
  if (!session.f.kv_heads) return session.record.skip("head-groups", "kv_heads is not given");
  const std::int64_t kv = *session.f.kv_heads, heads = 2 * kv;
  Random random(45);
  Setup setup;
  setup.q = normal_array(2, heads, 6, session.head_size(), random);
  setup.k = normal_array(2, kv, 6, session.head_size(), random);
  setup.v = normal_array(2, kv, 6, session.head_size(), random);
  const Trial trial = session.call(setup);
  const std::string where = fmt::format("{} query heads, {} key/value heads", heads, kv);
  if (!trial) {
    session.record.error("head-groups", where, {{"what", trial.error}});
    return;
  }
  const double error = largest_difference(trial.out, session.expected(setup));
  if (error <= session.tolerance * std::max(1.0, largest(setup.v))) return;
  const auto tiled = [&](std::int64_t h) { return h % kv; };
  const Array other = mix(softmax_rows(session.dots(setup, tiled),
                                       session.scale_factor * session.stated_scale(setup.q.d),
                                       [](const Place&, double score) { return score; }),
                          setup.v, tiled);
  const bool is_tiled = largest_difference(trial.out, other) <= 1e-3;
  session.record.error("head-groups", where,
                       {{"largest error", error},
                        {"as if", is_tiled ? "query head h read key/value head h modulo Hkv"
                                           : "heads were mapped in no usual way"}});
}

void probe_cache(Session& session) {
  const Setup setup = session.plain(9, 9, session.head_size(), 46);
  const Trial full = session.call(setup);
  if (!full) return;
  for (const std::int64_t rows : {1, 2}) {
    Setup step = setup;
    step.q = Array(setup.q.b, setup.q.h, rows, setup.q.d);
    Array wanted(setup.q.b, setup.q.h, rows, setup.v.d);
    const std::int64_t first = setup.queries() - rows;  // the last ones, as in decoding
    for (std::int64_t b = 0; b < setup.q.b; ++b)
      for (std::int64_t h = 0; h < setup.q.h; ++h)
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t c = 0; c < setup.q.d; ++c) {
            step.q.at(b, h, i, c) = setup.q.at(b, h, first + i, c);
            wanted.at(b, h, i, c) = full.out.at(b, h, first + i, c);
          }
    const Trial trial = session.call(step);
    if (!trial)
      return session.record.skip("cache", "refuses fewer queries than keys: " + trial.error);
    if (session.causal_always) return;  // where the corner hangs is causal-corner's matter
    const double moved = largest_difference(trial.out, wanted);
    if (moved <= session.tolerance * std::max(1.0, largest(wanted))) continue;
    if (explained_by_positions(session, step, trial)) return;
    session.record.error(
        "cache", fmt::format("the last {} of 9 queries against all keys", rows),
        {{"largest difference to the full run", moved}, {"of values up to", largest(wanted)}});
    return;
  }
}

void probe_gradient(Session& session) {
  if (!session.f.backward) {
    for (const char* id : {"gradient", "gradient-missing"})
      session.record.skip(id, "the function has no gradient that could be asked for");
    return;
  }
  GradientCase c;
  c.setup = session.plain(6, 6, session.head_size(), 47);
  Random random(48);
  c.dout = normal_array(2, session.heads(), 6, session.head_size(), random);
  const Trial wide = session.f.takes_float64 ? session.call(c.setup, DType::kFloat64) : Trial{"no"};
  // A function that computes in fp32 inside is as rough as fp32 whatever it is given.
  if (!wide || largest_difference(wide.out, session.expected(c.setup)) > 1e-10) {
    c.dtype = DType::kFloat32;
    c.step = 2e-2;
  }
  constexpr GradientPart kParts[] = {{"q", &Setup::q}, {"k", &Setup::k}, {"v", &Setup::v}};
  for (const bool masked : {false, true}) {
    if (masked) {
      if (session.f.mask == MaskStyle::kNone || session.record.any_error()) return;
      c.where = "two keys hidden";
      for (std::int64_t row = 0; row < 12; ++row)
        for (std::int64_t j = 0; j < 6; ++j) c.setup.keep.push_back(j < 4 ? 1 : 0);
    }
    const AttentionCall call = session.make_call(c.setup, c.dtype);
    Tensor dout = Tensor::zeros({c.dout.b, c.dout.h, c.dout.n, c.dout.d}, DType::kFloat64);
    std::copy(c.dout.x.begin(), c.dout.x.end(), dout.data<double>());
    ops::AttentionGradients given;
    try {
      given = session.f.backward(call, dout.to(c.dtype));
    } catch (const TimeLimitError&) {
      session.record.error("exception", "gradient",
                           {{"time limit in seconds", session.f.time_limit}});
      return;
    } catch (const GradientRefused& error) {
      for (const char* id : {"gradient", "gradient-missing"}) session.record.skip(id, error.what());
      return;
    } catch (const std::exception& error) {
      session.record.error("exception", std::string(c.where) + ", gradient",
                           {{"what", std::string(error.what())}});
      return;
    }
    const Tensor gradients[] = {given.dq, given.dk, given.dv};
    for (std::size_t i = 0; i < 3; ++i)
      if (!judge_gradient(session, c, kParts[i], gradients[i], random)) return;
  }
}

void probe_memory(Session& session) {
  if (!session.f.peak_bytes)
    return session.record.skip("quadratic-memory", "the memory of calls is not measured");
  const double cost = seconds_of_long_call(session);
  if (cost > 3)
    return session.record.undecided(
        "quadratic-memory", fmt::format("a call with 1024 tokens would take about {:.0f} s", cost));
  std::vector<double> peaks;
  const std::int64_t lengths[] = {256, 512, 1024};
  for (const std::int64_t n : lengths) {
    Random random(49);
    Setup setup;
    setup.q = normal_array(1, session.heads(), n, session.head_size(), random);
    setup.k = setup.q;
    setup.v = setup.q;
    try {
      peaks.push_back(
          static_cast<double>(session.f.peak_bytes(session.make_call(setup, DType::kFloat32))));
    } catch (const std::exception& error) {
      return session.record.undecided("quadratic-memory", error.what());
    }
  }
  const double scores = 4.0 * 1024 * 1024;  // bytes of one head's scores at the longest
  if (peaks[0] <= 0 || peaks[2] < scores) return;
  const double exponent = std::log2((peaks[2] - peaks[1]) / std::max(1.0, peaks[1] - peaks[0]));
  if (exponent < 1.6) return;
  session.record.add("quadratic-memory", Severity::kNote, "256, 512 and 1024 tokens",
                     {{"peak bytes at 256", peaks[0]},
                      {"peak bytes at 512", peaks[1]},
                      {"peak bytes at 1024", peaks[2]},
                      {"exponent", exponent}});
}

}  // namespace qkv::inline v0::doctor
