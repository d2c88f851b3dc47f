#include "metrics/classification.h"

#include "base/check.h"

namespace qkv::inline v0::metrics {
namespace {

double ratio(std::int64_t a, std::int64_t b) {
  return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
}

}  // namespace

Confusion::Confusion(std::int64_t classes) : classes_(classes) {
  require<ArgumentError>(classes >= 1, "confusion", "expected at least one class, got {}", classes);
  counts_.resize(static_cast<std::size_t>(classes * classes));
}

void Confusion::add(std::int64_t truth, std::int64_t predicted) {
  require<ArgumentError>(truth >= 0 && truth < classes_ && predicted >= 0 && predicted < classes_,
                         "confusion",
                         "expected classes from 0 to {}, got truth {} and prediction {}",
                         classes_ - 1, truth, predicted);
  ++counts_[static_cast<std::size_t>(truth * classes_ + predicted)];
  ++total_;
}

double Confusion::accuracy() const {
  std::int64_t right = 0;
  for (std::int64_t c = 0; c < classes_; ++c) right += at(c, c);
  return ratio(right, total_);
}

std::vector<Confusion::PerClass> Confusion::per_class() const {
  std::vector<PerClass> out(static_cast<std::size_t>(classes_));
  for (std::int64_t t = 0; t < classes_; ++t) {
    for (std::int64_t p = 0; p < classes_; ++p) {
      out[static_cast<std::size_t>(t)].support += at(t, p);
      out[static_cast<std::size_t>(p)].predicted += at(t, p);
    }
    out[static_cast<std::size_t>(t)].right = at(t, t);
  }
  for (PerClass& c : out) {
    c.precision = ratio(c.right, c.predicted);
    c.recall = ratio(c.right, c.support);
    c.f1 = ratio(2 * c.right, c.predicted + c.support);
  }
  return out;
}

double Confusion::macro_f1() const {
  double sum = 0;
  std::int64_t present = 0;
  for (const PerClass& c : per_class()) {
    if (c.support + c.predicted == 0) continue;
    sum += c.f1;
    ++present;
  }
  return present == 0 ? 0 : sum / static_cast<double>(present);
}

}  // namespace qkv::inline v0::metrics
