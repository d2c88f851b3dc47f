// The frame of the program: global options, exit statuses, streams.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/files.h"
#include "support/process.h"
#include "support/strings.h"

using namespace qkv;
using namespace qkv::testing;

TEST(Program, help_names_the_verbs_and_goes_to_stdout) {
  const Finished help = run_qkv({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(has(help.out, "info")) << help.out;
  EXPECT_EQ(help.err, "");
  const Finished verb = run_qkv({"info", "--help"});
  EXPECT_EQ(verb.status, 0);
  EXPECT_TRUE(has(verb.out, "Examples:")) << verb.out;
}

TEST(Program, version_is_that_of_the_library) {
  const Finished version = run_qkv({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(has(version.out, "qkv 0.")) << version.out;
}

TEST(Program, unknown_verb_is_refused_and_the_nearest_named) {
  const Finished run = run_qkv({"inof"});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(has(run.err, "got 'inof'; did you mean info?")) << run.err;
}

TEST(Program, no_verb_and_unknown_options_are_refused) {
  EXPECT_EQ(run_qkv({}).status, 2);
  const Finished run = run_qkv({"info", "--colour"});
  EXPECT_EQ(run.status, 2);
  EXPECT_TRUE(has(run.err, "--colour")) << run.err;
}

TEST(Program, threads_flag_wins_over_the_environment) {
  const Finished flag = run_qkv({"info", "--no-peak", "--json", "--threads", "1"},
                                {.environment = {"QKV_NUM_THREADS=2"}});
  EXPECT_EQ(Json::parse(flag.out).at("threads").as_int(), 1);
  const Finished environment =
      run_qkv({"info", "--no-peak", "--json"}, {.environment = {"QKV_NUM_THREADS=1"}});
  EXPECT_EQ(Json::parse(environment.out).at("threads").as_int(), 1);
  EXPECT_TRUE(
      has(Json::parse(environment.out).at("threads_reason").as_string(), "QKV_NUM_THREADS"));
}

TEST(Program, info_says_what_is_in_use_and_why) {
  const Finished run = run_qkv({"info", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const Json info = Json::parse(run.out);
  for (const char* key : {"processor", "isa_reason", "bf16_attention", "threads_reason"})
    EXPECT_FALSE(info.at(key).as_string().empty()) << key;
  EXPECT_GT(info.at("memory_bytes").as_int(), 1 << 20);
  EXPECT_GT(info.at("peaks").at("gflops").as_double(), 0);
  EXPECT_GT(info.at("peaks").at("read_gigabytes_per_second").as_double(), 0);
  EXPECT_TRUE(info.at("libraries").contains("utf8proc"));
  EXPECT_TRUE(has(run_qkv({"info"}).out, "measured now"));
}

TEST(Program, zero_threads_are_refused) {
  for (const char* bad : {"0", "-3", "two", "99999"}) {
    const Finished flag = run_qkv({"info", "--threads", bad});
    EXPECT_EQ(flag.status, 2) << bad;
    EXPECT_NE(flag.err, "") << bad;
    EXPECT_EQ(flag.out, "") << bad;
    EXPECT_EQ(run_qkv({"info"}, {.environment = {std::string("QKV_NUM_THREADS=") + bad}}).status, 2)
        << bad;
  }
}

TEST(Program, more_threads_than_cores_are_allowed_with_a_warning) {
  const Finished run = run_qkv({"--threads", "1024", "info", "--no-peak", "--json"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).at("threads").as_int(), 1024);
  EXPECT_TRUE(has(run.err, "warning: 1024 threads on")) << run.err;
}

TEST(Program, unknown_instruction_set_is_refused) {
  const Finished run = run_qkv({"info"}, {.environment = {"QKV_MAX_ISA=avx1024"}});
  EXPECT_EQ(run.status, 2);
  EXPECT_TRUE(has(run.err, "QKV_MAX_ISA")) << run.err;
}

TEST(Program, full_disk_behind_stdout_is_an_error) {
  const Finished run =
      run_program({"sh", "-c", "exec \"$0\" info --no-peak > /dev/full", QKV_BINARY_DIR "/qkv"});
  EXPECT_EQ(run.status, 1);
  EXPECT_TRUE(has(run.err, "[stdout]")) << run.err;
}

TEST(Program, closed_stdout_is_quiet) {
  const Finished run =
      run_program({"bash", "-c", "(sleep 0.2; \"$0\" info --no-peak; echo \"left $?\" >&2) | true",
                   QKV_BINARY_DIR "/qkv"});
  EXPECT_EQ(run.err, "left 0\n");
}

TEST(Program, messages_carry_no_colour_off_a_terminal) {
  EXPECT_FALSE(has(run_qkv({"nothing"}).err, "\033"));
}

TEST(Program, numbers_of_options_are_not_wrapped_or_cut_to_fit) {
  for (const char* bad : {"-1", "18446744073709551616", "1.5", "x", "", " 1"}) {
    const Finished run = run_qkv({"info", "--no-peak", "--seed", bad});
    EXPECT_EQ(run.status, 2) << bad;
    EXPECT_TRUE(has(run.err, "[arguments] expected --seed from 0 to")) << run.err;
  }
  EXPECT_EQ(run_qkv({"info", "--no-peak", "--seed", "4611686018427387904"}).status, 0);
}

TEST(Program, what_does_not_parse_says_what_was_expected_and_what_came) {
  EXPECT_TRUE(has(run_qkv({}).err, "[arguments] expected a verb, got none"));
  EXPECT_TRUE(has(run_qkv({"train"}).err, "[arguments] expected CONFIG, got none"));
  EXPECT_TRUE(has(run_qkv({"info", "--no-peek"}).err,
                  "expected a known option of info, got '--no-peek'; did you mean --no-peak?"));
  EXPECT_TRUE(
      has(run_qkv({"info", "twice"}).err, "expected no more arguments of info, got 'twice'"));
  EXPECT_TRUE(has(run_qkv({"plane"}).err, "expected a verb (train, eval, "));
}

// A file that is opened under the number of a closed stream would take in what is printed.
TEST(Program, closed_streams_are_not_taken_by_files) {
  const Finished no_output =
      run_program({"sh", "-c", "exec \"$0\" info --no-peak >&-", QKV_BINARY_DIR "/qkv"});
  EXPECT_EQ(no_output.status, 1);
  EXPECT_TRUE(has(no_output.err, "[stdout]")) << no_output.err;
  EXPECT_EQ(
      run_program({"sh", "-c", "exec \"$0\" info --no-peak 2>&-", QKV_BINARY_DIR "/qkv"}).status,
      0);
}

TEST(Program, paths_that_cannot_be_looked_at_are_errors_of_the_caller) {
  const std::string longer(5000, 'a');
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"tokenize", longer, "x"}, {"classify", longer, "x"}, {"train", longer}}) {
    const Finished run = run_qkv(arguments);
    EXPECT_NE(run.status, 0);
    EXPECT_FALSE(has(run.err, "[internal]")) << run.err.substr(0, 100);
  }
}
