// Folders from before tokenizer.json: GPT-2's vocab.json with merges.txt, BERT's vocab.txt.
#include <optional>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/path.h"
#include "text/embedded_vocabulary.h"
#include "text/json_fields.h"
#include "text/pipeline.h"
#include "text/sentence_piece.h"

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

}  // namespace

Json special_token_json(const std::string& content, std::int32_t id) {
  AddedToken token;
  token.id = id;
  token.content = content;
  token.special = true;
  return added_token_json(token);
}

namespace {

Json special_tokens_in(const Json& vocabulary, std::initializer_list<const char*> names) {
  Json::Array added;
  for (const char* name : names) {
    const Json* id = vocabulary.find(name);
    if (id == nullptr) continue;
    added.push_back(special_token_json(name, static_cast<std::int32_t>(id->as_int())));
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
  options.lowercase = flag_or(config, "do_lower_case", true);
  options.strip_accents = flag_or(config, "strip_accents", options.lowercase);
  options.handle_chinese_chars = flag_or(config, "tokenize_chinese_chars", true);
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

namespace {

bool is_model_file(const fs::path& path) { return path.extension() == ".model"; }

// The one SentencePiece file of a folder; empty if there is none.
fs::path model_file_in(const fs::path& folder) {
  for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
    if (path_exists(folder / name)) return folder / name;
  }
  std::vector<fs::path> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (is_model_file(entry.path())) found.push_back(entry.path());
  }
  require<ModelError>(found.size() < 2, "tokenizer",
                      "expected one SentencePiece .model in '{}', got {}", folder.string(),
                      found.size());
  return found.empty() ? fs::path() : found.front();
}

// fairseq's numbers, which XLM-R and its kin use: <s> <pad> </s> <unk>, the pieces from the fourth
// on, <mask>.
void renumber_fairseq(SentencePieceModel& model) {
  const ScoredPieces old = std::move(model.pieces);
  ScoredPieces& pieces = model.pieces;
  pieces = {};
  pieces.byte_fallback = old.byte_fallback;
  const auto add = [&](const std::string& piece, float score, PieceType type) {
    pieces.pieces.push_back(piece);
    pieces.scores.push_back(score);
    pieces.types.push_back(static_cast<std::int32_t>(type));
  };
  for (const char* name : {"<s>", "<pad>", "</s>"}) add(name, 0, PieceType::kControl);
  add("<unk>", 0, PieceType::kUnknown);
  pieces.unknown = 3;
  for (std::size_t i = 3; i < old.pieces.size(); ++i)
    add(old.pieces[i], old.scores[i], static_cast<PieceType>(old.types[i]));
  add("<mask>", 0, PieceType::kControl);
  model.bos = 0;
  model.padding = 1;
  model.eos = 2;
}

// Which special tokens the class of a tokenizer_config.json puts around a text. Flags of the file
// win over the class; without either, none.
Json post_processor_of(const SentencePieceModel& model, const Json& config, bool bos, bool eos) {
  std::vector<std::pair<std::string, std::int32_t>> before, after;
  const auto add = [&](auto& list, const std::optional<std::int32_t>& id, const char* what) {
    require<ModelError>(id.has_value(), "tokenizer",
                        "expected a piece for the {} of texts, got a model without", what);
    list.emplace_back(model.pieces.pieces[static_cast<std::size_t>(*id)], *id);
  };
  if (flag_or(config, "add_bos_token", bos)) add(before, model.bos, "begin");
  if (flag_or(config, "add_eos_token", eos)) add(after, model.eos, "end");
  return before.empty() && after.empty() ? Json() : around_json(before, after);
}

TokenizerParts parts_of_model_file(const fs::path& path, Json config) {
  std::string bytes = read_file(path);
  SentencePieceModel model = parse_sentence_piece(bytes);
  std::string kind = string_or(config, "tokenizer_class", "");
  if (kind.ends_with("Fast")) kind.resize(kind.size() - 4);
  const bool roberta = kind == "XLMRobertaTokenizer";
  require<UnsupportedError>(
      kind != "CamembertTokenizer" && kind != "MBartTokenizer" && kind != "MBart50Tokenizer" &&
          kind != "NllbTokenizer" && kind != "BarthezTokenizer" && kind != "MarianTokenizer",
      "tokenizer",
      "expected tokenizer.json beside a {} ('{}' alone does not say its ids), got none; "
      "transformers' save_pretrained writes it",
      kind, path.filename().string());
  Json post;
  if (roberta) {
    renumber_fairseq(model);
    post = Json(Json::Object{{"type", "RobertaProcessing"},
                             {"sep", Json::Array{"</s>", 2}},
                             {"cls", Json::Array{"<s>", 0}},
                             {"trim_offsets", false},
                             {"add_prefix_space", false}});
  } else {
    const bool t5 = kind == "T5Tokenizer" || kind == "MT5Tokenizer";
    const bool llama =
        kind == "LlamaTokenizer" || kind == "CodeLlamaTokenizer" || kind == "GemmaTokenizer";
    post = post_processor_of(model, config, llama, t5);
  }
  TokenizerParts parts =
      parts_of_sentence_piece(std::move(model), std::move(post), std::move(config));
  // A saved folder holds the file itself, which other programs read as well.
  parts.files.emplace_back(path.filename().string(), std::move(bytes));
  return parts;
}

// The pieces of another model under ids of a vocabulary; those it lacks are unknown.
class Renumbered : public TokenModel {
 public:
  Renumbered(std::unique_ptr<const TokenModel> inner, std::vector<std::int32_t> ids)
      : inner_(std::move(inner)), ids_(std::move(ids)) {}
  void tokenize(std::string_view word, std::vector<Piece>& pieces) const override {
    const std::size_t first = pieces.size();
    inner_->tokenize(word, pieces);
    for (std::size_t i = first; i < pieces.size(); ++i)
      pieces[i].id = ids_[static_cast<std::size_t>(pieces[i].id)];
  }

 private:
  std::unique_ptr<const TokenModel> inner_;
  std::vector<std::int32_t> ids_;
};

// Marian's form: pieces by SentencePiece, their ids in vocab.json, </s> behind each text.
TokenizerParts marian_parts(const fs::path& folder, const fs::path& file, Json config) {
  std::string bytes = read_file(file), vocabulary_bytes = read_file(folder / "vocab.json");
  SentencePieceModel model = parse_sentence_piece(bytes);
  const Json vocabulary_json = Json::parse(vocabulary_bytes, "vocab.json");
  Vocabulary vocabulary = parse_vocabulary(vocabulary_json);
  PieceTable ids(vocabulary.size());
  for (const auto& [token, id] : vocabulary) ids.insert(token, id);
  const std::int32_t unknown = ids.find("<unk>"), end = ids.find("</s>");
  require<ModelError>(unknown >= 0 && end >= 0, "tokenizer",
                      "expected <unk> and </s> in '{}', got neither or one",
                      (folder / "vocab.json").string());
  std::vector<std::int32_t> numbers;
  for (const std::string& piece : model.pieces.pieces) {
    const std::int32_t id = ids.find(piece);
    numbers.push_back(id < 0 ? unknown : id);
  }
  TokenizerParts parts = parts_of_sentence_piece(std::move(model), around_json({}, {{"</s>", end}}),
                                                 std::move(config));
  parts.json["added_tokens"] = special_tokens_in(vocabulary_json, {"</s>", "<unk>", "<pad>"});
  parts.model = std::make_unique<Renumbered>(std::move(parts.model), std::move(numbers));
  parts.vocabulary = std::move(vocabulary);
  parts.files = {{"vocab.json", std::move(vocabulary_bytes)},
                 {file.filename().string(), std::move(bytes)}};
  return parts;
}

// Where Marian keeps the pieces of the language that it reads; empty if nowhere.
fs::path marian_file_in(const fs::path& folder) {
  if (!path_exists(folder / "vocab.json")) return {};
  for (const char* name : {"source.spm", "vocab.joint.spm"}) {
    if (path_exists(folder / name)) return folder / name;
  }
  return {};
}

}  // namespace

TokenizerParts parts_of_older_files(const fs::path& place, Json config) {
  if (!is_folder(place)) return parts_of_model_file(place, std::move(config));
  if (path_exists(place / "vocab.json") && path_exists(place / "merges.txt"))
    return parts_of_json(gpt2_json(place), std::move(config));
  if (const fs::path file = marian_file_in(place); !file.empty())
    return marian_parts(place, file, std::move(config));
  if (path_exists(place / "vocab.txt")) return parts_of_json(bert_json(place), std::move(config));
  if (const fs::path file = model_file_in(place); !file.empty())
    return parts_of_model_file(file, std::move(config));
  fail<ModelError>(
      "tokenizer",
      "expected tokenizer.json, vocab.json with merges.txt or source.spm, vocab.txt or a "
      "SentencePiece .model in '{}', got none of them",
      place.string());
}

}  // namespace qkv::inline v0::text
