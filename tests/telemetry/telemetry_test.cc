// Run records, event files and files that only grow.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "base/file.h"
#include "base/json.h"
#include "support/files.h"
#include "telemetry/process.h"
#include "telemetry/run_log.h"
#include "telemetry/tensorboard.h"

using namespace qkv;
using namespace qkv::telemetry;
using qkv::testing::TempFolder;

namespace {

template <class T>
T read_fixed(const std::string& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The messages of a TFRecord file; fails the test where a checksum is wrong.
std::vector<std::string> messages_of(const std::string& bytes) {
  const auto masked = [](std::string_view part) {
    const std::uint32_t crc = crc32c(part);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  };
  std::vector<std::string> out;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = read_fixed<std::uint64_t>(bytes, at);
    EXPECT_EQ(read_fixed<std::uint32_t>(bytes, at + 8), masked({bytes.data() + at, 8}));
    out.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(read_fixed<std::uint32_t>(bytes, at + 12 + length), masked(out.back()));
    at += 16 + length;
  }
  return out;
}

}  // namespace

TEST(TensorBoard, crc32c_of_known_texts) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}

TEST(TensorBoard, a_scalar_is_written_byte_for_byte_as_protobuf_says) {
  const Scalar scalar{"a", 1.5};
  const std::string record = scalar_event(2.0, 300, {&scalar, 1});
  const std::vector<std::string> messages = messages_of(record);
  ASSERT_EQ(messages.size(), 1u);
  const std::string expected(
      "\x09\x00\x00\x00\x00\x00\x00\x00\x40"  // 1: wall_time = 2.0
      "\x10\xAC\x02"                          // 2: step = 300
      "\x2A\x0A"                              // 5: summary, 10 bytes
      "\x0A\x08\x0A\x01\x61\x15\x00\x00\xC0\x3F",
      24);  // 1: {1: "a", 2: 1.5f}
  EXPECT_EQ(messages[0], expected);
}

TEST(TensorBoard, a_file_starts_with_its_version_and_is_cut_on_resume) {
  const TempFolder folder;
  const auto path = folder / "events.out.tfevents.1";
  const Scalar scalar{"loss", 0.25};
  std::int64_t after_first = 0;
  {
    EventFile file(path, 0, 1.0);
    file.add(1.0, 1, {&scalar, 1});
    after_first = file.size();
    file.add(1.0, 2, {&scalar, 1});
  }
  EXPECT_EQ(messages_of(read_file(path)).size(), 3u);
  EventFile file(path, after_first, 1.0);
  EXPECT_EQ(messages_of(read_file(path)).size(), 2u);
  EXPECT_NE(messages_of(read_file(path))[0].find("brain.Event:2"), std::string::npos);
}

TEST(AppendFile, keeps_only_what_it_was_told_to) {
  const TempFolder folder;
  const auto path = folder.write("log", "0123456789");
  AppendFile file(path, 4);
  file.append("ab");
  EXPECT_EQ(read_file(path), "0123ab");
  EXPECT_EQ(file.size(), 6);
}

TEST(AppendFile, a_full_disk_is_an_error_that_names_the_file) {
  AppendFile file("/dev/full", 0);
  try {
    file.append("x");
    FAIL() << "expected an error";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("/dev/full"), std::string::npos) << error.what();
  }
}

TEST(RunLog, records_hold_the_promised_keys_and_are_there_at_once) {
  const TempFolder folder;
  RunLog log(folder.path(), {});
  TrainRecord record;
  record.step = 7;
  record.loss = 0.5;
  record.layers.push_back({"encoder.layers.0", 1.25, 2.5, {{"norm.weight", {1, 0, 1, 1}}}});
  log.write(record);
  log.write(EvalRecord{.step = 7, .split = "validation", .accuracy = 0.75, .n = 4, .best = true});
  log.write(EventRecord{7, 1.0, "end", "all steps done"});
  const std::string text = read_file(folder / kMetricsFile);
  std::vector<Json> lines;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\n', start);
    lines.push_back(Json::parse(text.substr(start, end - start)));
    start = end + 1;
  }
  ASSERT_EQ(lines.size(), 3u);
  for (const char* key : {"step", "kind", "time", "loss", "learning_rate", "grad_norm", "tokens",
                          "tokens_per_second", "cpu_share", "peak_share", "bytes", "layers"}) {
    EXPECT_TRUE(lines[0].contains(key)) << key;
  }
  EXPECT_EQ(lines[0].at("kind").as_string(), "train");
  EXPECT_EQ(lines[0]
                .at("layers")
                .at("encoder.layers.0")
                .at("gamma")
                .at("norm.weight")
                .at("mean")
                .as_double(),
            1);
  EXPECT_EQ(lines[1].at("kind").as_string(), "eval");
  EXPECT_EQ(lines[2].at("kind").as_string(), "event");
}

TEST(RunLog, a_loss_that_is_not_a_number_is_null_in_json) {
  TrainRecord record;
  record.loss = std::nan("");
  EXPECT_TRUE(Json::parse(record.to_json().dump()).at("loss").is_null());
}

TEST(RunLog, continues_where_it_was_told_to) {
  const TempFolder folder;
  RunLogPosition position;
  {
    RunLog log(folder.path(), {});
    log.write(EventRecord{0, 1.0, "start", ""});
    position = log.sync();
    log.write(EventRecord{1, 1.0, "lost", ""});
  }
  RunLog log(folder.path(), position);
  log.write(EventRecord{0, 2.0, "resume", ""});
  const std::string text = read_file(folder / kMetricsFile);
  EXPECT_EQ(text.find("lost"), std::string::npos);
  EXPECT_NE(text.find("resume"), std::string::npos);
}

TEST(GammaStats, of_four_values) {
  const float gamma[] = {1, 2, 3, 4};
  const GammaStats stats = gamma_stats(gamma, 4);
  EXPECT_DOUBLE_EQ(stats.mean, 2.5);
  EXPECT_DOUBLE_EQ(stats.std, std::sqrt(1.25));
  EXPECT_EQ(stats.min, 1);
  EXPECT_EQ(stats.max, 4);
}

TEST(Process, knows_its_memory_and_time) {
  EXPECT_GT(resident_bytes(), 1 << 20);
  EXPECT_GE(peak_resident_bytes(), 1 << 20);
  const double before = cpu_seconds();
  double sum = 0;
  for (int i = 0; i < 20'000'000; ++i) sum += std::sqrt(static_cast<double>(i));
  EXPECT_GT(sum, 0);
  EXPECT_GT(cpu_seconds(), before);
}
