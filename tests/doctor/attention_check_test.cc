// Every mutant of the gallery is found by its own rule first; its healthy twin raises nothing.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "qkv/attention.h"
#include "qkv/doctor.h"

#include "base/file.h"
#include "base/json.h"
#include "doctor/mutants/attention.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

class Gallery : public ::testing::TestWithParam<Mutant> {};

// Errors that are not marked as consequences.
std::set<std::string> own_errors(const doctor::Report& report) {
  std::set<std::string> ids;
  for (const doctor::Finding& f : report.errors())
    if (f.follows.empty()) ids.insert(f.id);
  return ids;
}

std::string errors_of(const doctor::Report& report) {
  std::string out;
  for (const doctor::Finding& f : report.findings)
    if (f.severity != doctor::Severity::kNote) out += f.id + " ";
  return out;
}

// The engine's own attention under test.
doctor::AttentionUnderTest engine_attention(ops::AttentionBackend backend) {
  doctor::AttentionUnderTest f;
  f.mask = doctor::MaskStyle::kBlock;
  f.takes_causal = f.takes_window = true;
  f.kv_heads = 2;
  const auto options = [backend](const doctor::AttentionCall& call) {
    ops::AttentionOptions o;
    o.backend = backend;
    if (call.mask.defined()) o.mask = o.mask & Mask::block(call.mask);
    if (call.causal.value_or(false)) o.mask = o.mask & Mask::causal();
    if (call.window) o.mask = o.mask & Mask::window(*call.window);
    return o;
  };
  const auto input = [](const doctor::AttentionCall& call) {
    return ops::AttentionInput{.q = call.q, .k = call.k, .v = call.v, .heads_first = true};
  };
  f.forward = [=](const doctor::AttentionCall& call) {
    return doctor::AttentionAnswer{ops::attention(input(call), options(call)).out, {}, ""};
  };
  f.backward = [=](const doctor::AttentionCall& call, const Tensor& dout) {
    const ops::AttentionResult result = ops::attention(input(call), options(call));
    ops::AttentionGradients g{Tensor::zeros(call.q.shape(), call.q.dtype()),
                              Tensor::zeros(call.k.shape(), call.k.dtype()),
                              Tensor::zeros(call.v.shape(), call.v.dtype())};
    ops::attention_backward(dout, input(call), result, options(call), g);
    return g;
  };
  return f;
}

// No figure is NaN, and the JSON reads back.
void expect_sound(const doctor::Report& report) {
  for (const doctor::Finding& f : report.findings)
    for (const auto& [name, figure] : f.evidence)
      if (const double* number = std::get_if<double>(&figure)) {
        EXPECT_FALSE(std::isnan(*number)) << f.id << ": " << name;
      }
  EXPECT_EQ(Json::parse(report.to_json()).at("findings").size(), report.findings.size());
}

}  // namespace

TEST_P(Gallery, is_found_by_its_own_rule) {
  const doctor::Report report = doctor::check_attention(make_attention(GetParam()));
  expect_sound(report);
  // One file per mutant, where the pages of the rules take their figures from.
  if (const char* folder = std::getenv("QKV_GALLERY_OUT"))
    write_file_atomic(fmt::format("{}/{}.json", folder, GetParam().name), report.to_json());
  const std::string id = GetParam().id;
  if (id == "quadratic-memory") {
    EXPECT_TRUE(report.ok()) << report.str();
    ASSERT_FALSE(report.findings.empty());
    EXPECT_EQ(report.findings[0].id, id) << report.str();
    return;
  }
  ASSERT_FALSE(report.ok()) << report.str();
  EXPECT_EQ(report.errors()[0].id, id) << report.str();
  EXPECT_EQ(own_errors(report), std::set<std::string>{id}) << report.str();
}

TEST_P(Gallery, healthy_twin_raises_nothing) {
  const doctor::Report report = doctor::check_attention(make_attention(GetParam(), true));
  EXPECT_TRUE(report.findings.empty()) << report.str();
}

INSTANTIATE_TEST_SUITE_P(Attention, Gallery, ::testing::ValuesIn(attention_mutants()),
                         [](const auto& entry) { return std::string(entry.param.name); });

TEST(AttentionCheck, engine_raises_nothing) {
  for (const auto backend : {ops::AttentionBackend::kNaive, ops::AttentionBackend::kAuto}) {
    const doctor::Report report = doctor::check_attention(engine_attention(backend));
    EXPECT_TRUE(errors_of(report).empty()) << report.str();
  }
}

TEST(AttentionCheck, stated_scale_is_no_fault) {
  doctor::AttentionUnderTest f = make_attention({Fault::kNoScale, "", "scale"});
  f.scale = 1;
  EXPECT_TRUE(doctor::check_attention(f).findings.empty());
}

TEST(AttentionCheck, one_head_size_alone_is_enough) {
  doctor::AttentionUnderTest f = make_attention({Fault::kNone, "", ""});
  for (const std::int64_t size : {1, 4, 5, 80}) {
    f.head_size = size;
    const doctor::Report report = doctor::check_attention(f);
    EXPECT_TRUE(report.findings.empty()) << size << "\n" << report.str();
  }
}

TEST(AttentionCheck, what_is_not_taken_is_skipped) {
  doctor::AttentionUnderTest f = make_attention({Fault::kNone, "", ""});
  f.mask = doctor::MaskStyle::kNone;
  f.takes_causal = false;
  f.backward = nullptr;
  const doctor::Report report = doctor::check_attention(f);
  std::set<std::string> skipped;
  for (const doctor::Omission& o : report.skipped) skipped.insert(o.id);
  for (const char* id : {"mask-ignored", "future-leak", "gradient", "head-groups", "window-edge"})
    EXPECT_TRUE(skipped.count(id)) << id;
  EXPECT_TRUE(report.findings.empty()) << report.str();
}

TEST(AttentionCheck, causal_that_nobody_stated_is_a_note) {
  doctor::AttentionUnderTest f = make_attention({Fault::kNone, "", ""});
  const auto forward = f.forward;
  f.takes_causal = false;
  f.backward = nullptr;
  f.forward = [forward](const doctor::AttentionCall& call) {
    doctor::AttentionCall causal = call;
    causal.causal = true;
    return forward(causal);
  };
  const doctor::Report report = doctor::check_attention(f);
  EXPECT_TRUE(report.ok()) << report.str();
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].id, "future-leak");
  f.always_causal = true;
  EXPECT_TRUE(doctor::check_attention(f).findings.empty());
}

TEST(AttentionCheck, stated_causal_that_leaks) {
  const std::pair<Fault, const char*> cases[] = {{Fault::kCausalIgnored, "future-leak"},
                                                 {Fault::kCausalOneLate, "future-leak"},
                                                 {Fault::kCausalZeroFilled, "mask-value"},
                                                 {Fault::kEmptyRowNaN, "empty-row"},
                                                 {Fault::kNoScale, "scale"}};
  for (const auto& [fault, id] : cases) {
    doctor::AttentionUnderTest f = make_attention({fault, "", id});
    const auto forward = f.forward;
    f.takes_causal = false;
    f.always_causal = true;
    f.backward = nullptr;
    f.forward = [forward](const doctor::AttentionCall& call) {
      doctor::AttentionCall causal = call;
      causal.causal = true;
      return forward(causal);
    };
    const doctor::Report report = doctor::check_attention(f);
    EXPECT_EQ(own_errors(report), std::set<std::string>{id}) << report.str();
  }
}

TEST(AttentionCheck, stated_window_of_another_width) {
  doctor::AttentionUnderTest f =
      make_attention({Fault::kNone, "", "", doctor::MaskStyle::kKeep, true});
  const auto forward = f.forward;
  f.takes_window = false;
  f.backward = nullptr;
  f.forward = [forward](const doctor::AttentionCall& call) {
    doctor::AttentionCall windowed = call;
    windowed.window = 3;
    return forward(windowed);
  };
  f.window = 3;
  EXPECT_TRUE(doctor::check_attention(f).findings.empty()) << doctor::check_attention(f).str();
  f.window = 4;
  EXPECT_EQ(own_errors(doctor::check_attention(f)), std::set<std::string>{"window-edge"});
}

TEST(AttentionCheck, a_gradient_that_is_refused_is_skipped) {
  doctor::AttentionUnderTest f = make_attention({Fault::kNone, "", ""});
  f.backward = [](const doctor::AttentionCall&, const Tensor&) -> ops::AttentionGradients {
    throw doctor::GradientRefused("no gradient here");
  };
  EXPECT_TRUE(doctor::check_attention(f).findings.empty());
  f.backward = [](const doctor::AttentionCall&, const Tensor&) -> ops::AttentionGradients {
    throw std::runtime_error("shapes");
  };
  EXPECT_EQ(own_errors(doctor::check_attention(f)), std::set<std::string>{"exception"});
}

TEST(AttentionCheck, conventions_of_a_library_are_notes) {
  for (const Fault fault : {Fault::kCausalTopLeft, Fault::kEmptyRowNaN}) {
    doctor::AttentionUnderTest f = make_attention({fault, "", ""});
    const auto forward = f.forward;
    f.forward = [forward](const doctor::AttentionCall& call) {
      doctor::AttentionAnswer answer = forward(call);
      answer.library = "some.library";
      return answer;
    };
    const doctor::Report report = doctor::check_attention(f);
    EXPECT_TRUE(report.ok()) << report.str();
    EXPECT_EQ(report.findings.size(), 1u);
  }
}

TEST(AttentionCheck, descriptions_without_sense_are_refused) {
  EXPECT_THROW(doctor::check_attention({}), ArgumentError);
  doctor::AttentionUnderTest f = make_attention({Fault::kNone, "", ""});
  f.kv_heads = 0;
  EXPECT_THROW(doctor::check_attention(f), ArgumentError);
}

TEST(Rules, each_has_its_texts_and_its_page) {
  std::set<std::string> ids;
  for (const doctor::Rule& rule : doctor::rules()) {
    EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
    const std::string page =
        read_file(fmt::format("{}/docs/doctor/{}.md", QKV_SOURCE_DIR, rule.id));
    EXPECT_NE(page.find(rule.title), std::string::npos) << rule.id;
  }
  EXPECT_THROW(doctor::find_rule("scales"), ArgumentError);
}

TEST(Gallery, holds_sixty_mutants_with_names_of_rules) {
  EXPECT_GE(attention_mutants().size(), 60u);
  for (const Mutant& mutant : attention_mutants()) doctor::find_rule(mutant.id);
}
