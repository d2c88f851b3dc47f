// Models: every mutant is found by its own rule first; its healthy twin raises nothing.
#include <cstdlib>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "qkv/doctor.h"

#include "base/file.h"
#include "doctor/mutants/model.h"

using namespace qkv;
using namespace qkv::testing;

namespace {
class ModelGallery : public ::testing::TestWithParam<ModelMutant> {};
}  // namespace

TEST_P(ModelGallery, is_found_by_its_own_rule) {
  const doctor::Report report = doctor::check_model(make_model(GetParam()));
  if (const char* folder = std::getenv("QKV_GALLERY_OUT"))
    write_file_atomic(fmt::format("{}/{}.json", folder, GetParam().name), report.to_json());
  ASSERT_FALSE(report.ok()) << report.str();
  EXPECT_EQ(report.errors()[0].id, GetParam().id) << report.str();
  for (const doctor::Finding& f : report.errors()) {
    if (f.follows.empty()) {
      EXPECT_EQ(f.id, GetParam().id) << report.str();
    }
  }
}

TEST_P(ModelGallery, healthy_twin_raises_nothing) {
  const doctor::Report report = doctor::check_model(make_model(GetParam(), true));
  EXPECT_TRUE(report.findings.empty()) << report.str();
}

INSTANTIATE_TEST_SUITE_P(Models, ModelGallery, ::testing::ValuesIn(model_mutants()),
                         [](const auto& entry) { return std::string(entry.param.name); });

TEST(ModelCheck, descriptions_without_sense_are_refused) {
  EXPECT_THROW(doctor::check_model({}), ArgumentError);
  doctor::ModelUnderTest f = make_model({ModelFault::kNone, "", ""});
  f.vocab_size = 3;
  EXPECT_THROW(doctor::check_model(f), ArgumentError);
  f = make_model({ModelFault::kNone, "", ""});
  f.max_length = 3;
  EXPECT_THROW(doctor::check_model(f), ArgumentError);
}

TEST(ModelCheck, a_model_that_takes_no_padding_is_not_given_any) {
  doctor::ModelUnderTest f = make_model({ModelFault::kMaskIgnored, "", ""});
  f.takes_padding = false;
  EXPECT_TRUE(doctor::check_model(f).ok());
}
