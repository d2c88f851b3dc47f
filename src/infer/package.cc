#include "infer/package.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "infer/transformer_model.h"
#include "io/model_tokenizer.h"
#include "io/weight_files.h"
#include "models/checkpoint.h"
#include "models/json_reader.h"

namespace qkv::inline v0::infer {
namespace {

constexpr const char* kWhere = "language_model";

// An id, several, or none.
std::vector<std::int32_t> ids_of(const Json& config, const char* key) {
  const Json* value = config.find(key);
  std::vector<std::int32_t> ids;
  if (value == nullptr || value->is_null()) return ids;
  const auto take = [&](const Json& id) {
    require<ModelError>(id.is_int() && id.as_int() >= 0 && id.as_int() <= INT32_MAX, "config.json",
                        "{}: expected token ids, got {}", key, id.dump());
    ids.push_back(static_cast<std::int32_t>(id.as_int()));
  };
  if (!value->is_array()) {
    take(*value);
  } else {
    for (const Json& id : value->as_array()) take(id);
  }
  return ids;
}

Json generation_config(const io::WeightFiles& files) {
  const std::filesystem::path path = files.path() / "generation_config.json";
  if (files.format() != io::WeightFormat::kSafetensors || !std::filesystem::exists(path))
    return Json::object();
  Json json = read_json_file(path);
  require<ModelError>(json.is_object(), "generation_config.json", "expected an object, got {}",
                      json.type_name());
  return json;
}

LanguageModel::Facts facts_of(const io::WeightFiles& files, std::int64_t vocabulary) {
  const Json generation = generation_config(files);
  const Json& config = files.config();
  LanguageModel::Facts facts;
  facts.vocabulary = vocabulary;
  facts.end_ids = ids_of(generation, "eos_token_id");
  if (facts.end_ids.empty()) facts.end_ids = ids_of(config, "eos_token_id");
  std::vector<std::int32_t> first = ids_of(generation, "bos_token_id");
  if (first.empty()) first = ids_of(config, "bos_token_id");
  if (!first.empty()) facts.bos = first.front();
  // Its texts follow each other, each behind the token that begins it.
  if (files.format() == io::WeightFormat::kLlama2c && facts.bos)
    facts.end_ids.push_back(*facts.bos);
  const auto known = [&](std::int32_t id) { return id < vocabulary; };
  require<ModelError>(std::all_of(facts.end_ids.begin(), facts.end_ids.end(), known) &&
                          known(facts.bos.value_or(0)),
                      "config.json",
                      "expected bos_token_id and eos_token_id below the vocabulary of {}",
                      vocabulary);
  return facts;
}

}  // namespace

LanguagePackage load_language_package(const std::filesystem::path& path,
                                      const std::filesystem::path& tokenizer_path) {
  const io::WeightFiles files = io::WeightFiles::open(path);
  LoadOptions options;
  options.read_only = true;
  options.keep_stored = true;
  Checkpoint checkpoint = load_checkpoint(files, options);
  const TransformerConfig& config = checkpoint.model.config();
  require<ModelError>(config.causal && config.head.kind == HeadKind::kLm, kWhere,
                      "expected a decoder with a language model's head, got \"{}\" with head {}",
                      config.model_type, head_kind_name(config.head.kind));
  Tokenizer tokenizer = io::load_tokenizer(tokenizer_path.empty() ? path : tokenizer_path);
  const std::int64_t vocabulary = std::min(config.vocab_size, tokenizer.vocab_size());
  checkpoint.model.module().keep_packed();
  auto transformer = std::make_shared<const Transformer>(std::move(checkpoint.model));
  std::unique_ptr<LanguageModel> model =
      make_language_model(transformer, facts_of(files, vocabulary));
  return {std::move(transformer), std::move(model), std::move(tokenizer)};
}

TokenBytes token_bytes(const Tokenizer& tokenizer) {
  return [&tokenizer](std::span<const std::int32_t> ids) { return tokenizer.decode_bytes(ids); };
}

std::string piece_of(const Tokenizer& tokenizer, std::int32_t id) {
  try {
    return tokenizer.token(id);
  } catch (const ArgumentError&) {
    return "";
  }
}

namespace {

// Length of `text` without the blanks at its end, as Python's str.rstrip counts them.
std::size_t without_blanks(std::string_view text) {
  constexpr std::string_view kWide[] = {"\u0085", "\u00A0", "\u1680", "\u2000", "\u2001",
                                        "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
                                        "\u2007", "\u2008", "\u2009", "\u200A", "\u2028",
                                        "\u2029", "\u202F", "\u205F", "\u3000"};
  while (!text.empty()) {
    const auto last = static_cast<unsigned char>(text.back());
    const auto wide = std::find_if(std::begin(kWide), std::end(kWide),
                                   [&](std::string_view blank) { return text.ends_with(blank); });
    if (last == ' ' || (last >= 0x09 && last <= 0x0D) || (last >= 0x1C && last <= 0x1F)) {
      text.remove_suffix(1);
    } else if (wide != std::end(kWide)) {
      text.remove_suffix(wide->size());
    } else {
      break;
    }
  }
  return text.size();
}

}  // namespace

DividedText divide_text(const Tokenizer& tokenizer, std::string context, std::string continuation) {
  const std::size_t keep = without_blanks(context);
  continuation = context.substr(keep) + continuation;
  context.resize(keep);
  EncodeOptions plain;
  plain.add_special_tokens = false;
  plain.with_pieces = false;
  const std::vector<std::int32_t> whole = tokenizer.encode(context + continuation, plain).ids;
  const std::size_t n = context.empty() ? 0 : tokenizer.encode(context, plain).ids.size();
  DividedText divided;
  const auto border = whole.begin() + static_cast<std::ptrdiff_t>(std::min(n, whole.size()));
  divided.context.assign(whole.begin(), border);
  divided.continuation.assign(border, whole.end());
  return divided;
}

}  // namespace qkv::inline v0::infer
