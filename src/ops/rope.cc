#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <numbers>
#include <tuple>

#include "kernels/vector.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

// Positions below this are looked up in a table that is kept; others are computed where they are
// used.
constexpr std::int64_t kTablePositions = 32768;

// Elements of a row of angles: cosines, then sines, as kernels::Rotation wants them.
std::int64_t row_width(std::int64_t half, RopePairing pairing) {
  return pairing == RopePairing::kInterleaved ? 4 * half : 2 * half;
}

// One row of angles for a position, in double before rounding: exact enough for any position.
template <class T>
void fill_angles(T* row, std::int64_t position, const std::vector<double>& frequencies,
                 const RopeOptions& options) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  T* sines = row + row_width(half, options.pairing) / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies[static_cast<std::size_t>(i)];
    const T c = static_cast<T>(options.scaling.magnitude * std::cos(angle)),
            s = static_cast<T>(options.scaling.magnitude * std::sin(angle));
    if (options.pairing == RopePairing::kInterleaved) {
      row[2 * i] = row[2 * i + 1] = c;
      sines[2 * i] = -s;
      sines[2 * i + 1] = s;
    } else {
      row[i] = c;
      sines[i] = s;
    }
  }
}

// What a table of angles depends on.
auto table_key(std::int64_t channels, const RopeOptions& o) {
  const RopeScaling& s = o.scaling;
  return std::make_tuple(channels, o.base, o.pairing, s.kind, s.factor, s.positions, s.beta_fast,
                         s.beta_slow, s.whole_channels, s.magnitude, s.low_frequency,
                         s.high_frequency);
}

// The rows 0 .. count - 1 of the angles, kept for the process and grown by doubling. Thread-safe.
template <class T>
std::shared_ptr<const std::vector<T>> angle_table(std::int64_t count, std::int64_t channels,
                                                  const RopeOptions& options) {
  static std::mutex mutex;
  static std::map<decltype(table_key(channels, options)), std::shared_ptr<const std::vector<T>>>
      tables;
  const std::lock_guard lock(mutex);
  auto& table = tables[table_key(channels, options)];
  const auto width = static_cast<std::size_t>(row_width(channels / 2, options.pairing));
  if (table != nullptr && table->size() >= static_cast<std::size_t>(count) * width) return table;
  const std::size_t known = table != nullptr ? table->size() / width : 0;
  const auto rows =
      std::min(std::max<std::size_t>({static_cast<std::size_t>(count), 2 * known, 64}),
               static_cast<std::size_t>(kTablePositions));
  auto grown = std::make_shared<std::vector<T>>(rows * width);
  if (table != nullptr) std::copy(table->begin(), table->end(), grown->begin());
  const std::vector<double> frequencies = rope_frequencies(options, channels, 0);
  for (std::size_t p = known; p < rows; ++p)
    fill_angles(grown->data() + p * width, static_cast<std::int64_t>(p), frequencies, options);
  table = std::move(grown);
  return table;
}

// YaRN's ramp: 0 up to the channel that turns beta_fast times over the training's length, 1 from
// the one that turns beta_slow times.
struct Ramp {
  double low, high;
  double at(double i) const { return std::clamp((i - low) / (high - low), 0.0, 1.0); }
};
Ramp yarn_ramp(const RopeScaling& s, double base, double d) {
  const auto channel = [&](double turns) {
    const double length = static_cast<double>(s.positions);
    return d * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  double low = channel(s.beta_fast), high = channel(s.beta_slow);
  if (s.whole_channels) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  return {low, high};
}

double llama3_frequency(const RopeScaling& s, double frequency) {
  const double turns = static_cast<double>(s.positions) * frequency / (2 * std::numbers::pi);
  if (turns > s.high_frequency) return frequency;
  if (turns < s.low_frequency) return frequency / s.factor;
  const double smooth = (turns - s.low_frequency) / (s.high_frequency - s.low_frequency);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

}  // namespace

double yarn_magnitude(double factor) { return factor <= 1 ? 1 : 0.1 * std::log(factor) + 1; }

std::vector<double> rope_frequencies(const RopeOptions& options, std::int64_t channels,
                                     std::int64_t length) {
  const RopeScaling& s = options.scaling;
  const auto d = static_cast<double>(channels);
  double base = options.base;
  if (s.kind == RopeScalingKind::kDynamic && length > s.positions) {
    const double ratio = static_cast<double>(length) / static_cast<double>(s.positions);
    base *= std::pow(s.factor * ratio - (s.factor - 1), d / (d - 2));
  }
  const Ramp ramp = s.kind == RopeScalingKind::kYarn ? yarn_ramp(s, base, d) : Ramp{0, 1};
  std::vector<double> frequencies(static_cast<std::size_t>(channels / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double f = std::pow(base, -static_cast<double>(i) / (d / 2));
    if (s.kind == RopeScalingKind::kLinear) f /= s.factor;
    if (s.kind == RopeScalingKind::kLlama3) f = llama3_frequency(s, f);
    if (s.kind == RopeScalingKind::kYarn) {
      const double stretched = ramp.at(static_cast<double>(i));
      f = f / s.factor * stretched + f * (1 - stretched);
    }
    frequencies[i] = f;
  }
  return frequencies;
}

void rope_inplace(const Tensor& x, std::span<const std::int32_t> positions,
                  const RopeOptions& options, bool inverse) {
  const char* where = "rope";
  require<ShapeError>(x.defined() && x.rank() == 3 && (x.dim(2) <= 1 || x.stride(2) == 1), where,
                      "expected x [T, H, D] with contiguous channels, got shape {}",
                      x.defined() ? x.shape().str() : "none");
  require<ShapeError>(x.dim(2) % 2 == 0, where, "expected an even head size, got {}", x.dim(2));
  require<ShapeError>(static_cast<std::int64_t>(positions.size()) == x.dim(0), where,
                      "expected {} positions, got {}", x.dim(0), positions.size());
  require<ArgumentError>(options.base > 0, where, "expected a base above 0, got {}", options.base);
  const std::int64_t channels = options.channels > 0 ? options.channels : x.dim(2);
  require<ArgumentError>(channels % 2 == 0 && channels <= x.dim(2), where,
                         "expected an even number of rotated channels, at most the head size {}, "
                         "got {}",
                         x.dim(2), channels);
  const std::int64_t half = channels / 2;
  std::int64_t highest = -1, last = -1;
  for (std::size_t t = 0; t < positions.size(); ++t) {
    require<ArgumentError>(positions[t] >= 0, where,
                           "expected positions of at least 0, got {} at token {}", positions[t], t);
    if (positions[t] < kTablePositions) highest = std::max<std::int64_t>(highest, positions[t]);
    last = std::max<std::int64_t>(last, positions[t]);
  }
  // Stretched by a length that hardly comes twice: no table is worth keeping.
  if (options.scaling.kind == RopeScalingKind::kDynamic && last >= options.scaling.positions)
    highest = -1;
  std::vector<double> frequencies;  // of positions outside the table
  if (last > highest) frequencies = rope_frequencies(options, channels, last + 1);
  dispatch_floating(x.dtype(), where, [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    const auto table = angle_table<T>(highest + 1, channels, options);
    const std::int64_t width = row_width(half, options.pairing);
    parallel_chunks(x.dim(0), kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t position = positions[static_cast<std::size_t>(t)];
        const T* angles = table->data() + position * width;
        if (position > highest) {
          T* row = thread_scratch_of<T>(static_cast<std::size_t>(width), kScratchSlot);
          fill_angles(row, position, frequencies, options);
          angles = row;
        }
        kernels.rotate(x.data<T>() + t * x.stride(0),
                       {.cosines = angles,
                        .sines = angles + width / 2,
                        .half = half,
                        .heads = x.dim(1),
                        .head_stride = x.stride(1),
                        .interleaved = options.pairing == RopePairing::kInterleaved,
                        .sign = inverse ? -1.0 : 1.0});
      }
    });
  });
}

}  // namespace qkv::inline v0::ops
