// Hugging Face folders: one safetensors file or an index with shards, and what is not read.
#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "base/check.h"
#include "base/excerpt.h"
#include "base/file.h"
#include "base/path.h"
#include "io/safetensors.h"
#include "io/weight_impl.h"

namespace qkv::inline v0::io {
namespace fs = std::filesystem;
namespace {

constexpr const char *kSingle = "model.safetensors", *kIndex = "model.safetensors.index.json";

// A link whose target is gone, as a cleaned cache leaves it, gets a message of its own.
bool is_there(const fs::path& path) {
  if (path_exists(path)) return true;
  std::error_code code;
  if (fs::is_symlink(path, code)) {
    const fs::path target = fs::read_symlink(path, code);
    fail<ModelError>("weights",
                     "expected the file behind the link '{}', got nothing at '{}'; "
                     "download the model again",
                     path.string(), target.string());
  }
  return false;
}

Json read_json(const fs::path& path) {
  try {
    Json json = Json::parse(read_file(path), path.string());
    static_cast<void>(json.as_object());
    return json;
  } catch (const DataError& error) {
    fail<ModelError>("weights", "'{}': {}", path.string(), error_reason(error));
  }
}

void add_file(const SafetensorsFile& file, const std::string& name, WeightFiles::Impl& weights) {
  for (const std::string& tensor : file.names()) {
    WeightEntry entry;
    entry.file = name;
    const auto foreign = file.unreadable().find(tensor);
    if (foreign != file.unreadable().end()) {
      entry.unreadable = foreign->second.dtype;
      entry.shape = foreign->second.shape;
    } else {
      entry.dense = file.tensor(tensor);
      entry.shape = entry.dense.shape();
    }
    weights.add(tensor, std::move(entry));
  }
}

void add_metadata(const SafetensorsFile& file, WeightFiles::Impl& weights) {
  for (const auto& [key, value] : file.metadata()) weights.metadata[key] = value;
}

// Names of a list for a message: the first few, and how many more there are.
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", excerpt(names[i]));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// The index: which tensor lies in which file of the folder.
std::map<std::string, std::string> read_index(const fs::path& path) {
  std::map<std::string, std::string> places;
  const Json index = read_json(path);
  try {
    for (const auto& [tensor, file] : index.at("weight_map").as_object()) {
      const std::string& name = file.as_string();
      require<DataError>(!name.empty() && name.find('/') == std::string::npos && name != "..",
                         "index", "expected the name of a file in this folder for '{}', got '{}'",
                         excerpt(tensor), excerpt(name));
      places.emplace(tensor, name);
    }
  } catch (const DataError& error) {
    fail<ModelError>("weights", "'{}': {}", path.string(), error_reason(error));
  }
  return places;
}

// "model-00001-of-00002.safetensors"
bool is_shard_name(const std::string& name) {
  return name.starts_with("model-") && name.ends_with(".safetensors") &&
         name.find("-of-") != std::string::npos;
}

// Shards that the index does not know come from another checkpoint: which one is meant is not ours
// to guess.
void refuse_strange_shards(const fs::path& folder, const std::set<std::string>& known) {
  std::vector<std::string> strange;
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    const std::string name = file.path().filename().string();
    if (is_shard_name(name) && known.count(name) == 0) strange.push_back(name);
  }
  std::sort(strange.begin(), strange.end());
  require<ModelError>(strange.empty(), "weights",
                      "expected only the shards that '{}' names, got {} as well; remove what does "
                      "not belong to this model",
                      (folder / kIndex).string(), some_of(strange));
}

void read_shards(const fs::path& folder, WeightFiles::Impl& weights) {
  const fs::path index = folder / kIndex;
  const std::map<std::string, std::string> places = read_index(index);
  std::set<std::string> shards;
  for (const auto& [tensor, file] : places) shards.insert(file);
  std::vector<std::string> missing;
  for (const std::string& shard : shards)
    if (!is_there(folder / shard)) missing.push_back(shard);
  require<ModelError>(missing.empty(), "weights",
                      "expected all {} shards of '{}', got none of the name {}; download the model "
                      "again",
                      shards.size(), index.string(), some_of(missing));
  refuse_strange_shards(folder, shards);
  for (const std::string& shard : shards) {
    const SafetensorsFile file = SafetensorsFile::open(folder / shard);
    if (weights.names.empty()) add_metadata(file, weights);
    add_file(file, shard, weights);
  }
  std::vector<std::string> absent, surplus;
  for (const auto& [tensor, file] : places) {
    const auto found = weights.entries.find(tensor);
    if (found == weights.entries.end() || found->second.file != file)
      absent.push_back(fmt::format("{} of {}", tensor, file));
  }
  for (const std::string& tensor : weights.names)
    if (places.count(tensor) == 0) surplus.push_back(tensor);
  require<ModelError>(absent.empty(), "weights",
                      "expected each tensor in the file that '{}' names, got shards without {}",
                      index.string(), some_of(absent));
  require<ModelError>(surplus.empty(), "weights",
                      "expected only tensors that '{}' names, got {} in the shards", index.string(),
                      some_of(surplus));
}

std::vector<std::string> files_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator file(folder, code), end; !code && file != end; file.increment(code))
    names.push_back(file->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// The path as one word of a shell.
std::string shell_word(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

constexpr const char* kConvertPickle =
    "python3 -c \"import glob, sys, torch, safetensors.torch as s; d = sys.argv[1]; "
    "s.save_file({{k: v.clone().contiguous() for f in sorted(glob.glob(d + '/{}')) "
    "for k, v in torch.load(f, map_location='cpu', weights_only=True).items() "
    "if torch.is_tensor(v)}}, d + '/model.safetensors', {{'format': 'pt'}})\" {}";

[[noreturn]] void refuse_pickle(const fs::path& folder, const std::string& pattern) {
  const std::string command =
      fmt::format(fmt::runtime(kConvertPickle), pattern, shell_word(folder.string()));
  fail<ModelError>("weights",
                   "expected model.safetensors in '{}', got PyTorch pickles, which may run any "
                   "program; convert them with: {}",
                   folder.string(), command);
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::vector<std::string> names = files_of(folder);
  std::vector<std::string> gguf;
  for (const std::string& name : names) {
    if (name.starts_with("pytorch_model") && name.ends_with(".bin"))
      refuse_pickle(folder, "pytorch_model*.bin");
    if (name.ends_with(".gguf")) gguf.push_back((folder / name).string());
  }
  require<ModelError>(gguf.empty(), "weights",
                      "expected model.safetensors in '{}', got {}; give the file itself",
                      folder.string(), some_of(gguf));
  for (const char* other : {"tf_model.h5", "flax_model.msgpack"}) {
    require<ModelError>(!std::binary_search(names.begin(), names.end(), other), "weights",
                        "expected model.safetensors in '{}', got {}, which is not read; load it "
                        "with transformers and save_pretrained",
                        folder.string(), other);
  }
  fail<ModelError>("weights", "expected model.safetensors or {} in '{}', got {}", kIndex,
                   folder.string(), names.empty() ? "an empty folder" : some_of(names));
}

}  // namespace

fs::path resolve_cache_folder(const fs::path& path) {
  if (!is_folder(path / "snapshots") || !path_exists(path / "refs" / "main")) return path;
  std::string commit = read_file(path / "refs" / "main");
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r')) commit.pop_back();
  const bool plain =
      !commit.empty() && commit.find_first_not_of("0123456789abcdef") == std::string::npos;
  require<ModelError>(plain && is_folder(path / "snapshots" / commit), "weights",
                      "expected the snapshot that '{}' names, got '{}' and no such folder; "
                      "download the model again",
                      (path / "refs" / "main").string(), excerpt(commit));
  return path / "snapshots" / commit;
}

bool is_pickle(const fs::path& path) {
  std::array<char, 4> head{};
  std::ifstream(path, std::ios::binary).read(head.data(), head.size());
  const std::string_view magic(head.data(), head.size());
  return magic.starts_with("PK\x03\x04") || magic.starts_with("\x80\x02");
}

void refuse_foreign_weights(const fs::path& path) {
  if (is_pickle(path))
    refuse_pickle(path.parent_path().empty() ? fs::path(".") : path.parent_path(),
                  path.filename().string());
  fail<ModelError>("weights",
                   "expected a folder with model.safetensors, a .safetensors, a .gguf or a "
                   "llama2.c .bin file, got '{}'",
                   path.string());
}

void read_safetensors_weights(const fs::path& path, WeightFiles::Impl& weights) {
  weights.format = WeightFormat::kSafetensors;
  if (!is_folder(path)) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    add_metadata(file, weights);
    add_file(file, path.filename().string(), weights);
    return;
  }
  if (is_there(path / kSingle)) {
    const SafetensorsFile file = SafetensorsFile::open(path / kSingle);
    add_metadata(file, weights);
    add_file(file, kSingle, weights);
  } else if (is_there(path / kIndex)) {
    read_shards(path, weights);
  } else {
    refuse_folder(path);
  }
  if (is_there(path / "config.json")) weights.config = read_json(path / "config.json");
}

}  // namespace qkv::inline v0::io
