#include "doctor/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>

#include <fmt/format.h>

namespace qkv::inline v0::doctor {
namespace {

constexpr double kBlocked = -std::numeric_limits<double>::infinity();
constexpr double kBudgets = 2;  // time limits that all calls together may take

void store(const Tensor& tensor, std::size_t at, double value) {
  if (tensor.dtype() == DType::kFloat64) {
    static_cast<double*>(tensor.raw())[at] = value;
  } else {
    static_cast<float*>(tensor.raw())[at] = static_cast<float>(value);
  }
}

// A view [B, H, N, D] of memory that lies as asked.
Tensor make_tensor(const Array& a, DType dtype, Memory memory) {
  Tensor view;
  if (memory == Memory::kTokensFirst) {
    view = Tensor::zeros({a.b, a.n, a.h, a.d}, dtype).transpose(1, 2);
  } else if (memory == Memory::kWideRows) {
    view = Tensor::zeros({a.b, a.h, a.n, 2 * a.d}, dtype).narrow(3, a.d, a.d);
  } else {
    view = Tensor::zeros({a.b, a.h, a.n, a.d}, dtype);
  }
  for (std::int64_t b = 0; b < a.b; ++b)
    for (std::int64_t h = 0; h < a.h; ++h)
      for (std::int64_t i = 0; i < a.n; ++i)
        for (std::int64_t c = 0; c < a.d; ++c)
          store(view,
                static_cast<std::size_t>(b * view.stride(0) + h * view.stride(1) +
                                         i * view.stride(2) + c),
                a.at(b, h, i, c));
  return view;
}

Array to_array(const Tensor& tensor) {
  const Tensor packed = tensor.to(DType::kFloat64).contiguous();
  Array a(packed.dim(0), packed.dim(1), packed.dim(2), packed.dim(3));
  std::copy_n(packed.data<double>(), a.x.size(), a.x.begin());
  return a;
}

Tensor make_mask(const Setup& setup, MaskStyle style, DType dtype) {
  const Shape shape{setup.batch(), 1, setup.queries(), setup.keys()};
  Tensor mask = Tensor::zeros(shape, style == MaskStyle::kAdditive ? dtype : DType::kBool);
  std::size_t at = 0;
  for (std::int64_t b = 0; b < setup.batch(); ++b) {
    for (std::int64_t i = 0; i < setup.queries(); ++i) {
      for (std::int64_t j = 0; j < setup.keys(); ++j, ++at) {
        const bool keep = setup.kept(b, i, j);
        if (style == MaskStyle::kAdditive) {
          store(mask, at, keep ? setup.biased(b, i, j) : kBlocked);
        } else {
          static_cast<std::uint8_t*>(mask.raw())[at] = keep == (style == MaskStyle::kKeep) ? 1 : 0;
        }
      }
    }
  }
  return mask;
}

std::string shape_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.shape().str() : "nothing";
}

bool equal_bytes(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

}  // namespace

double Session::stated_scale(std::int64_t d) const {
  return f.scale.value_or(1 / std::sqrt(static_cast<double>(d)));
}

Setup Session::plain(std::int64_t n, std::int64_t s, std::int64_t d, std::uint64_t seed) const {
  Random random(seed);
  Setup setup;
  setup.q = normal_array(2, heads(), n, d, random);
  setup.k = normal_array(2, heads(), s, d, random);
  setup.v = normal_array(2, heads(), s, d, random);
  return setup;
}

AttentionCall Session::make_call(const Setup& setup, DType dtype, Memory memory) const {
  AttentionCall call;
  call.q = make_tensor(setup.q, dtype, memory);
  call.k = make_tensor(setup.k, dtype, memory);
  call.v = make_tensor(setup.v, dtype, memory);
  if (!setup.keep.empty() || !setup.bias.empty()) call.mask = make_mask(setup, f.mask, dtype);
  if (f.takes_causal) call.causal = setup.causal;
  if (f.takes_window && setup.window) call.window = setup.window;
  return call;
}

Trial Session::call(const Setup& setup, DType dtype, Memory memory) {
  if (seconds_spent > kBudgets * f.time_limit) throw TimeUp{};
  const AttentionCall call = make_call(setup, dtype, memory);
  const Tensor copies[] = {call.q.clone(), call.k.clone(), call.v.clone()};
  const std::string what =
      fmt::format("q {}, k {}{}{}", call.q.shape().str(), call.k.shape().str(),
                  call.mask.defined() ? ", mask " + call.mask.shape().str() : "",
                  setup.causal ? ", causal" : "");
  Trial trial;
  AttentionAnswer answer;
  const auto start = std::chrono::steady_clock::now();
  bool late = false;
  try {
    answer = f.forward(call);
  } catch (const TimeLimitError&) {
    late = true;
  } catch (const std::exception& error) {
    trial.error = error.what();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  seconds_spent += seconds;
  if (late || seconds > f.time_limit) {
    record.error("exception", what,
                 {{"time limit in seconds", f.time_limit},
                  {"what", late ? "stopped waiting" : "came back too late"},
                  {"seconds", seconds}});
    throw Stop{};
  }
  if (!trial.error.empty()) return trial;
  trial.library = last_library = answer.library;
  const Shape shape{setup.q.b, setup.q.h, setup.q.n, setup.v.d};
  if (!answer.out.defined() || !(answer.out.shape() == shape)) {
    trial.error =
        fmt::format("shape: expected {}, got {} for {}", shape.str(), shape_of(answer.out), what);
    return trial;
  }
  if (!(equal_bytes(call.q, copies[0]) && equal_bytes(call.k, copies[1]) &&
        equal_bytes(call.v, copies[2])))
    wrote_inputs = true;
  trial.out = to_array(answer.out);
  if (answer.weights.defined() &&
      answer.weights.shape() == Shape{setup.q.b, setup.q.h, setup.q.n, setup.k.n})
    trial.weights = to_array(answer.weights);
  return trial;
}

Trial Session::read_weights(const Setup& setup) {
  Trial result;
  result.out = Array(setup.q.b, setup.q.h, setup.q.n, setup.k.n);
  Setup one = setup;
  const std::int64_t width = setup.v.d;
  for (std::int64_t first = 0; first < setup.k.n; first += width) {
    const std::int64_t count = std::min(width, setup.k.n - first);
    std::fill(one.v.x.begin(), one.v.x.end(), 0.0);
    for (std::int64_t b = 0; b < one.v.b; ++b)
      for (std::int64_t h = 0; h < one.v.h; ++h)
        for (std::int64_t c = 0; c < count; ++c) one.v.at(b, h, first + c, c) = 1;
    Trial part = call(one);
    if (!part) return part;
    for (std::int64_t b = 0; b < setup.q.b; ++b)
      for (std::int64_t h = 0; h < setup.q.h; ++h)
        for (std::int64_t i = 0; i < setup.q.n; ++i)
          for (std::int64_t c = 0; c < count; ++c)
            result.out.at(b, h, i, first + c) = part.out.at(b, h, i, c);
  }
  return result;
}

bool Session::visible(const Setup& setup, const Place& p) const {
  const std::int64_t at = p.i + setup.keys() - setup.queries();
  if (!setup.kept(p.b, p.i, p.j)) return false;
  if ((setup.causal || causal_always) && p.j > at) return false;
  const auto inside = [&](std::int64_t n) { return p.j - at < n && at - p.j < n; };
  if (setup.window && !inside(*setup.window)) return false;
  return !f.window || inside(*f.window);
}

Array Session::weights_with(const Setup& setup, const Edit& edit) const {
  const double factor = scale_factor * stated_scale(setup.q.d);
  if (slopes.size() != static_cast<std::size_t>(setup.q.h))
    return softmax_rows(dots(setup), factor, edit);
  const std::int64_t offset = queries_from_zero ? 0 : setup.keys() - setup.queries();
  return softmax_rows(dots(setup), factor, [&](const Place& p, double score) {
    const auto distance = static_cast<double>(std::abs(p.i + offset - p.j));
    return edit(p, score - slopes[static_cast<std::size_t>(p.h)] * distance);
  });
}

Array Session::dots(const Setup& setup,
                    const std::function<std::int64_t(std::int64_t)>& map) const {
  if (!rotary || setup.q.d % 2 != 0) return dot_products(setup.q, setup.k, map);
  const std::int64_t offset = queries_from_zero ? 0 : setup.keys() - setup.queries();
  return dot_products(rotated(setup.q, offset + rotary->q_shift, *rotary, rotary->q_sign),
                      rotated(setup.k, 0, *rotary, rotary->k_sign), map);
}

Array Session::dots(const Setup& setup) const {
  return dots(setup, [&](std::int64_t h) { return group_of(h, setup.q.h, setup.k.h); });
}

std::int64_t Session::quiet_channel() const {
  if (!rotary || head_size() < 2) return 0;
  return rotary->interleaved ? head_size() - 2 : head_size() / 2 - 1;
}

Array Session::expected_weights(const Setup& setup) const {
  return weights_with(setup, [&](const Place& place, double score) {
    return visible(setup, place) ? score + setup.biased(place.b, place.i, place.j) : kBlocked;
  });
}

Array Session::expected(const Setup& setup) const {
  return mix(expected_weights(setup), setup.v,
             [&](std::int64_t h) { return group_of(h, setup.q.h, setup.k.h); });
}

}  // namespace qkv::inline v0::doctor
