#include "base/json.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/excerpt.h"

namespace {
using namespace qkv;

std::string error_of(std::string_view text, int max_depth = 256) {
  try {
    Json::parse(text, "test", max_depth);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(Json, reads_every_kind) {
  const Json value = Json::parse(
      R"( {"a": [1, -2, 2.5, true, false, null], "b": "x\n\u00e9\ud83d\ude00", "c": {}} )");
  ASSERT_TRUE(value.is_object());
  const Json& a = value.at("a");
  EXPECT_EQ(a.size(), 6u);
  EXPECT_EQ(a.at(std::size_t{0}).as_int(), 1);
  EXPECT_EQ(a.at(1).as_int(), -2);
  EXPECT_FALSE(a.at(2).is_int());
  EXPECT_EQ(a.at(2).as_double(), 2.5);
  EXPECT_TRUE(a.at(3).as_bool());
  EXPECT_FALSE(a.at(4).as_bool());
  EXPECT_TRUE(a.at(5).is_null());
  EXPECT_EQ(value.at("b").as_string(), "x\né😀");
  EXPECT_TRUE(value.at("c").is_object());
  EXPECT_EQ(value.find("d"), nullptr);
}

TEST(Json, keeps_the_order_of_keys) {
  EXPECT_EQ(Json::parse(R"({"z":1,"a":2,"m":3})").dump(), R"({"z":1,"a":2,"m":3})");
}

TEST(Json, integers_stay_exact) {
  for (const char* text : {"0", "-1", "9223372036854775807", "-9223372036854775808"}) {
    const Json value = Json::parse(text);
    ASSERT_TRUE(value.is_int()) << text;
    EXPECT_EQ(value.dump(), text);
  }
  EXPECT_FALSE(Json::parse("9223372036854775808").is_int());
  EXPECT_EQ(Json::parse("9223372036854775808").as_double(), 0x1p63);
  EXPECT_FALSE(Json::parse("1e3").is_int());
}

TEST(Json, doubles_read_back_equal) {
  for (const double value :
       {0.1, 1.0, -0.0, 1e-12, 1e22, 5e-324, 1.7976931348623157e308, 1.0 / 3.0}) {
    const Json back = Json::parse(Json(value).dump());
    EXPECT_FALSE(back.is_int()) << Json(value).dump();
    EXPECT_EQ(back.as_double(), value);
    EXPECT_EQ(std::signbit(back.as_double()), std::signbit(value));
  }
  EXPECT_EQ(Json(1.0).dump(), "1.0");
  EXPECT_EQ(Json(0.1).dump(), "0.1");
}

TEST(Json, non_finite_numbers_are_null) {
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(Json, escapes_strings) {
  EXPECT_EQ(Json("a\"\\\n\r\t\x01é").dump(), "\"a\\\"\\\\\\n\\r\\t\\u0001é\"");
  EXPECT_EQ(Json(std::string_view("a\0b", 3)).dump(), "\"a\\u0000b\"");
  EXPECT_EQ(Json("a\xFF\xFE"
                 "b")
                .dump(),
            "\"a\uFFFD\uFFFDb\"");  // never writes what no reader takes
}

TEST(Json, indents) {
  const Json value = Json::parse(R"({"a":[1,2],"b":{},"c":[]})");
  EXPECT_EQ(value.dump(2), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {},\n  \"c\": []\n}");
}

TEST(Json, refuses_what_is_not_json) {
  for (const char* text :
       {"",         " ",       "{",      "[1,]",        "{\"a\":}",   "{a:1}",  "'x'",
        "01",       "+1",      ".5",     "1.",          "nul",        "[1] 2",  "NaN",
        "Infinity", "\"\\x\"", "\"\t\"", "\"\\ud800\"", "{\"a\":1,}", "// c\n1"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
  EXPECT_NE(error_of(std::string_view("{}\0{}", 5)).find("NUL at byte 2"), std::string::npos);
  EXPECT_NE(error_of("[1, x]").find("at byte 5"), std::string::npos) << error_of("[1, x]");
}

TEST(Json, refuses_numbers_beyond_double) {
  EXPECT_NE(error_of("1e999"), "");
  EXPECT_NE(error_of("[-1e999]"), "");
}

TEST(Json, refuses_duplicate_keys) {
  EXPECT_NE(error_of(R"({"a":1,"b":2,"a":3})").find("'a' twice"), std::string::npos);
  EXPECT_EQ(error_of(R"([{"a":1},{"a":2}])"), "");
}

TEST(Json, refuses_deep_nesting_without_recursion) {
  EXPECT_EQ(error_of(std::string(256, '[') + std::string(256, ']')), "");
  EXPECT_NE(error_of(std::string(257, '[') + std::string(257, ']')), "");
  EXPECT_NE(error_of(std::string(100000, '[')), "");
  EXPECT_NE(error_of("[[1]]", 1), "");
}

TEST(Json, b77_escapes_and_odd_bodies) {
  EXPECT_EQ(Json::parse(R"("\ud83d\ude00")").as_string(), "\xF0\x9F\x98\x80");
  EXPECT_EQ(Json::parse(R"("a\u0000b")").as_string(), std::string("a\0b", 3));
  for (const char* text : {R"("\ud83d")", R"("\ude00x")", "\"\xFF\"", "", "[1,]"})
    EXPECT_NE(error_of(text), "") << text;
  EXPECT_TRUE(Json::parse("\xEF\xBB\xBF{}").is_object());  // a byte order mark is passed over
}

TEST(Json, names_the_wrong_type) {
  const Json value = Json::parse(R"({"a":"x"})");
  try {
    value.at("a").as_int();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "[json] expected integer, got string");
  }
  EXPECT_THROW(value.at("b"), DataError);
  EXPECT_THROW(value.at("a").at("b"), DataError);
  EXPECT_THROW(Json::array().at(std::size_t{0}), DataError);
}

TEST(Json, builds_objects) {
  Json value = Json::object();
  value["b"] = 1;
  value["a"] = "x";
  value["b"] = 2.5F;
  value["c"] = Json::array();
  value["c"].push_back(true);
  value["c"].push_back(nullptr);
  EXPECT_EQ(value.dump(), R"({"b":2.5,"a":"x","c":[true,null]})");
}

TEST(Utf8, finds_the_first_invalid_byte) {
  const auto npos = std::string_view::npos;
  EXPECT_EQ(find_invalid_utf8(""), npos);
  EXPECT_EQ(find_invalid_utf8("abcdefghijklm"), npos);
  EXPECT_EQ(find_invalid_utf8("aé中😀\u07FF\uFFFF\U0010FFFF"), npos);
  EXPECT_EQ(find_invalid_utf8(std::string_view("a\0b", 3)), npos);
  EXPECT_EQ(find_invalid_utf8("\xC0\x80"), 0u);                  // overlong
  EXPECT_EQ(find_invalid_utf8("ab\xED\xA0\x80"), 2u);            // surrogate
  EXPECT_EQ(find_invalid_utf8("12345678\xF4\x90\x80\x80"), 8u);  // beyond U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xE2\x82"), 0u);                  // cut
  EXPECT_EQ(find_invalid_utf8("\xE0\x9F\xBF"), 0u);              // overlong
  EXPECT_EQ(find_invalid_utf8("\xF0\x8F\xBF\xBF"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xF5\x80\x80\x80"), 0u);
  EXPECT_EQ(find_invalid_utf8("a\x80"), 1u);
  EXPECT_EQ(find_invalid_utf8("abcdefg\xFFhijklmnop"), 7u);
}

// Every code point, encoded by the definition: accepted exactly when it is a scalar value.
TEST(Utf8, accepts_exactly_the_scalar_values) {
  for (std::uint32_t c = 0; c < 0x120000; ++c) {
    std::string text;
    if (c < 0x80) {
      text = {static_cast<char>(c)};
    } else if (c < 0x800) {
      text = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      text = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
              static_cast<char>(0x80 | (c & 63))};
    } else {
      text = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
              static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const bool scalar = c < 0x110000 && (c < 0xD800 || c > 0xDFFF);
    ASSERT_EQ(find_invalid_utf8(text) == std::string_view::npos, scalar) << c;
  }
}

TEST(Excerpt, cuts_between_characters) {
  EXPECT_EQ(excerpt("short"), "short");
  EXPECT_EQ(excerpt("快递快递", 7), "快递…");
  EXPECT_EQ(excerpt(std::string(1 << 20, 'a')).size(), 80 + std::string("…").size());
}

TEST(Json, messages_about_long_values_are_short) {
  try {
    Json::parse("\"" + std::string(1 << 20, 'a'));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_LT(std::string(error.what()).size(), 500u);
  }
}

}  // namespace
