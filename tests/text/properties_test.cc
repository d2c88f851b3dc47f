// Properties of tables and tokenizers that hold for every text.
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "qkv/tokenizer.h"

#include "support/strings.h"
#include "text/dataset.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace {
using namespace qkv;
using qkv::testing::csv_field;

// Texts of all scripts, with blanks, quotes and symbols more often than chance has them.
std::string any_text() {
  const auto chars = *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::suchThat(
      rc::gen::oneOf(
          rc::gen::inRange<std::uint32_t>(0x20, 0x7F),
          rc::gen::element<std::uint32_t>(' ', '\n', '\r', '\t', '"', ',', '\'', 0x3000, 0xA0),
          rc::gen::inRange<std::uint32_t>(0x4E00, 0x4F00),
          rc::gen::inRange<std::uint32_t>(1, 0x110000)),
      [](std::uint32_t c) { return c < 0xD800 || c > 0xDFFF; }));
  std::string text;
  for (const std::uint32_t c : chars) text::append_utf8(text, static_cast<char32_t>(c));
  return text;
}

RC_GTEST_PROP(TableProperties, csv_brings_back_every_field, ()) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (int n = *rc::gen::inRange(1, 6); n > 0; --n) {
    std::string text = any_text(), label = any_text();
    rows.emplace_back("x" + text, "y" + label);
  }
  const std::string end = *rc::gen::element<std::string>("\n", "\r\n");
  std::string csv = *rc::gen::element<std::string>("", "\xEF\xBB\xBF") + "label,text" + end;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    csv += csv_field(rows[i].second) + "," + csv_field(rows[i].first);
    if (i + 1 < rows.size() || *rc::gen::arbitrary<bool>()) csv += end;
  }
  const std::vector<TextRow> back = parse_table(csv, "f.csv", {});
  RC_ASSERT(back.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RC_ASSERT(back[i].text == rows[i].first);
    RC_ASSERT(back[i].label == rows[i].second);
  }
}

const std::vector<Tokenizer>& tokenizers() {
  static const std::vector<Tokenizer> all = [] {
    const std::vector<std::string> texts = {"the red power bank, the red one's here",
                                            "红色的充电宝 红色的",
                                            "naïve café naïve café 😀😀 \n\n 12 12"};
    std::vector<Tokenizer> made;
    for (const TokenizerKind kind :
         {TokenizerKind::kBpe, TokenizerKind::kChar, TokenizerKind::kWordPiece}) {
      TokenizerOptions options;
      options.kind = kind;
      options.vocab_size = 320;
      made.push_back(Tokenizer::train(texts, options));
    }
    return made;
  }();
  return all;
}

RC_GTEST_PROP(TokenizerProperties, byte_level_pieces_spell_the_text, ()) {
  const std::string text = any_text();
  EncodeOptions options;
  options.parse_special = false;
  const Encoding encoding = tokenizers()[0].encode(text, options);
  RC_ASSERT(tokenizers()[0].decode(encoding.ids) == text);
}

RC_GTEST_PROP(TokenizerProperties, offsets_are_in_order_and_in_the_text, ()) {
  const std::string text = any_text();
  for (const Tokenizer& tokenizer : tokenizers()) {
    EncodeOptions options;
    options.add_special_tokens = false;
    const Encoding encoding = tokenizer.encode(text, options);
    std::int64_t last = 0;
    for (const auto& [begin, end] : encoding.offsets) {
      RC_ASSERT(begin >= last);
      RC_ASSERT(end > begin);
      RC_ASSERT(end <= text::count_chars(text));
      last = begin;
    }
  }
}

RC_GTEST_PROP(TokenizerProperties, characters_keep_their_places, ()) {
  const std::string text = any_text();
  EncodeOptions options;
  options.add_special_tokens = false;
  options.parse_special = false;
  const Encoding encoding = tokenizers()[1].encode(text, options);
  RC_ASSERT(static_cast<std::int64_t>(encoding.ids.size()) == text::count_chars(text));
  for (std::size_t i = 0; i < encoding.offsets.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    RC_ASSERT(encoding.offsets[i] == std::pair(place, place + 1));
  }
}

RC_GTEST_PROP(TokenizerProperties, words_of_gpt2_join_to_the_text, ()) {
  const std::string text = any_text();
  std::vector<text::Span> words;
  text::split_gpt2(text, words);
  std::uint32_t at = 0;
  for (const text::Span& word : words) {
    RC_ASSERT(word.begin == at);
    RC_ASSERT(word.end > word.begin);
    at = word.end;
  }
  RC_ASSERT(at == text.size());
}

RC_GTEST_PROP(TokenizerProperties, tracking_changes_no_text, ()) {
  const std::string text = any_text();
  const auto normalizer = text::make_normalizer(text::bert_normalizer_json({}));
  const text::AlignedText tracked = normalizer->apply(text::AlignedText(text, 0, true));
  RC_ASSERT(tracked.text() == normalizer->apply(text::AlignedText(text, 0, false)).text());
  for (std::uint32_t i = 0; i < tracked.text().size(); ++i) {
    const text::Span origin = tracked.original({i, i + 1});
    RC_ASSERT(origin.begin < origin.end);
    RC_ASSERT(origin.end <= text.size());
  }
}

RC_GTEST_PROP(BatchProperties, every_sample_once_within_the_limit, ()) {
  const auto lengths =
      *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 100));
  BatchOptions options;
  options.batch_tokens = *rc::gen::inRange<std::int64_t>(1, 300);
  options.padded_count = *rc::gen::arbitrary<bool>();
  options.shuffle = *rc::gen::arbitrary<bool>();
  options.seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto epoch = *rc::gen::inRange<std::int64_t>(0, 1000);
  const auto plan = plan_batches(lengths, epoch, options);
  RC_ASSERT(plan == plan_batches(lengths, epoch, options));
  std::multiset<std::int64_t> seen;
  for (const std::vector<std::int64_t>& batch : plan) {
    std::int64_t longest = 0, sum = 0;
    for (const std::int64_t i : batch) {
      longest = std::max(longest, lengths[static_cast<std::size_t>(i)]);
      sum += lengths[static_cast<std::size_t>(i)];
    }
    const std::int64_t cost =
        options.padded_count ? longest * static_cast<std::int64_t>(batch.size()) : sum;
    RC_ASSERT(batch.size() == 1 || cost <= options.batch_tokens);
    seen.insert(batch.begin(), batch.end());
  }
  RC_ASSERT(seen.size() == lengths.size());
  RC_ASSERT(std::set<std::int64_t>(seen.begin(), seen.end()).size() == lengths.size());
}

}  // namespace
