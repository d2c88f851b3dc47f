#include "io/weight_files.h"

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "base/available_memory.h"
#include "base/file.h"
#include "io/safetensors.h"
#include "support/files.h"

namespace {
using namespace qkv;
namespace fs = std::filesystem;
using qkv::io::save_safetensors;
using qkv::io::WeightFiles;
using qkv::testing::TempFolder;

Tensor numbers(std::initializer_list<float> values) {
  return Tensor::from<float>(values, {static_cast<std::int64_t>(values.size())});
}

std::string refusal(const fs::path& path) {
  try {
    WeightFiles::open(path);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

// Two shards and their index; `map` replaces the weight map.
void write_shards(const TempFolder& folder, const std::string& map) {
  save_safetensors(folder / "model-00001-of-00002.safetensors",
                   {{"a", numbers({1, 2})}, {"b", numbers({3})}}, {{"format", "pt"}});
  save_safetensors(folder / "model-00002-of-00002.safetensors", {{"c", numbers({4, 5, 6})}});
  folder.write("model.safetensors.index.json",
               R"({"metadata":{"total_size":24},"weight_map":)" + map + "}");
}
constexpr const char* kMap =
    R"({"a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors",)"
    R"("c":"model-00002-of-00002.safetensors"})";

TEST(WeightFiles, one_file_with_its_config) {
  const TempFolder folder;
  save_safetensors(folder / "model.safetensors", {{"a", numbers({1, 2})}}, {{"format", "pt"}});
  folder.write("config.json", R"({"model_type":"bert"})");
  const WeightFiles files = WeightFiles::open(folder.path());
  EXPECT_EQ(files.format(), io::WeightFormat::kSafetensors);
  EXPECT_EQ(files.names(), std::vector<std::string>{"a"});
  EXPECT_TRUE(files.contains("a"));
  EXPECT_FALSE(files.contains("b"));
  EXPECT_EQ(files.shape("a"), Shape{2});
  EXPECT_FALSE(files.is_quantized("a"));
  EXPECT_EQ(files.tensor("a").data<float>()[1], 2.0F);
  EXPECT_EQ(files.bytes(), 8u);
  EXPECT_EQ(files.config().at("model_type").as_string(), "bert");
  EXPECT_EQ(files.metadata().at("format").as_string(), "pt");
  EXPECT_EQ(files.file_of("a"), "model.safetensors");
  EXPECT_THROW(files.quantized("a"), ModelError);
  EXPECT_THROW(files.tensor("aa"), ModelError);
  const WeightFiles single = WeightFiles::open(folder / "model.safetensors");
  EXPECT_EQ(single.config(), Json::object());
  EXPECT_EQ(single.tensor("a").data<float>()[0], 1.0F);
}

TEST(WeightFiles, shards_by_index) {
  const TempFolder folder;
  write_shards(folder, kMap);
  const WeightFiles files = WeightFiles::open(folder.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(files.tensor("c").data<float>()[2], 6.0F);
  EXPECT_EQ(files.file_of("c"), "model-00002-of-00002.safetensors");
  EXPECT_EQ(files.bytes(), 24u);
}

TEST(WeightFiles, a_missing_shard_is_named) {
  const TempFolder folder;
  write_shards(folder, kMap);
  fs::remove(folder / "model-00002-of-00002.safetensors");
  EXPECT_NE(refusal(folder.path()).find("'model-00002-of-00002.safetensors'"), std::string::npos)
      << refusal(folder.path());
}

TEST(WeightFiles, a_strange_shard_is_named) {
  const TempFolder folder;
  write_shards(folder, kMap);
  save_safetensors(folder / "model-00003-of-00003.safetensors", {{"d", numbers({1})}});
  EXPECT_NE(refusal(folder.path()).find("'model-00003-of-00003.safetensors' as well"),
            std::string::npos)
      << refusal(folder.path());
}

TEST(WeightFiles, a_tensor_in_two_shards_is_named) {
  const TempFolder folder;
  write_shards(folder, kMap);
  save_safetensors(folder / "model-00002-of-00002.safetensors",
                   {{"a", numbers({1, 2})}, {"c", numbers({4, 5, 6})}});
  const std::string message = refusal(folder.path());
  EXPECT_NE(message.find("'a' once"), std::string::npos) << message;
  EXPECT_NE(message.find("model-00002-of-00002"), std::string::npos) << message;
}

TEST(WeightFiles, the_index_and_the_shards_must_agree) {
  const TempFolder folder;
  write_shards(folder, R"({"a":"model-00001-of-00002.safetensors",)"
                       R"("c":"model-00002-of-00002.safetensors"})");
  EXPECT_NE(refusal(folder.path()).find("'b' in the shards"), std::string::npos)
      << refusal(folder.path());
  write_shards(folder, R"({"a":"model-00001-of-00002.safetensors","b":)"
                       R"("model-00002-of-00002.safetensors","c":)"
                       R"("model-00002-of-00002.safetensors"})");
  EXPECT_NE(refusal(folder.path()).find("'b of model-00002"), std::string::npos)
      << refusal(folder.path());
  for (const char* map : {R"({"a":"../model.safetensors"})", R"({"a":"/etc/passwd"})",
                          R"({"a":""})", R"({"a":1})", "[]", "{"}) {
    write_shards(folder, map);
    EXPECT_NE(refusal(folder.path()), "") << map;
  }
}

TEST(WeightFiles, a_cut_shard_is_named) {
  const TempFolder folder;
  write_shards(folder, kMap);
  const std::string bytes = read_file(folder / "model-00001-of-00002.safetensors");
  folder.write("model-00001-of-00002.safetensors", bytes.substr(0, bytes.size() - 1));
  const std::string message = refusal(folder.path());
  EXPECT_NE(message.find("model-00001-of-00002.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find("cut off"), std::string::npos) << message;
}

TEST(WeightFiles, links_of_a_cache_are_followed) {
  const TempFolder folder;
  const fs::path root = folder / "models--org--name", snapshot = root / "snapshots" / "0a1b";
  fs::create_directories(root / "blobs");
  fs::create_directories(root / "refs");
  fs::create_directories(snapshot);
  save_safetensors(root / "blobs" / "1234", {{"a", numbers({7})}});
  write_file_atomic(root / "refs" / "main", "0a1b\n");
  fs::create_symlink("../../blobs/1234", snapshot / "model.safetensors");
  EXPECT_EQ(WeightFiles::open(snapshot).tensor("a").data<float>()[0], 7.0F);
  const WeightFiles files = WeightFiles::open(root);
  EXPECT_EQ(files.tensor("a").data<float>()[0], 7.0F);
  EXPECT_EQ(files.path(), snapshot);
  fs::remove(root / "blobs" / "1234");
  EXPECT_NE(refusal(root).find("behind the link"), std::string::npos) << refusal(root);
  write_file_atomic(root / "refs" / "main", "../../..");
  EXPECT_NE(refusal(root).find("snapshot"), std::string::npos) << refusal(root);
}

TEST(WeightFiles, pickles_are_refused_with_the_command) {
  const TempFolder folder;
  folder.write("pytorch_model.bin", "PK\x03\x04zip");
  std::string message = refusal(folder.path());
  EXPECT_NE(message.find("convert them with: python3 -c"), std::string::npos) << message;
  EXPECT_NE(message.find("'" + folder.path().string() + "'"), std::string::npos) << message;
  message = refusal(folder / "pytorch_model.bin");
  EXPECT_NE(message.find("python3 -c"), std::string::npos) << message;
  folder.write("old.pt", "\x80\x02}q");
  EXPECT_NE(refusal(folder / "old.pt").find("old.pt')"), std::string::npos)
      << refusal(folder / "old.pt");
}

TEST(WeightFiles, other_folders_and_files_are_refused_with_a_word) {
  const TempFolder folder;
  EXPECT_NE(refusal(folder.path()).find("an empty folder"), std::string::npos);
  folder.write("tf_model.h5", "x");
  EXPECT_NE(refusal(folder.path()).find("tf_model.h5"), std::string::npos);
  folder.write("m.gguf", "x");
  EXPECT_NE(refusal(folder.path()).find("give the file itself"), std::string::npos);
  EXPECT_NE(refusal(folder.write("note.txt", "hello")), "");
  EXPECT_THROW(WeightFiles::open(folder / "absent"), IoError);
}

TEST(WeightFiles, a_config_that_is_no_object_is_refused) {
  const TempFolder folder;
  save_safetensors(folder / "model.safetensors", {{"a", numbers({1})}});
  for (const char* text : {"", "[]", "{", "1"}) {
    folder.write("config.json", text);
    EXPECT_NE(refusal(folder.path()).find("config.json"), std::string::npos) << text;
  }
}

TEST(WeightFiles, what_does_not_fit_is_said_with_both_figures) {
  require_memory(100, 100, "the weights");
  try {
    require_memory(26'000'000'000, 8'000'000'000, "the weights of 'm'");
    FAIL();
  } catch (const ModelError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("26.0 GB"), std::string::npos) << message;
    EXPECT_NE(message.find("8.0 GB free"), std::string::npos) << message;
  }
}

// A sparse file claims more than the machine has, and costs nothing.
TEST(WeightFiles, a_model_larger_than_memory_is_refused_before_loading) {
  const TempFolder folder;
  const std::uint64_t bytes = available_memory() / 4 * 8;
  std::string header = R"({"a":{"dtype":"F32","shape":[)" + std::to_string(bytes / 4) +
                       R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string prefix(8, '\0');
  prefix[0] = static_cast<char>(header.size());
  const fs::path path = folder.write("model.safetensors", prefix + header);
  std::error_code code;
  fs::resize_file(path, 8 + header.size() + bytes, code);
  if (code) GTEST_SKIP() << "the file system holds no sparse file of that size: " << code.message();
  const std::string message = refusal(path);
  EXPECT_NE(message.find("[memory]"), std::string::npos) << message;
  EXPECT_NE(message.find("model.safetensors"), std::string::npos) << message;
}

}  // namespace
