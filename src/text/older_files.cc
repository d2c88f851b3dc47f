// Folders from before tokenizer.json: GPT-2's vocab.json with merges.txt, BERT's vocab.txt.
#include <optional>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/path.h"
#include "text/pipeline.h"

namespace qkv::inline v0::text {
namespace {
namespace fs = std::filesystem;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string read_utf8(const fs::path& path) {
  std::string bytes = read_file(path);
  const std::size_t bad = find_invalid_utf8(bytes);
  require<ModelError>(bad == std::string::npos, "tokenizer",
                      "expected UTF-8 in '{}', got an invalid byte at position {}", path.string(),
                      bad);
  return bytes;
}

Json special_tokens_in(const Json& vocabulary, std::initializer_list<const char*> names) {
  Json::Array added;
  for (const char* name : names) {
    const Json* id = vocabulary.find(name);
    if (id == nullptr) continue;
    AddedToken token;
    token.id = static_cast<std::int32_t>(id->as_int());
    token.content = name;
    token.special = true;
    added.push_back(added_token_json(token));
  }
  return Json(std::move(added));
}

Json gpt2_json(const fs::path& folder) {
  Json vocabulary = Json::parse(read_file(folder / "vocab.json"), "vocab.json");
  Json added = special_tokens_in(vocabulary, {"<|endoftext|>"});
  Json model(Json::Object{{"type", "BPE"}});
  model["vocab"] = std::move(vocabulary);
  model["merges"] = parse_merges_text(read_utf8(folder / "merges.txt"));
  const Json byte_level(Json::Object{{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", false},
                                     {"use_regex", true}});
  return Json(Json::Object{{"version", "1.0"},
                           {"truncation", nullptr},
                           {"padding", nullptr},
                           {"added_tokens", std::move(added)},
                           {"normalizer", nullptr},
                           {"pre_tokenizer", byte_level},
                           {"post_processor", byte_level},
                           {"decoder", byte_level},
                           {"model", std::move(model)}});
}

bool config_flag(const Json& config, const char* key, bool absent) {
  const Json* value = config.find(key);
  return value == nullptr || value->is_null() ? absent : value->as_bool();
}

Json bert_json(const fs::path& folder) {
  const fs::path config_path = folder / "tokenizer_config.json";
  const Json config = path_exists(config_path)
                          ? Json::parse(read_file(config_path), "tokenizer_config.json")
                          : Json::object();
  const std::string text = read_utf8(folder / "vocab.txt");
  Json::Object tokens;
  for (const std::string_view line : lines_of(text))
    tokens.emplace_back(std::string(line), Json(static_cast<std::int64_t>(tokens.size())));
  Json vocabulary(std::move(tokens));
  const Json* cls = vocabulary.find("[CLS]");
  const Json* sep = vocabulary.find("[SEP]");
  require<ModelError>(cls != nullptr && sep != nullptr, "tokenizer",
                      "expected [CLS] and [SEP] in '{}', got neither or one",
                      (folder / "vocab.txt").string());
  BertNormalizerOptions options;
  options.lowercase = config_flag(config, "do_lower_case", true);
  options.strip_accents = config_flag(config, "strip_accents", options.lowercase);
  options.handle_chinese_chars = config_flag(config, "tokenize_chinese_chars", true);
  Json post = template_json(static_cast<std::int32_t>(cls->as_int()),
                            static_cast<std::int32_t>(sep->as_int()));
  Json added = special_tokens_in(vocabulary, {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"});
  Json model(Json::Object{{"type", "WordPiece"},
                          {"unk_token", "[UNK]"},
                          {"continuing_subword_prefix", "##"},
                          {"max_input_chars_per_word", 100}});
  model["vocab"] = std::move(vocabulary);
  return Json(Json::Object{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", bert_normalizer_json(options)},
      {"pre_tokenizer", Json::Object{{"type", "BertPreTokenizer"}}},
      {"post_processor", std::move(post)},
      {"decoder", Json::Object{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
      {"model", std::move(model)}});
}

}  // namespace

Json parse_merges_text(std::string_view text) {
  Json::Array merges;
  bool first = true;
  for (const std::string_view line : lines_of(text)) {
    const bool header = first && line.starts_with("#version");
    first = false;
    if (!header && !line.empty()) merges.emplace_back(line);
  }
  return Json(std::move(merges));
}

Json json_of_older_files(const fs::path& folder) {
  if (path_exists(folder / "vocab.json") && path_exists(folder / "merges.txt"))
    return gpt2_json(folder);
  if (path_exists(folder / "vocab.txt")) return bert_json(folder);
  fail<ModelError>(
      "tokenizer",
      "expected tokenizer.json, vocab.json with merges.txt, or vocab.txt in '{}', got none of them",
      folder.string());
}

}  // namespace qkv::inline v0::text
