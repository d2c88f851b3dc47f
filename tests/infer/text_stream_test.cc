#include "infer/text_stream.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "base/json.h"
#include "base/random.h"

using namespace qkv;
using namespace qkv::infer;

namespace {

using Strings = std::vector<std::string>;

struct Streamed {
  Strings pieces;
  std::string text;
};

Streamed streamed(const Strings& parts) {
  Utf8Stream stream;
  Streamed result;
  for (const std::string& part : parts) result.pieces.push_back(stream.push(part));
  result.pieces.push_back(stream.finish());
  for (const std::string& piece : result.pieces) {
    EXPECT_EQ(find_invalid_utf8(piece), std::string::npos);
    result.text += piece;
  }
  return result;
}

std::string stopped_at(const Strings& stops, const Strings& parts, bool* found = nullptr) {
  StopFinder finder(stops);
  std::string text;
  for (const std::string& part : parts) text += finder.push(part);
  text += finder.finish();
  if (found != nullptr) *found = finder.found();
  return text;
}

}  // namespace

TEST(TextStream, b72_characters_spread_over_tokens) {
  EXPECT_EQ(streamed({"\xF0\x9F", "\x98\x80"}).pieces, (Strings{"", "😀", ""}));
  EXPECT_EQ(streamed({"\xE6", "\x97", "\xA5"}).pieces, (Strings{"", "", "日", ""}));
  // A bad byte is released at once.
  EXPECT_EQ(streamed({"\x80", "a"}).pieces, (Strings{"�", "a", ""}));
  EXPECT_EQ(streamed({"x\xE2\x82"}).pieces, (Strings{"x", "�"}));
  EXPECT_EQ(streamed({"\xE2", "\x82", "a"}).pieces, (Strings{"", "", "�a", ""}));
  EXPECT_EQ(streamed({"👩\xE2\x80", "\x8D💻"}).text, "👩\u200D💻");
  EXPECT_EQ(streamed({"\xED\xA0\x80"}).text, "���");  // a surrogate: three parts
  EXPECT_EQ(streamed({"\xF4\x90", "\x80\xC0"}).text, "����");
  EXPECT_EQ(streamed({"\xF0\x80"}).text, "��");
}

TEST(TextStream, any_cut_gives_the_same_text) {
  Random random(3);
  const std::string bytes = "aé日😀\x80\xE2\x82\xF0\x9F\x98\xC3z\xED\xA0\x80\xF4\x8F\xBF\xBF";
  const std::string whole = streamed({bytes}).text;
  for (int round = 0; round < 200; ++round) {
    Strings parts;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t n = 1 + random.below(4);
      parts.push_back(bytes.substr(at, n));
      at += n;
    }
    ASSERT_EQ(streamed(parts).text, whole);
  }
}

TEST(TextStream, stop_strings_across_borders) {
  bool found = false;
  EXPECT_EQ(stopped_at({"END"}, {"one E", "N", "D two"}, &found), "one ");
  EXPECT_TRUE(found);
  EXPECT_EQ(stopped_at({"END"}, {"one E", "N", "d two"}, &found), "one ENd two");
  EXPECT_FALSE(found);
  EXPECT_EQ(stopped_at({"END"}, {"one EN"}, &found), "one EN");
  EXPECT_FALSE(found);
  EXPECT_EQ(stopped_at({"aab"}, {"aa", "a", "b!"}), "a");
  EXPECT_EQ(stopped_at({"\n\n", "x"}, {"a\n", "\nb"}), "a");
  EXPECT_EQ(stopped_at({"later", "e"}, {"late", "r"}), "lat");  // the first one to begin
  EXPECT_THROW(StopFinder({""}), ArgumentError);
}

TEST(TextStream, text_that_may_begin_a_stop_string_is_held_back) {
  StopFinder finder({"stop"});
  EXPECT_EQ(finder.push("a st"), "a ");
  EXPECT_EQ(finder.push("ar"), "star");
  EXPECT_EQ(finder.push("s"), "");
  EXPECT_EQ(finder.finish(), "s");
}

// Token 0 is a word's beginning whose blank is dropped at the start of a text, 1 and 2 the bytes of
// é, 3 a blank and x.
TEST(TextStream, tokens_in_their_context) {
  const TokenBytes bytes = [](std::span<const std::int32_t> ids) {
    std::string text;
    for (const std::int32_t id : ids)
      text += Strings{" w", "\xC3", "\xA9", " x"}[static_cast<std::size_t>(id)];
    return text.starts_with(" ") ? text.substr(1) : text;
  };
  TextStream stream(bytes, {"x w"});
  std::string text;
  for (const std::int32_t id : {0, 1, 2, 0, 0, 0, 0, 1, 2, 3}) text += stream.push(id);
  EXPECT_EQ(text, "wé w w w wé ");
  EXPECT_FALSE(stream.stopped());
  text += stream.push(0);
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(text + stream.finish(), "wé w w w wé ");
}
