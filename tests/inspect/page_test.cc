// The page is one file, holds no hostile text as markup, and its numbers are the weights.
#include "inspect/page.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "base/json.h"
#include "inspect_support.h"

using namespace qkv;
using namespace qkv::inspect;
using namespace qkv::testing;

namespace {

// The JSON inside the page.
Json data_of(const std::string& page) {
  const std::string open = R"(<script type="application/json" id="data">)";
  const std::size_t at = page.find(open) + open.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

std::string decoded(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0, have = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    have += 6;
    if (have >= 8) out += static_cast<char>(bits >> (have -= 8) & 255);
  }
  return out;
}

double word_at(const std::string& bytes, std::size_t index) {
  return static_cast<unsigned char>(bytes[2 * index]) +
         256.0 * static_cast<unsigned char>(bytes[2 * index + 1]);
}

// Tags that open and close, in order; void elements left out. Fails the test for one that does not
// close.
void expect_balanced(const std::string& html) {
  std::vector<std::string> open;
  const std::regex tag(R"(<(/?)([a-z0-9]+)[^>]*>)");
  const std::string text =
      std::regex_replace(html, std::regex(R"((<script[^>]*>)[^]*?(</script>))"), "$1$2");
  for (std::sregex_iterator it(text.begin(), text.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if (name == "meta" || name == "br") continue;
    if ((*it)[1].length() == 0) {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << name;
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

}  // namespace

TEST(Page, is_one_file_and_parses) {
  const TinyClassifier tiny;
  const std::string page = attention_page(tiny.trace("where is my card"), "tiny");
  EXPECT_EQ(page.rfind("<!DOCTYPE html>", 0), 0u);
  for (const char* outside :
       {"http://", "https://", "src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  // The script is the same in every page, so its text cannot break what this looks at.
  expect_balanced(page.substr(0, page.find("<script")) + page.substr(page.rfind("</script>") + 9));
}

TEST(Page, holds_the_weights) {
  const TinyClassifier tiny;
  const Trace trace = tiny.trace("where is my card");
  const Json data = data_of(attention_page(trace, "tiny"));
  ASSERT_EQ(data.at("maps").size(), 8u);
  const std::int64_t n = trace.length();
  for (std::int64_t index = 0; index < 8; ++index) {
    const Json& map = data.at("maps").at(static_cast<std::size_t>(index));
    const std::string bytes = decoded(map.at("dense").as_string());
    ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), 2 * n * n);
    const Tensor head = trace.head(index / 4, index % 4);
    for (std::int64_t i = 0; i < n * n; ++i)
      EXPECT_NEAR(word_at(bytes, static_cast<std::size_t>(i)) / 65535 * map.at("max").as_double(),
                  head.data<float>()[i], 1e-5);
  }
}

TEST(Page, hostile_text_stays_text) {
  const TinyClassifier tiny;
  const std::string text = "<script>alert(1)</script><!--";
  const std::string page = attention_page(tiny.trace(text), "</title><script>alert(2)</script>");
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(page.find("alert(2)</script>"), std::string::npos);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  EXPECT_EQ(data_of(page).at("text").as_string(), text);
  EXPECT_EQ(data_of(page).at("model").as_string(), "</title><script>alert(2)</script>");
}

TEST(Page, script_json_escapes_what_scripts_cannot_hold) {
  EXPECT_EQ(script_json(Json("<\u2028>\u2029")), "\"\\u003c\\u2028>\\u2029\"");
}

TEST(Page, long_texts_keep_the_largest_weights_of_each_row) {
  constexpr std::int64_t kLength = 900, kHeads = 6;
  Trace trace;
  trace.ids.resize(kLength);
  trace.tokens.assign(kLength, "x");
  trace.words.assign(kLength, "x");
  const Tensor weights = Tensor::zeros({kHeads, kLength, kLength});
  weights.fill(1e-4);
  float* w = weights.data<float>();
  for (std::int64_t i = 0; i < kLength; ++i) w[i * kLength + (7 * i) % kLength] = 0.5f;
  trace.attention.emplace_back("layer", weights);
  const Json data = data_of(attention_page(trace, "long"));
  EXPECT_EQ(data.at("kept").as_int(), 16);
  const Json& map = data.at("maps").at(0);
  EXPECT_EQ(map.find("dense"), nullptr);
  const std::string keys = decoded(map.at("keys").as_string()),
                    values = decoded(map.at("values").as_string());
  for (std::size_t i = 0; i < kLength; i += 89) {
    EXPECT_EQ(word_at(keys, 16 * i), static_cast<double>(7 * i % kLength));
    EXPECT_NEAR(word_at(values, 16 * i) / 65535 * 0.5, 0.5, 1e-5);
  }
  EXPECT_EQ(decoded(map.at("pooled").as_string()).size(), 384u * 384u);
}

TEST(Page, needs_attention) { EXPECT_THROW(attention_page(Trace(), "none"), ArgumentError); }
