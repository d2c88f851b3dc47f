// From what is seen to what it may come from.
#include "doctor/symptoms.h"

#include <string>

#include <gtest/gtest.h>

#include "qkv/doctor.h"

#include "base/file.h"

using namespace qkv;

TEST(Symptoms, lead_to_causes_in_plain_words) {
  const auto first = [](const char* text) {
    return std::string(doctor::find_symptoms(text)[0]->name);
  };
  EXPECT_EQ(first("loss nan"), "the loss is NaN or infinite");
  EXPECT_EQ(first("my loss jumps"), "the loss jumps");
  EXPECT_EQ(first("BLEU flat"), "poor answers after loading trained weights");
  EXPECT_EQ(first("memory full"), "memory is full");
  EXPECT_EQ(first("map all black"), "attention maps all black, all white, or all alike");
  EXPECT_EQ(first("slow decoding"), "decoding is slow");
  EXPECT_EQ(first("ranks idle"), "training is slow");
  EXPECT_THROW(doctor::find_symptoms("xyzzy"), ArgumentError);
  EXPECT_THROW(doctor::find_symptoms(""), ArgumentError);
}

TEST(Symptoms, every_cause_has_a_command_and_a_remedy) {
  for (const doctor::Symptom& symptom : doctor::symptoms()) {
    EXPECT_FALSE(symptom.causes.empty()) << symptom.name;
    for (const doctor::Cause& cause : symptom.causes) {
      if (cause.rule != nullptr) {
        EXPECT_NO_THROW(doctor::find_rule(cause.rule)) << cause.rule;
      }
      EXPECT_NE(cause.test, nullptr) << cause.what;
      ASSERT_TRUE(cause.rule != nullptr || cause.remedy != nullptr) << cause.what;
      EXPECT_FALSE(doctor::remedy_of(cause).empty()) << cause.what;
    }
  }
}

TEST(Symptoms, the_page_is_that_of_the_registry) {
  EXPECT_EQ(read_file(std::string(QKV_SOURCE_DIR) + "/docs/troubleshooting.md"),
            doctor::troubleshooting_page())
      << "run tools/make_doctor_pages";
}
