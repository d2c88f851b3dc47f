// Functions that bring positions of their own: rotary ones, and biases by distance.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "qkv/attention.h"
#include "qkv/doctor.h"

#include "base/file.h"

using namespace qkv;

namespace {

using Angle = std::function<double(std::int64_t position, double rate)>;

double usual(std::int64_t position, double rate) { return rate * static_cast<double>(position); }

// x [B, H, N, D] turned pair by pair.
Tensor turned(const Tensor& x, bool interleaved, double base, const Angle& angle) {
  const Tensor wide = x.to(DType::kFloat64).contiguous();
  const Tensor out = wide.clone();
  const std::int64_t n = x.dim(2), d = x.dim(3), rows = x.dim(0) * x.dim(1) * n;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* from = wide.data<double>() + row * d;
    double* to = out.data<double>() + row * d;
    for (std::int64_t c = 0; c < d / 2; ++c) {
      const double rate = std::pow(base, -2.0 * static_cast<double>(c) / static_cast<double>(d));
      const double at = angle(row % n, rate);
      const std::int64_t a = interleaved ? 2 * c : c, z = interleaved ? 2 * c + 1 : c + d / 2;
      to[a] = from[a] * std::cos(at) - from[z] * std::sin(at);
      to[z] = from[z] * std::cos(at) + from[a] * std::sin(at);
    }
  }
  return out.to(x.dtype());
}

struct Form {
  const char* name;
  const char* id;  // of the error; null: none
  bool interleaved = false;
  double base = 10000;
  Angle queries = usual, keys = usual;
};

doctor::AttentionUnderTest rotating(const Form& form, std::optional<doctor::RopeStatement> stated) {
  doctor::AttentionUnderTest f;
  f.mask = doctor::MaskStyle::kKeep;
  f.takes_causal = true;
  f.kv_heads = 2;
  f.rope = stated;
  f.forward = [form](const doctor::AttentionCall& call) {
    ops::AttentionOptions options;
    if (call.mask.defined()) options.mask = options.mask & Mask::keep(call.mask);
    if (call.causal.value_or(false)) options.mask = options.mask & Mask::causal();
    const ops::AttentionInput input{
        .q = form.queries ? turned(call.q, form.interleaved, form.base, form.queries) : call.q,
        .k = form.keys ? turned(call.k, form.interleaved, form.base, form.keys) : call.k,
        .v = call.v,
        .heads_first = true};
    return doctor::AttentionAnswer{ops::attention(input, options).out, {}, ""};
  };
  return f;
}

std::vector<Form> faulty() {
  const Angle shifted = [](std::int64_t p, double rate) {
    return rate * static_cast<double>(p + 1);
  };
  const Angle backwards = [](std::int64_t p, double rate) { return -usual(p, rate); };
  const Angle cut = [](std::int64_t p, double rate) {
    return usual(std::min<std::int64_t>(p, 255), rate);
  };
  const Angle coarse = [](std::int64_t p, double rate) {
    const double shift =
        std::exp2(std::floor(std::log2(std::max<double>(static_cast<double>(p), 1))) - 7);
    return rate * std::round(static_cast<double>(p) / shift) * shift;  // as bf16 holds them
  };
  return {{"rope_interleaved_for_half", "rope-pairing", true},
          {"rope_of_another_base", "rope-pairing", false, 500000},
          {"rope_on_queries_alone", "rope-pairing", false, 10000, usual, nullptr},
          {"rope_missing", "rope-pairing", false, 10000, nullptr, nullptr},
          {"rope_keys_backwards", "rope-pairing", false, 10000, usual, backwards},
          {"rope_queries_one_late", "position-shift", false, 10000, shifted, usual},
          {"rope_positions_cut_off", "position-shift", false, 10000, cut, cut},
          {"rope_positions_in_bfloat16", "position-shift", false, 10000, coarse, coarse}};
}

}  // namespace

TEST(Rotary, mutants_are_found_by_their_own_rule) {
  for (const Form& form : faulty()) {
    const doctor::Report report = doctor::check_attention(rotating(form, doctor::RopeStatement{}));
    if (const char* folder = std::getenv("QKV_GALLERY_OUT"))
      write_file_atomic(fmt::format("{}/{}.json", folder, form.name), report.to_json());
    ASSERT_FALSE(report.ok()) << form.name << report.str();
    EXPECT_EQ(report.errors()[0].id, form.id) << form.name << report.str();
    for (const doctor::Finding& f : report.errors()) {
      if (f.follows.empty()) {
        EXPECT_EQ(f.id, form.id) << form.name << report.str();
      }
    }
  }
}

TEST(Rotary, healthy_functions_raise_nothing_but_notes) {
  for (const bool interleaved : {false, true}) {
    const Form form{"", nullptr, interleaved};
    const doctor::RopeStatement right{interleaved, 10000};
    for (const auto& stated :
         {std::optional<doctor::RopeStatement>(right), std::optional<doctor::RopeStatement>()}) {
      const doctor::Report report = doctor::check_attention(rotating(form, stated));
      for (const doctor::Finding& f : report.findings)
        EXPECT_EQ(f.severity, doctor::Severity::kNote) << report.str();
      bool noted = false;
      for (const doctor::Finding& f : report.findings) noted = noted || f.id == "rope-pairing";
      EXPECT_EQ(noted, !stated) << report.str();
    }
  }
}

TEST(Rotary, alibi_is_recognised) {
  doctor::AttentionUnderTest f;
  f.takes_causal = true;
  f.mask = doctor::MaskStyle::kBlock;
  f.forward = [](const doctor::AttentionCall& call) {
    ops::AttentionOptions options;
    options.mask = Mask::alibi(alibi_slopes(call.q.dim(1)));
    if (call.mask.defined()) options.mask = options.mask & Mask::block(call.mask);
    if (call.causal.value_or(false)) options.mask = options.mask & Mask::causal();
    const ops::AttentionInput input{.q = call.q, .k = call.k, .v = call.v, .heads_first = true};
    return doctor::AttentionAnswer{ops::attention(input, options).out, {}, ""};
  };
  const doctor::Report report = doctor::check_attention(f);
  EXPECT_TRUE(report.ok()) << report.str();
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].id, "reference");
}

TEST(Rotary, a_base_without_sense_is_refused) {
  EXPECT_THROW(doctor::check_attention(rotating({"", nullptr}, doctor::RopeStatement{false, 1})),
               ArgumentError);
}
