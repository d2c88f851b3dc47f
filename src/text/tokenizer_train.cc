#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "base/check.h"
#include "text/pipeline.h"
#include "text/trainer.h"
#include "text/unicode.h"

namespace qkv::inline v0 {
namespace {

using text::AlignedText;
using text::CountedWord;
using text::Span;

constexpr std::array<const char*, 5> kSpecials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
constexpr std::int32_t kCls = 2, kSep = 3;

// Everything of a tokenizer.json but the model, which is null.
Json frame_json(const TokenizerOptions& options) {
  Json::Array added;
  for (std::size_t i = 0; i < kSpecials.size(); ++i) {
    text::AddedToken token;
    token.id = static_cast<std::int32_t>(i);
    token.content = kSpecials[i];
    token.special = true;
    added.push_back(text::added_token_json(token));
  }
  Json normalizer, pre_tokenizer, decoder;
  if (options.lowercase) normalizer = Json::Object{{"type", "Lowercase"}};
  switch (options.kind) {
    case TokenizerKind::kChar:
      decoder = Json::Object{{"type", "Fuse"}};
      break;
    case TokenizerKind::kBpe:
      pre_tokenizer = Json::Object{{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", false},
                                   {"use_regex", true}};
      decoder = pre_tokenizer;
      break;
    case TokenizerKind::kWordPiece: {
      text::BertNormalizerOptions bert;
      bert.lowercase = bert.strip_accents = options.lowercase;
      normalizer = text::bert_normalizer_json(bert);
      pre_tokenizer = Json::Object{{"type", "BertPreTokenizer"}};
      decoder = Json::Object{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
      break;
    }
  }
  Json post = options.cls_sep ? text::template_json(kCls, kSep) : Json();
  return Json(Json::Object{{"version", "1.0"},
                           {"truncation", nullptr},
                           {"padding", nullptr},
                           {"added_tokens", std::move(added)},
                           {"normalizer", std::move(normalizer)},
                           {"pre_tokenizer", std::move(pre_tokenizer)},
                           {"post_processor", std::move(post)},
                           {"decoder", std::move(decoder)},
                           {"model", nullptr}});
}

Json config_json() {
  Json config(Json::Object{{"tokenizer_class", "PreTrainedTokenizerFast"},
                           {"clean_up_tokenization_spaces", false}});
  for (std::size_t i = 0; i < kSpecials.size(); ++i) {
    constexpr std::array<const char*, 5> kRoles = {"pad_token", "unk_token", "cls_token",
                                                   "sep_token", "mask_token"};
    config[kRoles[i]] = kSpecials[i];
  }
  return config;
}

// How often each word occurs, in the order of first occurrence.
class WordCounts {
 public:
  void add(std::string_view word) {
    const auto [entry, added] = index_.try_emplace(std::string(word), words_.size());
    if (added) words_.emplace_back(word, 0);
    ++words_[entry->second].second;
  }
  const std::vector<std::pair<std::string, std::int64_t>>& words() const { return words_; }

 private:
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<std::pair<std::string, std::int64_t>> words_;
};

WordCounts count_words(const text::WordFinder& finder, std::span<const std::string> texts) {
  WordCounts counts;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::size_t bad = find_invalid_utf8(texts[i]);
    require<DataError>(bad == std::string::npos, "tokenizer",
                       "expected UTF-8, got an invalid byte at position {} of text {}", bad, i);
    finder.find(
        texts[i], true, false, [](std::int32_t, Span) {},
        [&](const AlignedText& part, const std::vector<Span>& words) {
          for (const Span& word : words)
            counts.add(part.text().substr(word.begin, word.end - word.begin));
        });
  }
  return counts;
}

Json::Object special_entries() {
  Json::Object entries;
  for (std::size_t i = 0; i < kSpecials.size(); ++i)
    entries.emplace_back(kSpecials[i], Json(static_cast<std::int64_t>(i)));
  return entries;
}

void add_entry(Json::Object& vocabulary, std::string token) {
  const auto id = static_cast<std::int64_t>(vocabulary.size());
  vocabulary.emplace_back(std::move(token), Json(id));
}

Json bpe_model_json(Json::Object vocabulary, Json::Array merges, Json unknown) {
  return Json(Json::Object{{"type", "BPE"},
                           {"dropout", nullptr},
                           {"unk_token", std::move(unknown)},
                           {"continuing_subword_prefix", nullptr},
                           {"end_of_word_suffix", nullptr},
                           {"fuse_unk", false},
                           {"byte_fallback", false},
                           {"ignore_merges", false},
                           {"vocab", std::move(vocabulary)},
                           {"merges", std::move(merges)}});
}

// The most frequent of `counts` (at most `limit`, each at least `least` times), ties by the key.
template <class Key>
std::vector<Key> most_frequent(const std::map<Key, std::int64_t>& counts, std::size_t limit,
                               std::int64_t least) {
  std::vector<std::pair<Key, std::int64_t>> order(counts.begin(), counts.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<Key> kept;
  for (const auto& [key, count] : order) {
    if (kept.size() < limit && count >= least) kept.push_back(key);
  }
  return kept;
}

// One piece a character, the frequent ones first.
Json train_chars(const WordCounts& counts, const TokenizerOptions& options) {
  std::map<char32_t, std::int64_t> chars;
  for (const auto& [word, count] : counts.words()) {
    for (std::size_t at = 0; at < word.size();) chars[text::next_char(word, at)] += count;
  }
  Json::Object vocabulary = special_entries();
  const std::size_t room = static_cast<std::size_t>(options.vocab_size) - kSpecials.size();
  for (const char32_t c : most_frequent(chars, room, options.min_frequency)) {
    std::string token;
    text::append_utf8(token, c);
    add_entry(vocabulary, std::move(token));
  }
  return bpe_model_json(std::move(vocabulary), {}, kSpecials[1]);
}

// All 256 bytes, so that nothing is unknown, and what is learned.
Json train_bpe(const WordCounts& counts, const TokenizerOptions& options) {
  std::vector<std::string> names;
  for (int b = 0; b < 256; ++b) names.emplace_back(1, static_cast<char>(b));
  std::vector<CountedWord> words;
  for (const auto& [word, count] : counts.words()) {
    CountedWord& counted = words.emplace_back();
    counted.count = count;
    for (const char b : word) counted.symbols.push_back(static_cast<unsigned char>(b));
  }
  text::PairTrainer trainer(std::move(names), std::move(words), "");
  trainer.run(static_cast<std::size_t>(options.vocab_size) - kSpecials.size(),
              options.min_frequency);
  Json::Object vocabulary = special_entries();
  std::map<char32_t, unsigned char> by_visible;
  for (int b = 0; b < 256; ++b)
    by_visible[text::visible_byte(static_cast<unsigned char>(b))] = static_cast<unsigned char>(b);
  for (const auto& [visible, byte] : by_visible)
    add_entry(vocabulary, text::to_visible(std::string(1, static_cast<char>(byte))));
  for (std::size_t i = 256; i < trainer.names().size(); ++i)
    add_entry(vocabulary, text::to_visible(trainer.names()[i]));
  Json::Array merges;
  for (const text::LearnedMerge& merge : trainer.merges()) {
    const auto name = [&](std::int32_t symbol) {
      return text::to_visible(trainer.names()[static_cast<std::size_t>(symbol)]);
    };
    merges.emplace_back(name(merge.left) + " " + name(merge.right));
  }
  return bpe_model_json(std::move(vocabulary), std::move(merges), nullptr);
}

// The pieces of a word before anything is merged: its characters, all but the first with "##".
std::vector<std::string> word_piece_symbols(const std::string& word) {
  std::vector<std::string> symbols;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t begin = at;
    (void)text::next_char(word, at);
    symbols.push_back((begin == 0 ? "" : "##") + word.substr(begin, at - begin));
  }
  return symbols;
}

Json train_word_piece(const WordCounts& counts, const TokenizerOptions& options) {
  std::map<std::string, std::int64_t> alphabet;
  for (const auto& [word, count] : counts.words()) {
    for (const std::string& symbol : word_piece_symbols(word)) alphabet[symbol] += count;
  }
  const std::size_t room = static_cast<std::size_t>(options.vocab_size) - kSpecials.size();
  std::vector<std::string> names = most_frequent(alphabet, room, 1);
  std::sort(names.begin(), names.end());
  std::unordered_map<std::string, std::int32_t> symbol_ids;
  for (std::size_t i = 0; i < names.size(); ++i)
    symbol_ids.emplace(names[i], static_cast<std::int32_t>(i));
  std::vector<CountedWord> words;
  for (const auto& [word, count] : counts.words()) {
    CountedWord counted;
    counted.count = count;
    bool known = true;
    for (const std::string& symbol : word_piece_symbols(word)) {
      const auto found = symbol_ids.find(symbol);
      known = known && found != symbol_ids.end();
      if (known) counted.symbols.push_back(found->second);
    }
    if (known) words.push_back(std::move(counted));
  }
  text::PairTrainer trainer(std::move(names), std::move(words), "##");
  trainer.run(room, options.min_frequency);
  Json::Object vocabulary = special_entries();
  for (const std::string& name : trainer.names()) add_entry(vocabulary, name);
  return Json(Json::Object{{"type", "WordPiece"},
                           {"unk_token", kSpecials[1]},
                           {"continuing_subword_prefix", "##"},
                           {"max_input_chars_per_word", 100},
                           {"vocab", std::move(vocabulary)}});
}

}  // namespace

Tokenizer Tokenizer::train(std::span<const std::string> texts, const TokenizerOptions& options) {
  const std::int64_t least =
      static_cast<std::int64_t>(kSpecials.size()) + (options.kind == TokenizerKind::kBpe ? 256 : 1);
  require<ArgumentError>(options.vocab_size >= least && options.vocab_size <= 10'000'000,
                         "tokenizer", "expected a vocab_size from {} to 10000000, got {}", least,
                         options.vocab_size);
  require<ArgumentError>(options.min_frequency >= 1, "tokenizer",
                         "expected min_frequency >= 1, got {}", options.min_frequency);
  Json json = frame_json(options);
  const WordCounts counts = count_words(text::WordFinder(json), texts);
  switch (options.kind) {
    case TokenizerKind::kChar:
      json["model"] = train_chars(counts, options);
      break;
    case TokenizerKind::kBpe:
      json["model"] = train_bpe(counts, options);
      break;
    case TokenizerKind::kWordPiece:
      json["model"] = train_word_piece(counts, options);
      break;
  }
  return Tokenizer(
      std::make_shared<const Impl>(text::parts_of_json(std::move(json), config_json())));
}

}  // namespace qkv::inline v0
